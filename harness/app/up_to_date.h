// Whether this program was built from the sources that it shows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// A file of one of these versions that is newer than this program, so that what runs is older code; nullopt when there is none.
std::optional<std::string> newer_source(const std::vector<const Version*>& versions,
                                        const std::filesystem::path& source_tree);

}  // namespace flash_ladder
