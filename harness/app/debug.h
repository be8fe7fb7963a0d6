// --debug: what a version does to O, tile by tile, and where it goes wrong.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Returns the exit code: 0 when all tiles are right, 1 with the first wrong one named. Throws UsageError, UnavailableError.
int debug(const Options& options);

}  // namespace flash_ladder
