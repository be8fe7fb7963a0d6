// Whether this program was built from the sources that it shows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// A file of one of these versions that is newer than this program, which means that the program runs older code;
/// nullopt if there is none.
std::optional<std::string> newer_source(const std::vector<const Version*>& versions,
                                        const std::filesystem::path& source_tree);

}  // namespace flash_ladder
