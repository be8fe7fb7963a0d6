// Which versions `--kernel` names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "host/versions.h"
#include "rules/version_name.h"

namespace flash_ladder {

/// The version's file in a source tree.
std::filesystem::path source_file(const Version& version, const std::filesystem::path& source_tree);

/// The width of a column of versions in a table: the longest name, and two spaces.
std::size_t version_column_width();

/// The version to compare with: the version before it on the ladder, or for an extension the version that it extends;
/// nullptr for the first.
const Version* version_before(const Version& version);

/// Versions in the order of versions(), each once. `text` is what select_version() accepts, a range such as 05-08,
/// `all`, or several of these separated by commas. Throws UsageError if one is unknown or a range is empty.
std::vector<const Version*> select_versions(const std::string& text);

}  // namespace flash_ladder
