// `harness --sass --kernel NN --listing` and `harness --kernel NN --ptx LINE`: machine code instruction by instruction.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Prints the machine code of one version. Returns the exit code.
int list_sass(const Options& options);

/// Prints what the compiler generated for a line of the source or of the PTX, or for all PTX instructions of one
/// opcode. Returns the exit code.
int follow_ptx(const Options& options);

}  // namespace flash_ladder
