// Lines of the project's files, looked up by their place.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// "kernels/07_ldmatrix.cu:74" → ("kernels/07_ldmatrix.cu", 74)
std::pair<std::string, int> split_place(const std::string& place);

/// Whether the place is in a version's file.
bool is_in_kernels(const std::string& place);

/// ":74 ← :171", the line and the lines that call it; with the file name if it is not a version's file.
std::string describe_position(const SourcePosition& position);

/// The part of a position that is in the version's own file: the line that calls a function of common/, and its
/// callers. The whole position if no part of it is.
SourcePosition in_kernel_file(const SourcePosition& position);

/// The text of the project's files, each read once.
class SourceText {
 public:
  explicit SourceText(std::filesystem::path tree) : tree_(std::move(tree)) {}

  /// The line without its indentation; empty if there is no such line.
  std::string line(const std::string& place);

 private:
  std::filesystem::path tree_;
  std::map<std::string, std::vector<std::string>> files_;
};

}  // namespace flash_ladder
