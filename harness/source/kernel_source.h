// A kernel file as text: the contents of its header comment, its distance from another version's file, and whether it
// has changed since a profile was recorded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flash_ladder {

/// The text of a source file. Throws UnavailableError if it cannot be read.
std::string read_source(const std::filesystem::path& path);

/// The header comment of a kernel file. Each field is the paragraph's text on one line.
struct HeaderComment {
  std::string idea;
  std::string changed;
  std::string prediction;
};

/// Reads the comment at the start of a kernel file. A missing paragraph stays empty.
HeaderComment read_header_comment(const std::filesystem::path& source);

/// The file's lines of code: without comments, blank lines and indentation, and with version numbers (v06, 06) and the
/// namespaces of extensions made equal, so that only real differences between two versions remain.
std::vector<std::string> code_lines(const std::filesystem::path& source);

/// The lines of code to add and to remove in order to get from one version to the other (a minimal line diff of
/// code_lines).
struct DiffSize {
  int added;
  int removed;
};
DiffSize diff_size(const std::filesystem::path& from, const std::filesystem::path& to);

/// A hash of the tokens, without comments and white space, of a kernel file and of the common/ headers that it
/// includes, directly or indirectly: "sha256:…". So improving a comment never changes it, and neither does changing a
/// header of common/host/: these describe a version or a problem to the host and contain no device functions (a test
/// checks this), so no GPU code comes from them.
std::string code_hash(const std::filesystem::path& source, const std::filesystem::path& common_directory);

}  // namespace flash_ladder
