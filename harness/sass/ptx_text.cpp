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

// The line without its comment, and with single blanks.
std::string without_comment(std::string line) {
  line = trimmed(line.substr(0, line.find("//")));
  std::replace(line.begin(), line.end(), '\t', ' ');
  line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
  return line;
}

// "ldmatrix.sync", without the predicate before it.
std::string opcode_of(const std::string& statement) {
  std::istringstream words(statement);
  std::string opcode;
  words >> opcode;
  if (opcode.starts_with('@')) words >> opcode;
  while (opcode.ends_with(';') || opcode.ends_with(',')) opcode.pop_back();
  return opcode;
}

class Reader {
 public:
  std::vector<PtxInstruction> read(std::string_view text, const std::filesystem::path& root) {
    std::istringstream stream{std::string(text)};
    for (std::string line; std::getline(stream, line);) {
      ++number_;
      read_line(without_comment(std::move(line)));
    }
    end_function();
    for (std::size_t f = 0; f < functions_.size(); ++f) {
      const std::size_t end = f + 1 < functions_.size() ? functions_[f + 1] : instructions_.size();
      for (std::size_t i = functions_[f]; i < end; ++i)
        for (const auto& place : lines_of_[f][static_cast<std::size_t>(positions_[i])])
          instructions_[i].position.push_back(fmt::format("{}:{}", shown_file(files_[place.file], root), place.line));
    }
    return std::move(instructions_);
  }

 private:
  void read_line(const std::string& line) {
    if (line.starts_with(".file")) return read_file(line);
    if (depth_ == 0)
      if (const std::string name = declared(line); !name.empty()) {
        end_function();
        function_ = name;
        functions_.push_back(instructions_.size());
      }
    if (line.starts_with(".loc")) return read_location(line);
    const bool in_body = depth_ > 0;
    depth_ += static_cast<int>(std::count(line.begin(), line.end(), '{'));
    depth_ -= static_cast<int>(std::count(line.begin(), line.end(), '}'));
    if (in_body && !line.empty() && !line.ends_with(':')) read_statements(line);
  }

  // .file 1 "path"
  void read_file(const std::string& line) {
    std::istringstream words(line.substr(5));
    int index = 0;
    words >> index;
    const std::size_t first = line.find('"'), last = line.find('"', first + 1);
    if (last != std::string::npos) files_[index] = line.substr(first + 1, last - first - 1);
  }

  // .loc 1 64 5, function_name $L__info_string0, inlined_at 1 171 9
  void read_location(const std::string& line) {
    std::istringstream words(line.substr(4));
    const auto at = location(words);
    if (!at) return;
    constexpr std::string_view kInlined = "inlined_at ";
    const std::size_t inlined = line.find(kInlined);
    std::istringstream caller(inlined == std::string::npos ? "" : line.substr(inlined + kInlined.size()));
    const auto called_from = location(caller);
    position_ = lines_.locate(*at, called_from ? &*called_from : nullptr);
  }

  void read_statements(const std::string& line) {
    for (std::string_view rest = line; !rest.empty();) {  // the text of an asm() may hold several statements on a line
      const std::size_t end = rest.find(';');
      const std::string_view part = trimmed(rest.substr(0, end == std::string_view::npos ? end : end + 1));
      rest = end == std::string_view::npos ? "" : trimmed(rest.substr(end + 1));
      const bool goes_on = std::exchange(in_statement_, end == std::string_view::npos);
      if (goes_on) {
        instructions_.back().text.append(" ").append(part);
        continue;
      }
      // Operands contain braces too, whereas the braces of a block are at the start or end of a statement.
      std::string statement(trimmed(part.substr(std::min(part.find_first_not_of("{} "), part.size()))));
      if (!is_instruction(statement)) {
        in_statement_ = false;
        continue;
      }
      std::string opcode = opcode_of(statement);
      instructions_.push_back({number_, std::move(statement), std::move(opcode), function_, {}});
      positions_.push_back(position_);
    }
  }

  void end_function() {
    if (!function_.empty()) lines_of_.push_back(lines_.take());
    lines_ = SourceLines();
    position_ = 0;
  }

  std::vector<PtxInstruction> instructions_;
  std::vector<std::size_t> functions_;  // index of the first instruction of each function
  std::vector<int> positions_;          // for each instruction: an index that its function's SourceLines returned
  std::vector<std::vector<std::vector<SourceLines::NumberedLine>>> lines_of_;  // for each function
  std::map<int, std::string> files_;
  std::string function_;
  SourceLines lines_;
  int position_ = 0, depth_ = 0, number_ = 0;
  bool in_statement_ = false;  // the previous line had no ;
};

}  // namespace

std::vector<PtxInstruction> parse_ptx_text(std::string_view text, const std::filesystem::path& root) {
  return Reader().read(text, root);
}

}  // namespace flash_ladder
