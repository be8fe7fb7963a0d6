// The difference between the sources of two versions, for a reader.
#pragma once

#include <filesystem>
#include <string>

#include "app/terminal.h"
#include "host/versions.h"

namespace flash_ladder {

/// As `diff -u` shows it, comments included, but without the header comment (which the reader sees above) and without what
/// differs only in the version's number. Throws UnavailableError when there is no diff program.
std::string source_diff(const Version& from, const Version& to, const std::filesystem::path& source_tree);

/// The same in colours.
std::string painted_diff(const std::string& diff, const Paint& paint);

}  // namespace flash_ladder
