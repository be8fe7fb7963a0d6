#include "app/card/hints.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "app/card/source_text.h"
#include "app/options/selection.h"
#include "source/line_alignment.h"
#include "source/named_places.h"
#include "source/tokens.h"

namespace flash_ladder {
namespace {

// ---- For a finding ----

std::vector<std::string> lines_in_kernels(const SourcePosition& position) {
  std::vector<std::string> lines;
  std::ranges::copy_if(position, std::back_inserter(lines), is_in_kernels);
  return lines;
}

// The lines that distinguish one side of a finding from the other, outermost first. If the two sides reach the same
// line along different paths, these are all the lines that differ; otherwise the helpers carry no information, and the
// result is the line of the kernel itself.
std::vector<std::string> lines_of_side(const SourcePosition& position, const SourcePosition& other) {
  const std::vector<std::string> lines = lines_in_kernels(position);
  std::vector<std::string> own;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    if (std::ranges::find(other, *line) == other.end()) own.push_back(*line);
  if (own.empty()) return lines.empty() ? lines : std::vector{lines.back()};
  if (own.size() == lines.size()) own.resize(1);
  return own;
}

void add_place(std::vector<std::string>& places, const std::string& place) {
  if (std::ranges::find(places, place) == places.end()) places.push_back(place);
}

// The tokens that follow a certain one.
std::set<std::string> names_after(std::string_view line, std::string_view before) {
  std::set<std::string> names;
  const std::vector<Token> found = tokens(line);
  for (std::size_t i = 0; i + 1 < found.size(); ++i)
    if (found[i].text == before) names.insert(found[i + 1].text);
  return names;
}

// The lines before the given one that load the fragments that it uses. A line that uses some hands them to a function
// after the first argument, and a line that loads them has them as the first argument.
std::vector<std::string> lines_that_load(const std::string& user, const std::filesystem::path& source_tree) {
  const auto [file, number] = split_place(user);
  const std::vector<CodeLine> lines = numbered_code_lines(source_tree / file);
  std::vector<std::string> places;
  const auto at = std::ranges::find(lines, number, &CodeLine::number);
  if (at == lines.end()) return places;
  std::string statement;
  for (auto line = at; line != lines.end() && statement.find(';') == statement.npos; ++line) statement += line->text;
  const std::set<std::string> used = names_after(statement, ",");
  for (auto line = lines.begin(); line != at; ++line)
    if (std::ranges::any_of(names_after(line->text, "("), [&](const auto& name) { return used.contains(name); }))
      add_place(places, fmt::format("{}:{}", file, line->number));
  return places;
}

// ":74"
std::string line_of(const std::string& place) { return fmt::format(":{}", split_place(place).second); }

// ---- For a wrong output ----

// Where a mistake like this one would be.
std::vector<Place> places_to_look_at(const DebugReport& report) {
  std::vector<Place> places;
  const auto add = [&](std::initializer_list<Place> more) {
    for (const Place& place : more)
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
  };
  using namespace debug_places;
  for (const SeenLayout& layout : report.layouts) {
    if (layout.wrong == 0) continue;
    const bool whole_rows = !layout.first;
    if (layout.tensor == "V" || whole_rows) add({load_V, use_V});
    if (layout.tensor == "K") add({load_K, use_K, load_Q, use_Q});
    if (whole_rows) add({pack});
    add({swizzle});
  }
  if (!report.diagnosis) return places;
  const auto& [sentences, suggests, first, experiments] = *report.diagnosis;
  for (const std::string& name : suggests) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const char tensor = name.size() > 1 && name[1] == '_' ? name[0] : ' ';
    if (has("other_head") || has("other_tile")) {
      if (tensor == 'Q') add({rows_of_Q});
      if (tensor == 'K' || has("KV_")) add({rows_of_K_and_V});
      if (tensor == 'V' || has("KV_")) add({rows_of_K_and_V});
      if (tensor == 'O') add({store});
    } else if (has("tile") || has("step") || has("last_key") || has("seq_len")) {
      if (tensor != 'V') add({copy_K});
      if (tensor != 'K') add({copy_V});
      add({loop});
    } else {
      if (tensor == 'K') add({load_K, use_K});
      if (tensor == 'V') add({load_V, use_V});
      if (tensor == 'Q') add({load_Q, use_Q});
    }
    if (tensor == 'Q' || name.starts_with("V_columns")) add({store});
    if (has("_rows_xor")) add({pack});
    if (has("swizzle")) add({swizzle});
    if (has("max_of_one_lane")) add({whole_row, over_the_lanes});
    if (has("sum_of_one_lane")) add({over_the_lanes, divide});
    if (has("sum_not_rescaled")) add({l});
    if (has("O_not_rescaled")) add({rescale_O});
    if (has("nothing_rescaled") || has("max_not_kept")) add({m});
    if (has("scale_") || has("log2e") || has("score_factor")) add({scale, exponential});
  }
  if (!suggests.empty()) return places;
  const auto failed = [&](const char* name) {
    return std::ranges::any_of(experiments, [&](const Experiment& e) { return e.name == name && !e.right; });
  };
  if (failed("V = 1"))
    add({over_the_lanes, all_lanes, m, rescale_O, l, add_to_l, pack, divide});
  else if (failed("Q = 0"))
    add({load_V, use_V, store});
  return places;
}

std::optional<int> find_line(const std::vector<CodeLine>& lines, const Place& place) {
  for (const std::string_view name : place)
    if (const auto number = line_of_place(lines, name)) return number;
  return std::nullopt;
}

// Finds lines of another version that are missing from a file without a replacement: the result is the lines around the
// gap.
class Gaps {
 public:
  Gaps(const std::vector<CodeLine>& other, const std::vector<CodeLine>& lines)
      : other_(other), lines_(lines), forward_(align_lines(other, lines)) {}

  /// The line that the file has instead, which may have lost its comment.
  std::optional<int> counterpart(const CodeLine& line) const {
    const auto found = forward_.find(line.number);
    return found == forward_.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<std::pair<int, int>> around(const CodeLine& missing) const {
    const auto is_there = [&](const CodeLine& line) { return forward_.contains(line.number); };
    const auto at = other_.begin() + (&missing - other_.data());
    const auto after = std::find_if(at, other_.end(), is_there);
    const auto before = std::find_if(std::make_reverse_iterator(at), other_.rend(), is_there);
    if (after == at || after == other_.end() || before == other_.rend()) return std::nullopt;
    const int first = forward_.at(before->number), last = forward_.at(after->number);
    const auto next = std::ranges::upper_bound(lines_, first, {}, &CodeLine::number);
    if (next == lines_.end() || next->number != last) return std::nullopt;
    return std::pair(first, last);
  }

 private:
  const std::vector<CodeLine>&other_, &lines_;
  const std::map<int, int> forward_;
};

}  // namespace

Hints hints_from(const Finding& finding, const std::filesystem::path& source_tree) {
  Hints hints;
  const std::vector<std::string> own = lines_of_side(finding.position, finding.other_position),
                                 other = lines_of_side(finding.other_position, finding.position);
  // In chronological order: the other side and its wait, if it is known, then this side and its wait. (A helper that
  // waits is called by the kernel.)
  const auto add_wait = [&](std::size_t i) {
    const auto lines = i < finding.waits.size() ? lines_in_kernels(finding.waits[i]) : std::vector<std::string>{};
    if (!lines.empty()) add_place(hints.places, lines.back());
  };
  add_wait(1);
  for (const std::string& place : other) add_place(hints.places, place);
  add_wait(0);
  for (const std::string& place : own) add_place(hints.places, place);
  if (own.empty()) return hints;
  if (finding.kind == "uninitialised_read" && !finding.address) {
    std::vector<std::string> places = lines_that_load(own.front(), source_tree);
    for (const std::string& place : hints.places) add_place(places, place);
    hints.places = std::move(places);
  }
  if (other.empty()) {
    // An address is computed in the function that uses it, whereas a wait is a line of the kernel, whichever function
    // it calls.
    if (finding.kind != "deadlock") add_place(hints.places, lines_in_kernels(finding.position).front());
    return hints;
  }
  if (finding.kind == "overlapping_copies")
    hints.notes.push_back(
        "One of the two has the wrong destination, or comes before anything has waited for the other.");
  if (finding.kind == "race" && other.front() == own.front())
    hints.notes.push_back(
        fmt::format("A barrier or a wait must come before {} is reached again.", line_of(own.front())));
  else if (finding.kind == "race")
    hints.notes.push_back(
        fmt::format("A barrier or a wait must order {} before {}. It is missing between them, it waits for something "
                    "else, or one of the two goes to the wrong bytes.",
                    line_of(other.front()), line_of(own.front())));
  if (finding.kind == "in_flight")
    hints.notes.push_back(
        fmt::format("A wait must come between {} and {}.", line_of(other.front()), line_of(own.front())));
  return hints;
}

Hints hints_from(const DebugReport& report, const Version& version, const std::filesystem::path& source_tree) {
  return hints_at(places_to_look_at(report), version, source_tree);
}

Hints hints_at(const std::vector<Place>& places, const Version& version, const std::filesystem::path& source_tree) {
  const auto file = source_file(version, source_tree);
  const std::vector<CodeLine> lines = lines_with_comments(file), code = numbered_code_lines(file);
  const Version* before = version_before(version);
  const auto file_before = before ? source_file(*before, source_tree) : std::filesystem::path();
  const std::vector<CodeLine> lines_before = lines_with_comments(file_before);
  const std::vector<CodeLine> code_before = before ? numbered_code_lines(file_before) : std::vector<CodeLine>{};
  const Gaps gaps(code_before, code);
  std::vector<int> numbers;
  Hints hints;
  for (const Place& place : places) {
    if (const auto number = find_line(lines, place)) {
      numbers.push_back(*number);
      continue;
    }
    const auto missing = std::ranges::find(code_before, find_line(lines_before, place).value_or(0), &CodeLine::number);
    if (missing == code_before.end()) continue;
    if (const auto number = gaps.counterpart(*missing)) {
      numbers.push_back(*number);
    } else if (const auto around = gaps.around(*missing)) {
      numbers.insert(numbers.end(), {around->first, around->second});
      hints.notes.push_back(fmt::format("Between :{} and :{}, {} has `{}`, and this file has nothing in its place.",
                                        around->first, around->second, label(*before), missing->text));
    }
  }
  std::ranges::sort(numbers);
  const auto repeated = std::ranges::unique(numbers);
  numbers.erase(repeated.begin(), repeated.end());
  for (const int number : numbers) hints.places.push_back(fmt::format("{}:{}", version.source, number));
  return hints;
}

std::string format_hints(const Hints& hints, const std::filesystem::path& source_tree, const Paint& paint) {
  SourceText source(source_tree);
  constexpr std::size_t kLabel = 12;
  const std::size_t width = text_width() - std::min<std::size_t>(text_width(), kLabel);
  std::string text;
  for (const std::string& place : hints.places)
    text += pad(text.empty() ? paint.dim("Look at") : "", kLabel) +
            shortened(fmt::format("{}  {}", place, source.line(place)), width) + '\n';
  for (const std::string& note : hints.notes) text += labelled("", note);
  return text;
}

std::string format_findings(const Result& result, bool all, const Paint& paint) {
  if (result.findings.empty()) return "";
  const std::int64_t kinds = result.findings_kinds;
  std::string text = paint.bad(kinds == 1 ? "1 mistake found\n" : fmt::format("{} findings\n", kinds));
  const std::size_t shown = all ? result.findings.size() : 1;
  for (std::size_t i = 0; i < shown; ++i) text += wrapped(result.findings[i].text, output_width(), 4) + '\n';
  if (const auto more = kinds - static_cast<std::int64_t>(shown); more > 0)
    text += all ? fmt::format("… and {} more\n", more)
                : fmt::format("… and {} more that may follow from it; --all-findings shows them\n", more);
  return text;
}

}  // namespace flash_ladder
