// `harness --sass --kernel NN --listing` and `harness --kernel NN --ptx LINE`: machine code instruction by instruction.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Prints the machine code of one version. Returns the exit code.
int list_sass(const Options& options);

/// Prints what the compiler made of a line of the source or of the PTX, or of all PTX instructions of a name. Returns the exit code.
int follow_ptx(const Options& options);

}  // namespace flash_ladder
