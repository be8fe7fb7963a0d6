// Files that are either whole or not there: what is written appears under its name only when it is complete.
#pragma once

#include <filesystem>
#include <string>

namespace flash_ladder {

/// Checks, before work that may take minutes, that write_file_atomically() will be able to write there: the directory exists
/// and takes files, the path is no directory, an existing file is writable. Throws UsageError. Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

/// Writes the text to a temporary name in the same directory, then renames it. What is not a regular file (/dev/null, a pipe)
/// is written to as it is. Throws UnavailableError.
void write_file_atomically(const std::filesystem::path& path, const std::string& text);

}  // namespace flash_ladder
