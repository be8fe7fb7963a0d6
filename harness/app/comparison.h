// `harness --diff A B`: two versions side by side.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Returns the exit code: 3 when a profile cannot be used.
int compare(const Options& options);

}  // namespace flash_ladder
