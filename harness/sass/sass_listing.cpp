#include "sass/sass_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <utility>

#include "sass/configuration_code.h"
#include "sass/machine_code.h"
#include "sass/ptx_text.h"
#include "sass/sass_code.h"
#include "trimmed.h"

namespace flash_ladder {
namespace {

// The PTX line number in `//## File ".nv_debug_ptx_txt", line 813`.
int ptx_line_of(std::string_view line) {
  constexpr std::string_view kLine = ", line ";
  const std::size_t at = line.find(kLine);
  int number = 0;
  if (at != std::string_view::npos) std::from_chars(line.data() + at + kLine.size(), line.data() + line.size(), number);
  return number;
}

// Renames `(.L_x_12) to L3.
void rename_labels(std::string& text, const std::map<std::string, std::string>& names) {
  for (std::size_t at = 0; (at = text.find("`(", at)) != std::string::npos;) {
    const std::size_t end = text.find(')', at);
    if (end == std::string::npos) return;
    const auto name = names.find(text.substr(at + 2, end - at - 2));
    const std::string shown = name == names.end() ? "subroutine" : name->second;
    text.replace(at, end + 1 - at, shown);
    at += shown.size();
  }
}

// The functions of the text; the functions of sass_code.h show which instructions are padding.
struct Parsed {
  std::vector<SassText> functions;
  std::vector<SassFunction> code;
};

Parsed parse(std::string_view text) {
  Parsed parsed{.functions = {}, .code = parse_sass(text)};
  std::map<std::string, std::string> names;  // new names for the labels of the current function
  int ptx_line = 0;
  const auto end_function = [&] {
    if (parsed.functions.empty()) return;
    for (SassInstruction& instruction : parsed.functions.back().instructions) rename_labels(instruction.text, names);
    names.clear();
  };
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    constexpr std::string_view kSection = ".text.", kFile = "//## File ";
    const std::string_view content = trimmed(line);
    if (line.ends_with(':') && !std::isspace(static_cast<unsigned char>(line.front()))) {
      const std::string name(line.substr(0, line.size() - 1));
      if (name.starts_with(kSection)) {
        end_function();
        parsed.functions.push_back({.name = name.substr(kSection.size()), .instructions = {}, .labels = {}});
        ptx_line = 0;
      } else if (!parsed.functions.empty()) {
        SassText& function = parsed.functions.back();
        names[name] = fmt::format("L{}", names.size() + 1);
        function.labels.emplace(function.instructions.size(), names[name]);
      }
    } else if (content.starts_with(kFile)) {
      ptx_line = ptx_line_of(content);
    } else if (content.starts_with("/*") && content.find(';') != std::string_view::npos && !parsed.functions.empty()) {
      const std::size_t start = content.find("*/") + 2;
      SassInstruction instruction;
      instruction.text = trimmed(content.substr(start, content.find(';') - start));
      instruction.ptx_line = ptx_line;
      parsed.functions.back().instructions.push_back(std::move(instruction));
    }
  }
  end_function();

  for (std::size_t i = 0; i < parsed.functions.size(); ++i) {
    auto& instructions = parsed.functions[i].instructions;
    std::size_t next = 0;
    for (const BasicBlock& block : parsed.code.at(i).blocks)
      for (const std::string& opcode : block.opcodes) instructions.at(next++).opcode = opcode;
    instructions.resize(next);
    std::erase_if(parsed.functions[i].labels, [&](const auto& label) { return label.first > next; });
  }
  return parsed;
}

}  // namespace

std::vector<SassText> parse_sass_text(std::string_view text) { return parse(text).functions; }

std::string without_registers(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size();) {
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    if (!is_word(text[i])) {
      plain += text[i++];
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && is_word(text[end])) ++end;
    std::string word = text.substr(i, end - i);
    // A register is one or two letters and its number; opcodes and hexadecimal numbers do not match.
    const std::size_t digits = word.find_first_of("0123456789");
    const std::string letters = word.substr(0, digits);
    static const std::set<std::string> kRegisters = {"R", "UR", "P", "UP", "B", "SB"};
    const bool numbered =
        digits != std::string::npos && digits > 0 && word.find_first_not_of("0123456789", digits) == std::string::npos;
    const bool is_modifier = i > 0 && text[i - 1] == '.';
    if (numbered && !is_modifier && kRegisters.contains(letters)) word = letters;
    plain += word;
    i = end;
  }
  // The register allocator also decides which operands are read from the operand cache.
  constexpr std::string_view kReuse = ".reuse";
  for (std::size_t at; (at = plain.find(kReuse)) != std::string::npos;) plain.erase(at, kReuse.size());
  return plain;
}

std::vector<SassText> sass_text(const Version& version, const Configuration& configuration, const std::string& code,
                                const std::filesystem::path& directory, const std::filesystem::path& root) {
  const std::string stem = fmt::format("{}.{}", label(version), code);
  Parsed parsed = parse(needed_machine_code(directory, stem));
  Parsed chosen;
  for (std::size_t i = 0; i < parsed.functions.size(); ++i)
    if (belongs_to(parsed.functions[i].name, configuration)) {
      chosen.functions.push_back(std::move(parsed.functions[i]));
      chosen.code.push_back(std::move(parsed.code[i]));
    }
  if (chosen.functions.empty()) refuse_code(directory / (stem + ".sass"), configuration);

  const auto ptx_file = directory / fmt::format("{}.compute_{}.ptx", label(version), code.substr(code.find('_') + 1));
  std::map<int, SourcePosition> positions;  // by line of the PTX
  for (PtxInstruction& instruction : parse_ptx_text(needed_study_file(ptx_file), root))
    positions[instruction.line] = std::move(instruction.position);
  for (SassText& function : chosen.functions)
    for (SassInstruction& instruction : function.instructions)
      if (const auto found = positions.find(instruction.ptx_line); found != positions.end())
        instruction.position = found->second;

  if (const auto hot = hot_loop(chosen.code)) {
    const SassFunction& function = chosen.code[hot->function];
    std::size_t next = 0;
    for (std::size_t block = 0; block < function.blocks.size(); ++block) {
      const bool inside =
          std::find(hot->blocks.begin(), hot->blocks.end(), static_cast<int>(block)) != hot->blocks.end();
      for (std::size_t i = 0; i < function.blocks[block].opcodes.size(); ++i)
        chosen.functions[hot->function].instructions[next++].in_hot_loop = inside;
    }
  }
  return std::move(chosen.functions);
}

}  // namespace flash_ladder
