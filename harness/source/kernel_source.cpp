#include "source/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "errors.h"
#include "source/line_alignment.h"
#include "source/sha256.h"
#include "source/tokens.h"

namespace flash_ladder {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Replaces v06 and 06, and the namespace of an extension, by the same text in all versions.
std::string without_version_number(const std::vector<Token>& line, std::size_t i) {
  const std::string& text = line[i].text;
  if (text.size() == 3 && text[0] == 'v' && is_digit(text[1]) && is_digit(text[2])) return "vNN";
  if (text.size() == 2 && text[0] == '0' && is_digit(text[1])) return "NN";
  if (i >= 3 && line[i - 3].text == "namespace" && line[i - 2].text == "flash_ladder" && line[i - 1].text == "::")
    return "vNN";
  return text;
}

// The length of the longest common subsequence, by dynamic programming: versions have only a few hundred lines.
int common_lines(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<int> row(b.size() + 1, 0);  // row[j]: for the lines of a so far and the first j of b
  for (const std::string& line : a) {
    int diagonal = 0;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = line == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

// Headers in this folder of common/ are for the host only.
constexpr std::string_view kHostFolder = "host/";

// Appends a file's tokens to `message`, followed by the tokens of the common/ headers that it includes and that are not
// yet in `seen`.
void append_tokens(const std::filesystem::path& path, const std::filesystem::path& common_directory,
                   std::set<std::string>& seen, std::string& message) {
  const std::vector<Token> all = tokens(read_source(path));
  std::vector<std::string> headers;
  bool directive = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // A token cannot contain a zero byte, so no two token streams produce the same message. Line ends matter only to
    // directives.
    message += all[i].text + '\0';
    const bool first = i == 0 || all[i - 1].line != all[i].line;
    const bool last = i + 1 == all.size() || all[i + 1].line != all[i].line;
    if (first) directive = all[i].text == "#";
    if (directive && last) message += std::string("\n") + '\0';

    if (directive && all[i].text == "include" && !last && all[i + 1].text.starts_with('"'))
      headers.push_back(all[i + 1].text.substr(1, all[i + 1].text.size() - 2));
  }
  for (const std::string& header : headers)
    if (!header.starts_with(kHostFolder) && std::filesystem::exists(common_directory / header) &&
        seen.insert(header).second)
      append_tokens(common_directory / header, common_directory, seen, message);
}

}  // namespace

std::string read_source(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad())
    throw UnavailableError(
        fmt::format("cannot read {}: is the source tree still where it was built from?", path.string()));
  return text.str();
}

HeaderComment read_header_comment(const std::filesystem::path& source) {
  HeaderComment header;
  std::string* paragraph = nullptr;
  std::istringstream text(read_source(source));
  for (std::string line; std::getline(text, line) && line.starts_with("//");) {
    line.erase(0, 2);
    line.erase(line.find_last_not_of(" \t\r") + 1);
    const std::size_t indentation = std::min(line.find_first_not_of(' '), line.size());
    std::string words = line.substr(indentation);
    if (indentation < 2) {
      // A heading and its first line, or any other line, which ends the preceding paragraph.
      const std::string heading = words.substr(0, words.find("  "));
      words.erase(0, words.find_first_not_of(' ', heading.size()));
      paragraph = heading == "Idea"         ? &header.idea
                  : heading == "Changed"    ? &header.changed
                  : heading == "Prediction" ? &header.prediction
                                            : nullptr;
    }
    if (!paragraph || words.empty()) continue;
    if (!paragraph->empty()) *paragraph += ' ';
    *paragraph += words;
  }
  return header;
}

std::vector<CodeLine> numbered_code_lines(const std::filesystem::path& source) {
  const std::vector<Token> all = tokens(read_source(source));
  std::vector<CodeLine> lines;
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = std::find_if(begin, all.end(), [&](const Token& token) { return token.line != begin->line; });
    const std::vector<Token> line(begin, end);
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (i > 0 && line[i].after_space) text += ' ';
      text += without_version_number(line, i);
    }
    lines.push_back({begin->line, std::move(text)});
    begin = end;
  }
  return lines;
}

std::vector<std::string> code_lines(const std::filesystem::path& source) {
  std::vector<std::string> lines;
  for (CodeLine& line : numbered_code_lines(source)) lines.push_back(std::move(line.text));
  return lines;
}

DiffSize diff_size(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::vector<std::string> old_lines = code_lines(from), new_lines = code_lines(to);
  const int common = common_lines(old_lines, new_lines);
  return {.added = static_cast<int>(new_lines.size()) - common, .removed = static_cast<int>(old_lines.size()) - common};
}

std::string code_hash(const std::filesystem::path& source, const std::filesystem::path& common_directory) {
  std::set<std::string> seen;
  std::string message;
  append_tokens(source, common_directory, seen, message);
  return "sha256:" + sha256(message);
}

}  // namespace flash_ladder
