// A kernel file as text: what its header comment says, how far it is from another version's, and whether it has changed since
// a profile was recorded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flash_ladder {

/// The header comment of a kernel file. Each field is the paragraph's text on one line.
struct HeaderComment {
  std::string idea;
  std::string changed;
  std::string prediction;
};

/// Reads the comment that a kernel file starts with. A paragraph that is missing stays empty.
HeaderComment read_header_comment(const std::filesystem::path& source);

/// The file's lines of code: without comments, blank lines and indentation, and with version numbers (v06, 06) and namespaces of
/// extensions made alike,
/// so that only what two versions do differently differs.
std::vector<std::string> code_lines(const std::filesystem::path& source);

/// Lines of code to add and to remove to come from one version to the other (a minimal line diff of code_lines).
struct DiffSize {
  int added;
  int removed;
};
DiffSize diff_size(const std::filesystem::path& from, const std::filesystem::path& to);

/// A hash of the token stream, comments and white space left out, of a kernel file and of the common/ headers that it
/// includes, directly or not: "sha256:…". A better comment never changes it, and neither does a header of common/host/: those hold
/// what the host knows of a version and of a problem, and no device function (a test looks), so no code comes from them.
std::string code_hash(const std::filesystem::path& source, const std::filesystem::path& common_directory);

}  // namespace flash_ladder
