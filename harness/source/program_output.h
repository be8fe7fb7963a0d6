// The output of other programs, such as diff and nvdisasm.
#pragma once

#include <string>
#include <vector>

namespace flash_ladder {

/// The outcome of running a program.
struct ProgramOutput {
  int error = 0;     // the errno that prevented it from starting; 0: it started
  int status = 0;    // its exit status; 128 plus the signal's number if a signal ended it
  std::string text;  // its standard output
};

/// Runs a program, which is looked up in PATH unless its name contains a slash, and waits for it to end. Its standard
/// error goes to that of this process.
ProgramOutput output_of(std::vector<std::string> words);

}  // namespace flash_ladder
