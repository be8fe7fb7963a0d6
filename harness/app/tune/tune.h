// `harness --tune`: finds the fastest of a version's configurations for a problem.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Checks every configuration that can run the problem, times them in turn, shows them ranked, and stores the ranking
/// in profiles/<device>/tuning.json if all of them were right. Returns the exit code.
int tune(const Options& options);

}  // namespace flash_ladder
