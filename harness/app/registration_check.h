// Whether the versions that were linked into this program can be told apart, and extend versions that are there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// nullopt, or what is wrong and what to change: traits outside of the version's own namespace, flash_ladder::vNN; traits of one name in two versions, of which the linker keeps one version's code for both. The build checks the
/// files (harness/cmake/check_kernels.py); this is what came of them, whatever they include and define.
std::optional<std::string> why_mixed_up(const std::vector<Version>& versions);

/// nullopt, or which extension extends a version that is not there, and what it can extend.
std::optional<std::string> why_extends_none(const std::vector<Version>& versions);

}  // namespace flash_ladder
