// What other programs print: diff, nvdisasm.
#pragma once

#include <string>
#include <vector>

namespace flash_ladder {

/// How a program ended that was run.
struct ProgramOutput {
  int error = 0;     // why it could not be started, as in errno; 0: it was
  int status = 0;    // what it exited with; 128 and the signal's number, if one ended it
  std::string text;  // its standard output
};

/// Runs a program, which is looked for in PATH unless its name has a slash, and waits for its end. What it writes to standard error
/// goes to this process's.
ProgramOutput output_of(std::vector<std::string> words);

}  // namespace flash_ladder
