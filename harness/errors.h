// The exceptions that end a run of the harness, one per exit code.
#pragma once

#include <stdexcept>

namespace flash_ladder {

/// What the process returns: see docs and `harness --help`.
enum ExitCode {
  kExitOk = 0,           // what was asked for was done, and all that ran is correct
  kExitWrong = 1,        // a wrong result or a finding
  kExitUsage = 2,        // bad usage, or the single version asked for does not support the problem
  kExitUnavailable = 3,  // a device, a tool or a file is missing, nothing could run, or a CUDA error
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
