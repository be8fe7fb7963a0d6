// `harness --kernel … --sass`: the composition of the machine code.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Returns the exit code.
int report_sass(const Options& options);

}  // namespace flash_ladder
