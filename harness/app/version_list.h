// `harness --list`: the versions, a line each, with what profiles/ says of their speed. With --json their configurations, for
// scripts (harness/results/versions.schema.json).
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Returns the exit code: 3 when a profile cannot be used.
int list_versions(const Options& options);

}  // namespace flash_ladder
