#include "source/named_places.h"

#include <cctype>
#include <fstream>
#include <string>
#include <utility>

namespace flash_ladder {
namespace {

constexpr std::string_view kBlank = " \t";

// Whether the comment begins with the name, and the name ends where a word does.
bool begins_with(std::string_view comment, std::string_view name) {
  if (!comment.starts_with(name)) return false;
  const auto next = static_cast<unsigned char>(comment.size() > name.size() ? comment[name.size()] : ' ');
  return !std::isalnum(next) && next != '_' && next < 0x80;
}

}  // namespace

std::vector<CodeLine> lines_with_comments(const std::filesystem::path& source) {
  std::vector<CodeLine> lines;
  std::ifstream file(source);
  for (std::string line; std::getline(file, line);)
    lines.push_back({static_cast<int>(lines.size()) + 1, std::move(line)});
  return lines;
}

std::optional<int> line_of_place(const std::vector<CodeLine>& lines, std::string_view name) {
  std::size_t continues_at = std::string_view::npos;  // the indentation of the comment that the line may continue
  for (const CodeLine& line : lines) {
    const std::string_view text = line.text;
    const std::size_t mark = text.find("//"), code = text.find_first_not_of(kBlank);
    const bool is_alone = mark != text.npos && mark == code;
    const bool continues = is_alone && mark == continues_at;
    continues_at = is_alone ? mark : text.npos;
    if (mark == text.npos || continues) continue;
    const std::size_t begin = text.find_first_not_of(" \t/", mark);
    if (begin != text.npos && begins_with(text.substr(begin), name)) return line.number;
  }
  return std::nullopt;
}

}  // namespace flash_ladder
