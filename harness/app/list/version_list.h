// `harness --list`: one line per version, with its speed according to profiles/. With --json, their configurations for
// scripts (harness/results/versions.schema.json).
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Returns the exit code: 3 if a profile cannot be used.
int list_versions(const Options& options);

}  // namespace flash_ladder
