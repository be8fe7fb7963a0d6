// Checks that the versions linked into this program can be told apart, and that the versions that they extend exist.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// nullopt, or what is wrong and what to change: traits outside the version's own namespace, flash_ladder::vNN; or
/// traits with the same name in two versions, for which the linker keeps only one version's code. The build checks the
/// files (harness/cmake/check_kernels.py); this function checks the result, whatever the files include and define.
std::optional<std::string> why_mixed_up(const std::vector<Version>& versions);

/// nullopt, or which extension names a base that does not exist, and what it can extend.
std::optional<std::string> why_extends_none(const std::vector<Version>& versions);

}  // namespace flash_ladder
