// Writes files that are either complete or absent: the text appears under the file's name only once it is complete.
#pragma once

#include <filesystem>
#include <string>

namespace flash_ladder {

/// Checks, before work that may take minutes, that write_file_atomically() will be able to write there: the directory
/// exists and is writable, the path is not a directory, an existing file is writable. Throws UsageError. Leaves nothing
/// behind.
void check_writable(const std::filesystem::path& path);

/// Writes the text to a temporary name in the same directory, then renames it. If the path is not a regular file
/// (/dev/null, a pipe), writes to it directly. Throws UnavailableError.
void write_file_atomically(const std::filesystem::path& path, const std::string& text);

}  // namespace flash_ladder
