// Whether the compiled code was built from the sources that are shown.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// A file of one of these versions that is newer than the version's compiled code, which means that older code runs; nullopt if
/// there is none.
std::optional<std::string> newer_source(const std::vector<const Version*>& versions,
                                        const std::filesystem::path& source_tree);

}  // namespace flash_ladder
