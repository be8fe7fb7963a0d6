#include "sass/ptx_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "emulator/ptx/source_lines.h"
#include "trimmed.h"

namespace flash_ladder {
namespace {

using emulator::ptx::SourceLines;

// Reads "1 64 5" from the front of a stream.
std::optional<SourceLines::Location> location(std::istream& words) {
  SourceLines::Location at{};
  if (words >> at.file >> at.line >> at.column) return at;
  return std::nullopt;
}

// The name that `.entry` or `.func` on this line declares; empty if there is none.
std::string declared(const std::string& line) {
  for (const std::string_view keyword : {".entry ", ".func "}) {
    const std::size_t at = line.find(keyword);
    if (at == std::string::npos) continue;
    std::string_view rest = trimmed(std::string_view(line).substr(at + keyword.size()));
    if (rest.starts_with('(')) rest = trimmed(rest.substr(std::min(rest.find(')') + 1, rest.size())));
    return std::string(rest.substr(0, rest.find_first_of("( \t")));
  }
  return "";
}

// "kernels/07_ldmatrix.cu" for a file below `root`, otherwise the name without its folders.
std::string shown_file(const std::string& file, const std::filesystem::path& root) {
  const auto path = std::filesystem::path(file).lexically_normal();
  const auto relative = path.lexically_relative(root);
  const bool inside = !relative.empty() && *relative.begin() != "..";
  return inside ? relative.generic_string() : path.filename().string();
}

// The line is neither a directive nor a label.
bool is_instruction(std::string_view statement) {
  if (statement.empty()) return false;
  const char first = statement.front();
  return first == '@' || (std::isalpha(static_cast<unsigned char>(first)) != 0 && !statement.ends_with(':'));
}

}  // namespace

std::vector<PtxInstruction> parse_ptx_text(std::string_view text, const std::filesystem::path& root) {
  std::vector<PtxInstruction> instructions;
  std::vector<std::size_t> functions;  // index of the first instruction of each function
  std::vector<int> positions;          // for each instruction: an index that its function's SourceLines returned
  std::vector<std::vector<std::vector<SourceLines::NumberedLine>>> lines_of;  // for each function
  std::map<int, std::string> files;
  std::string function;
  SourceLines lines;
  int position = 0, depth = 0, number = 0;
  const auto end_function = [&] {
    if (!function.empty()) lines_of.push_back(lines.take());
    lines = SourceLines();
    position = 0;
  };

  std::istringstream stream{std::string(text)};
  bool in_statement = false;  // the previous line had no ;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    line = trimmed(line.substr(0, line.find("//")));
    std::replace(line.begin(), line.end(), '\t', ' ');
    line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
    if (line.starts_with(".file")) {
      std::istringstream words(line.substr(5));
      int index = 0;
      words >> index;
      const std::size_t first = line.find('"'), last = line.find('"', first + 1);
      if (last != std::string::npos) files[index] = line.substr(first + 1, last - first - 1);
      continue;
    }
    if (depth == 0)
      if (const std::string name = declared(line); !name.empty()) {
        end_function();
        function = name;
        functions.push_back(instructions.size());
      }
    if (line.starts_with(".loc")) {
      std::istringstream words(line.substr(4));
      if (const auto at = location(words)) {
        constexpr std::string_view kInlined = "inlined_at ";
        const std::size_t inlined = line.find(kInlined);
        std::istringstream caller(inlined == std::string::npos ? "" : line.substr(inlined + kInlined.size()));
        const auto called_from = location(caller);
        position = lines.locate(*at, called_from ? &*called_from : nullptr);
      }
      continue;
    }
    const bool in_body = depth > 0;
    depth += static_cast<int>(std::count(line.begin(), line.end(), '{'));
    depth -= static_cast<int>(std::count(line.begin(), line.end(), '}'));
    if (!in_body || line.empty() || line.ends_with(':')) continue;
    for (std::string_view rest = line; !rest.empty();) {  // the text of an asm() may hold several statements on a line
      const std::size_t end = rest.find(';');
      const std::string_view part = trimmed(rest.substr(0, end == std::string_view::npos ? end : end + 1));
      rest = end == std::string_view::npos ? "" : trimmed(rest.substr(end + 1));
      const bool goes_on = std::exchange(in_statement, end == std::string_view::npos);
      if (goes_on) {
        instructions.back().text.append(" ").append(part);
        continue;
      }
      // Operands contain braces too, whereas the braces of a block are at the start or end of a statement.
      std::string statement(trimmed(part.substr(std::min(part.find_first_not_of("{} "), part.size()))));
      if (!is_instruction(statement)) {
        in_statement = false;
        continue;
      }
      std::istringstream words(statement);
      std::string opcode;
      words >> opcode;
      if (opcode.starts_with('@')) words >> opcode;
      while (opcode.ends_with(';') || opcode.ends_with(',')) opcode.pop_back();
      instructions.push_back({number, std::move(statement), std::move(opcode), function, {}});
      positions.push_back(position);
    }
  }
  end_function();

  for (std::size_t f = 0; f < functions.size(); ++f) {
    const std::size_t end = f + 1 < functions.size() ? functions[f + 1] : instructions.size();
    for (std::size_t i = functions[f]; i < end; ++i)
      for (const auto& place : lines_of[f][static_cast<std::size_t>(positions[i])])
        instructions[i].position.push_back(fmt::format("{}:{}", shown_file(files[place.file], root), place.line));
  }
  return instructions;
}

}  // namespace flash_ladder
