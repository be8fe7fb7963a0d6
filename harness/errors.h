// The exceptions that end a run of the harness, one per exit code.
#pragma once

#include <stdexcept>

namespace flash_ladder {

/// What the process returns: see the docs and `harness --help`.
enum ExitCode {
  kExitOk = 0,           // everything that was requested was done, and everything that ran is correct
  kExitWrong = 1,        // a wrong result or a finding
  kExitUsage = 2,        // bad usage, or the single version that was requested does not support the problem
  kExitUnavailable = 3,  // a missing device, tool or file; nothing could run; or a CUDA error
};

/// The user requested something impossible. The message says what, which value, what is allowed and what to do. Exit
/// code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A device, a tool or a file that the user named is missing or failed. Exit code 3.
struct UnavailableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace flash_ladder
