// The exceptions that end a run of the harness, one per exit code.
#pragma once

#include <stdexcept>

namespace flash_ladder {

/// What the process returns: see docs and `harness --help`.
enum ExitCode {
  kExitOk = 0,           // all that ran is correct, or nothing could run and the study was static
  kExitWrong = 1,        // a wrong result or a finding
  kExitUsage = 2,        // bad usage, or the single version asked for does not support the problem
  kExitUnavailable = 3,  // a device or tool asked for by name is missing, or a CUDA error
};

/// The user asked for something that cannot be: says what, which value, what is allowed, what to do. Exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A device, a tool or a file that was asked for by name is missing or failed. Exit code 3.
struct UnavailableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace flash_ladder
