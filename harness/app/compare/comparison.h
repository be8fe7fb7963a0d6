// `harness --diff A B`: two versions side by side.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Returns the exit code: that of the runs that were counted; 3 if a profile cannot be used, or if nothing could be
/// counted or studied.
int compare(const Options& options);

}  // namespace flash_ladder
