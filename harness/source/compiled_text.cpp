#include "source/compiled_text.h"

#include <algorithm>

#include "source/sha256.h"

namespace flash_ladder {
namespace {

// A line with its words one space apart.
std::string words_of(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  std::string words;
  for (std::size_t start = line.find_first_not_of(kSpace); start != std::string_view::npos;) {
    const std::size_t end = line.find_first_of(kSpace, start);
    if (!words.empty()) words += ' ';
    words += line.substr(start, end - start);
    start = line.find_first_not_of(kSpace, end);
  }
  return words;
}

}  // namespace

std::string ptx_hash(std::string_view ptx) {
  std::string executed;
  executed.reserve(ptx.size());
  bool in_section = false;  // from .section to the closing brace, which is on its own line
  while (!ptx.empty()) {
    const std::size_t end = ptx.find('\n');
    const std::string line = words_of(ptx.substr(0, end));
    ptx.remove_prefix(end == std::string_view::npos ? ptx.size() : end + 1);
    const bool left_out =
        line.empty() || line.starts_with("//") || line.starts_with(".file ") || line.starts_with(".loc ");
    in_section = in_section || line.starts_with(".section ");
    if (!in_section && !left_out) {
      executed += line;
      executed += '\n';
    }
    if (line == "}") in_section = false;
  }
  return "sha256:" + sha256(executed);
}

std::string sass_hash(std::string_view sass) {
  std::string code;
  while (!sass.empty()) {
    const std::string_view line = sass.substr(0, std::min(sass.find('\n'), sass.size() - 1) + 1);
    if (line.find("//## ") == line.npos) code += line;
    sass.remove_prefix(line.size());
  }
  return "sha256:" + sha256(code);
}

}  // namespace flash_ladder
