// Matches the lines of one version's file with the lines of another's.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace flash_ladder {

/// A line of code as code_lines() returns it, and its position.
struct CodeLine {
  int number;  // from 1
  std::string text;
};
std::vector<CodeLine> numbered_code_lines(const std::filesystem::path& source);

/// Line number in `from` → line number in `to`: lines with the same code, by a minimal diff; if a run of lines was
/// replaced by the same number of lines, those are matched in order. Lines that only one of the files has are left out.
std::map<int, int> align_lines(const std::vector<CodeLine>& from, const std::vector<CodeLine>& to);

}  // namespace flash_ladder
