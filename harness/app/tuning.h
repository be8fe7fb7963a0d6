// `harness --tune`: which of a version's configurations is the fastest for a problem.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Checks every configuration that can run the problem, times them in turn, shows them ranked, and keeps the ranking in
/// profiles/<device>/tuning.json when all of them were right. Returns the exit code.
int tune(const Options& options);

}  // namespace flash_ladder
