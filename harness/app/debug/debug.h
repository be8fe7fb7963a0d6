// --debug: how a version updates O, tile by tile, or computes gradients, step by step, and where it goes wrong.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Returns the exit code: 0 if all tiles are right; 1 if one is wrong, and the first wrong tile or step is named. Throws
/// UsageError, UnavailableError.
int debug(const Options& options);

}  // namespace flash_ladder
