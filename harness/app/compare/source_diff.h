// The difference between the sources of two versions, formatted for a reader.
#pragma once

#include <filesystem>
#include <string>

#include "app/terminal/terminal.h"
#include "host/versions.h"

namespace flash_ladder {

/// In the format of `diff -u`, including comments, but without the header comment (which the reader sees above) and
/// without lines that differ only in the version's number. Throws UnavailableError if there is no diff program.
std::string source_diff(const Version& from, const Version& to, const std::filesystem::path& source_tree);

/// The same in colour.
std::string painted_diff(const std::string& diff, const Paint& paint);

}  // namespace flash_ladder
