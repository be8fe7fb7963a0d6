// Places in a kernel file, named by its comments: "S = Q Kᵀ" is the comment, on lines of its own or after code, that
// begins with these words. All versions use the same words, so that a renamed variable moves no place. CONTRIBUTING.md
// ("Name a place") lists them; scripts/kernel_places.py finds those that pages, planted faults and assignments use.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "source/line_alignment.h"

namespace flash_ladder {

/// All lines of a file, with comments.
std::vector<CodeLine> lines_with_comments(const std::filesystem::path& source);

/// The number of the line, from 1, at which the comment begins. If several comments begin so, the first.
std::optional<int> line_of_place(const std::vector<CodeLine>& lines, std::string_view name);

}  // namespace flash_ladder
