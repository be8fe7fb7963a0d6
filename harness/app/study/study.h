// `harness --kernel …`: runs the versions one after another and shows the full study of each.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Returns the exit code.
int study(const Options& options);

}  // namespace flash_ladder
