#include "app/sass/listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/card/source_text.h"
#include "app/options/output.h"
#include "app/options/parse_integer.h"
#include "app/options/selection.h"
#include "app/run/configuration_choice.h"
#include "app/run/kernel_code.h"
#include "app/run/up_to_date.h"
#include "app/terminal/terminal.h"
#include "emulator/function_name.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "sass/configuration_code.h"
#include "sass/machine_code.h"
#include "sass/ptx_text.h"
#include "sass/sass_listing.h"

namespace flash_ladder {
namespace {

// One version's code: the version, the configuration and the architecture.
struct Code {
  const Version& version;
  const Configuration& configuration;
  std::string name;      // "sm_90"
  std::string ptx_name;  // "compute_90"
  std::vector<SassText> sass;

  std::string title() const {
    return fmt::format("{} {} {} {}", label(version), configuration.name, to_string(configuration.dtype), name);
  }
};

Code code_of(const Options& options, const char* flag) {
  const auto selected = select_versions(options.kernels);
  if (selected.size() != 1)
    throw UsageError(
        fmt::format("{} shows one version, and --kernel '{}' names {}", flag, options.kernels, selected.size()));
  const Version& version = select_with_code(options.kernels);
  if (const auto file = newer_source(selected, options.paths.source))
    complain(
        fmt::format("warning: {} is newer than the compiled code, so line numbers may differ; build again", *file));
  const int sm = options.sm.value_or(kDefaultSm);
  const AttentionProblem problem = for_version(options, version).problem;
  const auto choice = choose_configuration(version, options.config, problem, std::nullopt, sm);
  if (!choice.configuration) throw UsageError(choice.why_not);
  const std::string name = code_name(version, sm);
  return {version, *choice.configuration, name, "compute_" + name.substr(3),
          sass_text(version, *choice.configuration, name, options.paths.study, FLASH_LADDER_SOURCE_DIR)};
}

// Comments after code are aligned in columns in the source.
std::string with_single_blanks(std::string text) {
  text.erase(std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }), text.end());
  return text;
}

// Where an instruction comes from, to print at the end of its line.
std::string origin(const SassInstruction& instruction, bool with_numbers, SourceText& source) {
  const SourcePosition position = in_kernel_file(instruction.position);
  if (position.empty()) return "";
  const std::string code = with_single_blanks(source.line(position.front()));
  if (!with_numbers) return code.empty() ? split_place(position.front()).first : code;
  return describe_position(position) + (code.empty() ? "" : "  " + code);
}

constexpr std::size_t kInstructionWidth = 56, kIndent = 4;

std::string format_function(const SassText& function, bool with_registers, SourceText& source, const Paint& paint) {
  const std::size_t width = output_width();
  std::string text = paint.bold(emulator::function_name(function.name) + ":") + '\n';
  bool in_loop = false;
  for (std::size_t i = 0; i < function.instructions.size(); ++i) {
    const SassInstruction& instruction = function.instructions[i];
    for (auto [label, end] = function.labels.equal_range(i); label != end; ++label) text += label->second + ":\n";
    if (instruction.in_hot_loop != in_loop) {
      in_loop = !in_loop;
      text += paint.notable(in_loop ? "// the hot loop" : "// no longer the hot loop") + '\n';
    }
    const std::string code =
        std::string(kIndent, ' ') + (with_registers ? instruction.text : without_registers(instruction.text));
    std::string line = code;
    if (const std::string from = origin(instruction, with_registers, source); !from.empty()) {
      const std::string before = pad(code, kInstructionWidth) + " ";
      const std::size_t used = display_width(before);
      if (used + 8 < width) line = before + paint.dim(shortened("// " + from, width - used));
    }
    text += shortened(line, line == code ? width : line.size()) + '\n';
  }
  return text;
}

// ---- --ptx ----

// What --ptx requests.
struct Wanted {
  enum class Kind { source_line, ptx_line, opcode } kind;
  std::string place;  // for a source line: "kernels/07_ldmatrix.cu:171"; for an opcode: its beginning
  int line = 0;       // line of the PTX
};

Wanted parse_wanted(const std::string& text, const Version& version) {
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  };
  constexpr int kMostLines = 10'000'000;
  const std::size_t colon = text.rfind(':');
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  const std::string file = colon == std::string::npos ? "" : text.substr(0, colon);
  if (is_number(number)) {
    const int line = parse_integer<int>("--ptx", number, 1, kMostLines);
    if (file == "ptx") return {Wanted::Kind::ptx_line, "", line};
    return {Wanted::Kind::source_line, fmt::format("{}:{}", file.empty() ? version.source : file, line), 0};
  }
  if (text.empty() || colon != std::string::npos || !std::isalpha(static_cast<unsigned char>(text.front())))
    throw UsageError(fmt::format(
        "--ptx '{}' is neither a line nor an instruction; write 171 for a line of {}, common/ptx.h:59 for a line of "
        "another file, ptx:3659 for a line of the PTX, or ldmatrix for all PTX instructions whose names begin with it",
        text, version.source));
  return {Wanted::Kind::opcode, text, 0};
}

// "12 LDSM, 4 LEA", most frequent first.
std::string summarised(const std::map<std::string, int>& counts) {
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> parts;
  for (const auto& [name, count] : sorted) parts.push_back(fmt::format("{} {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// PTX and the SASS that it became.
struct Followed {
  std::vector<PtxInstruction> ptx;
  std::map<int, std::vector<const SassInstruction*>> sass;  // by line of the PTX
};

Followed follow(const Code& code, const Wanted& wanted, const std::vector<PtxInstruction>& all) {
  Followed followed;
  const auto is_of_line = [&](const SourcePosition& position) {
    return std::find(position.begin(), position.end(), wanted.place) != position.end();
  };
  std::set<int> lines;
  for (const PtxInstruction& instruction : all) {
    const bool chosen = wanted.kind == Wanted::Kind::source_line ? is_of_line(instruction.position)
                        : wanted.kind == Wanted::Kind::ptx_line  ? instruction.line == wanted.line
                                                                 : instruction.opcode.starts_with(wanted.place);
    if (!chosen) continue;
    followed.ptx.push_back(instruction);
    lines.insert(instruction.line);
  }
  for (const SassText& function : code.sass)
    for (const SassInstruction& instruction : function.instructions)
      if (lines.contains(instruction.ptx_line)) followed.sass[instruction.ptx_line].push_back(&instruction);
  return followed;
}

std::string not_found(const Wanted& wanted, const Code& code, const std::vector<PtxInstruction>& all) {
  if (wanted.kind == Wanted::Kind::ptx_line) {
    const std::string range =
        all.empty() ? "there are none" : fmt::format("they are on lines {} to {}", all.front().line, all.back().line);
    return fmt::format("line {} of the PTX has no instruction of {} {}; {} of {}.{}.ptx", wanted.line,
                       label(code.version), code.configuration.name, range, label(code.version), code.ptx_name);
  }
  if (wanted.kind == Wanted::Kind::opcode) {
    std::map<std::string, int> opcodes;
    for (const PtxInstruction& instruction : all) ++opcodes[instruction.opcode.substr(0, instruction.opcode.find('.'))];
    return fmt::format("no PTX instruction of {} begins with '{}'; there are {}", label(code.version), wanted.place,
                       summarised(opcodes));
  }
  const auto [file, line] = split_place(wanted.place);
  std::set<int> lines;  // lines of that file that have code
  for (const PtxInstruction& instruction : all)
    for (const std::string& place : instruction.position)
      if (const auto [its_file, its_line] = split_place(place); its_file == file) lines.insert(its_line);
  if (lines.empty())
    return fmt::format("no code of {} {} comes from {}", label(code.version), code.configuration.name, file);
  std::vector<std::string> nearest;
  const auto after = lines.upper_bound(line);
  if (after != lines.begin()) nearest.push_back(std::to_string(*std::prev(after)));
  if (after != lines.end()) nearest.push_back(std::to_string(*after));
  return fmt::format(
      "no code of {} {} comes from {}: it is a declaration, a comment, or evaluated at compile time; the nearest "
      "line with code is {}",
      label(code.version), code.configuration.name, wanted.place, fmt::join(nearest, " or "));
}

std::string format_sass_line(const SassInstruction& instruction, std::size_t width) {
  const char* mark = instruction.in_hot_loop ? "  (hot loop)" : "";
  return shortened(fmt::format("          → {}{}", instruction.text, mark), width) + '\n';
}

std::string format_followed(const Code& code, const Wanted& wanted, const Followed& followed, const Options& options,
                            const Paint& paint) {
  SourceText source(options.paths.source);
  const std::size_t width = output_width();
  std::string text = paint.bold(code.title()) + '\n';
  if (wanted.kind == Wanted::Kind::source_line)
    text += shortened(fmt::format("{}  {}", wanted.place, source.line(wanted.place)), width) + '\n';

  std::map<std::string, int> made_of, became, gone;
  int in_loop = 0;
  for (const PtxInstruction& instruction : followed.ptx) {
    ++made_of[instruction.opcode];
    const auto found = followed.sass.find(instruction.line);
    if (found == followed.sass.end()) ++gone[instruction.opcode];
  }
  const auto count = [&](const SassInstruction* instruction) {
    ++became[instruction->opcode];
    in_loop += instruction->in_hot_loop ? 1 : 0;
  };
  for (const auto& [line, instructions] : followed.sass) std::for_each(instructions.begin(), instructions.end(), count);
  text += labelled(paint.dim("PTX"),
                   summarised(made_of) + fmt::format("; of {}.{}.ptx", label(code.version), code.ptx_name));
  text +=
      labelled(paint.dim("SASS"), became.empty() ? "none has its line: it was folded into other instructions, was not "
                                                   "needed, or (as with wgmma) has the line of a neighbour"
                                                 : fmt::format("{} ({} in the hot loop)", summarised(became), in_loop));
  if (!gone.empty() && !became.empty())
    text += labelled(
        "", fmt::format("without SASS of their own: {}; they were folded into others, were not needed, or have a "
                        "neighbour's line",
                        summarised(gone)));
  text += '\n';

  std::string place;
  for (std::size_t i = 0; i < followed.ptx.size(); ++i) {
    const PtxInstruction& instruction = followed.ptx[i];
    if (const std::string now = describe_position(in_kernel_file(instruction.position)); now != place) {
      place = now;
      const SourcePosition position = in_kernel_file(instruction.position);
      text += paint.dim(shortened(fmt::format("{}  {}", place, position.empty() ? "" : source.line(position.front())),
                                  width)) +
              '\n';
    }
    text += shortened(fmt::format("{:>8}  {}", instruction.line, instruction.text), width) + '\n';
    if (i + 1 < followed.ptx.size() && followed.ptx[i + 1].line == instruction.line) continue;  // known by line
    if (const auto found = followed.sass.find(instruction.line); found != followed.sass.end())
      for (const SassInstruction* made : found->second) text += paint.good(format_sass_line(*made, width));
  }
  return text;
}

}  // namespace

int list_sass(const Options& options) {
  const Code code = code_of(options, "--listing");
  const Paint paint;
  SourceText source(options.paths.source);
  std::string text = paint.dim("// " + code.title()) + '\n';
  for (const SassText& function : code.sass) text += '\n' + format_function(function, options.registers, source, paint);
  write_out(text);
  return kExitOk;
}

int follow_ptx(const Options& options) {
  const Code code = code_of(options, "--ptx");
  const Wanted wanted = parse_wanted(options.ptx, code.version);
  const auto file = options.paths.study / fmt::format("{}.{}.ptx", label(code.version), code.ptx_name);
  std::vector<PtxInstruction> all = parse_ptx_text(needed_study_file(file), FLASH_LADDER_SOURCE_DIR);
  std::erase_if(all, [&](const PtxInstruction& one) { return !belongs_to(one.function, code.configuration); });
  const Followed followed = follow(code, wanted, all);
  if (followed.ptx.empty()) throw UsageError(not_found(wanted, code, all));
  write_out(format_followed(code, wanted, followed, options, Paint()));
  return kExitOk;
}

}  // namespace flash_ladder
