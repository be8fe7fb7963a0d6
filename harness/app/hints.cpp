#include "app/hints.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "app/selection.h"
#include "app/source_text.h"
#include "source/line_alignment.h"

namespace flash_ladder {
namespace {

// A file with its comments, because the headings are comments.
std::vector<CodeLine> lines_of(const std::filesystem::path& source) {
  std::vector<CodeLine> lines;
  std::ifstream file(source);
  for (std::string line; std::getline(file, line);)
    lines.push_back({static_cast<int>(lines.size()) + 1, std::move(line)});
  return lines;
}

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

// The lines before the given one that load the fragments that it uses, as "load_V_fragments<Traits>(V_rmem[next % 2],
// …" does.
std::vector<std::string> lines_that_load(const std::string& user, const std::filesystem::path& source_tree) {
  const auto [file, number] = split_place(user);
  const std::vector<CodeLine> lines = lines_of(source_tree / file);
  std::vector<std::string> places;
  if (number < 1 || number > std::ssize(lines)) return places;
  std::string statement;
  for (auto line = lines.begin() + number - 1; line != lines.end() && statement.find(';') == statement.npos; ++line)
    statement += line->text;
  for (const CodeLine& line : std::span(lines).first(static_cast<std::size_t>(number) - 1))
    for (const char* array : {"Q_rmem", "K_rmem", "V_rmem"})
      if (statement.find(array) != statement.npos &&
          line.text.find(fmt::format("<Traits>({}", array)) != line.text.npos)
        add_place(places, fmt::format("{}:{}", file, line.number));
  return places;
}

// ":74"
std::string line_of(const std::string& place) { return fmt::format(":{}", split_place(place).second); }

// ---- For a wrong output ----

// A place in a kernel file: the first (or the last) line that contains one of these words; the first word that occurs
// in the file counts. The names are those that all kernels use.
struct Place {
  std::vector<std::string_view> words;
  bool last = false;

  bool operator==(const Place&) const = default;
};

// Where a mistake like this one would be.
std::vector<Place> places_to_look_at(const Microscope& microscope) {
  std::vector<Place> places;
  const auto add = [&](std::initializer_list<Place> more) {
    for (const Place& place : more)
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
  };
  const Place load_K{{"void load_K_fragments(", "load_smem(k, ", "void start_S(", "S = Q Kᵀ"}},
      use_K{{"load_K_fragments<Traits>(", "start_S<Traits>("}, true},
      load_V{{"void load_V_fragments(", "load_smem(v[", "void start_PV(", "O += P V"}},
      use_V{{"load_V_fragments<Traits>(", "start_PV<Traits>("}, true},
      load_Q{{"void load_Q_fragments(", "load_smem(q, ", "load_Q = [", "Load Q", "Copy Q"}},
      use_Q{{"load_Q_fragments<Traits>(", "Chunks of Q to fragments"}, true},
      pack{{"P_rmem[mma_m][mma_k][i] = pack", "P_rmem[mma_k][i] = pack", "&P_smem[", "P to 16 bits"}},
      store{{"Normalise and store O", "Normalise O, and store it"}}, store_in_smem{{"&tile_smem[smem_offset("}},
      swizzle{{"int smem_offset("}}, copy_Q{{"Copy Q", "copy_Q = ["}},
      copy_K{{"Copy the next K", "copy_KV_tile = [", "copy_K = [", "Copy K and V", "void copy_tile("}},
      copy_V{{"Copy V", "copy_KV_tile = [", "copy_V = [", "Copy K and V", "void copy_tile("}};
  const Place row_max{{"row_max[mma_m][half] = ", "row_max[half] = ", "row_max[row] = new_max", "row_max = "}, true},
      row_sum{{"row_sum[mma_m][half] = row_sum", "row_sum[mma_m][half] *= ", "row_sum[half] = row_sum",
               "row_sum[half] *= ", "row_sum[0] *= ", "row_sum[row] = row_sum", "row_sum = row_sum"}},
      add_sum{{"row_sum[mma_m][half] += ", "row_sum[0] += "}}, all_sync{{"!__all_sync("}},
      rescale_O{{"O_rmem[mma_m][mma_n][i] *= ", "O_rmem[mma_n][i] *= ", "O_rmem[row][i / 4][i % 4] *= ",
                 "O_rmem[i] = O_rmem[i]"}},
      group_max{{"= group_max(", "group_max(S_max)", "group_max(tile_max", "= row_threads_max("}},
      group_sum{{"float group_sum(", "float row_threads_sum("}},
      divide{{"inverse_sum = ", "inverse_sum[2] = ", "/ row_sum"}};
  for (const SeenLayout& layout : microscope.layouts) {
    if (layout.wrong == 0) continue;
    const bool whole_rows = !layout.first;
    if (layout.tensor == "V" || whole_rows) add({load_V, use_V});
    if (layout.tensor == "K") add({load_K, use_K, load_Q, use_Q});
    if (whole_rows) add({pack});
    add({swizzle});
  }
  if (!microscope.diagnosis) return places;
  const auto& [sentences, suggests, first, experiments] = *microscope.diagnosis;
  for (const std::string& name : suggests) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const char tensor = name.size() > 1 && name[1] == '_' ? name[0] : ' ';
    if (has("other_head") || has("other_tile")) {
      if (tensor == 'Q') add({Place{{"args.Q.row<", "row_of(args.Q"}}});
      if (tensor == 'K' || has("KV_")) add({Place{{"args.K.row<", "row_of(args.K"}}});
      if (tensor == 'V' || has("KV_")) add({Place{{"args.V.row<", "row_of(args.V"}}});
      if (tensor == 'O') add({Place{{"args.O.row<", "row_of(args.O"}}});
    } else if (has("tile") || has("step") || has("last_key") || has("seq_len")) {
      if (tensor != 'V') add({copy_K});
      if (tensor != 'K') add({copy_V});
      add({Place{{"< args.seq_len_kv"}}});
    } else {
      if (tensor == 'K') add({load_K, use_K});
      if (tensor == 'V') add({load_V, use_V});
      if (tensor == 'Q') add({load_Q, use_Q});
    }
    if (tensor == 'Q' || name.starts_with("V_columns")) add({store, store_in_smem});
    if (has("_rows_xor")) add({pack});
    if (has("swizzle")) add({swizzle});
    if (has("max_of_one_lane")) add({group_max, Place{{"float group_max("}}});
    if (has("sum_of_one_lane")) add({group_sum, divide});
    if (has("sum_not_rescaled")) add({row_sum});
    if (has("O_not_rescaled")) add({rescale_O});
    if (has("nothing_rescaled") || has("max_not_kept")) add({row_max});
    if (has("scale_") || has("log2e") || has("score_factor"))
      add({Place{{"*= args.softmax_scale", "args.softmax_scale *", "args.softmax_scale"}},
           Place{{"float exp_approx("}}});
  }
  if (!suggests.empty()) return places;
  const auto failed = [&](const char* name) {
    return std::ranges::any_of(experiments, [&](const Experiment& e) { return e.name == name && !e.right; });
  };
  if (failed("V = 1"))
    add({group_sum, all_sync, row_max, rescale_O, row_sum, add_sum, pack, divide});
  else if (failed("Q = 0"))
    add({load_V, use_V, store});
  return places;
}

const CodeLine* find_line(const std::vector<CodeLine>& lines, std::string_view word, bool last) {
  const auto has = [&](const CodeLine& line) { return line.text.find(word) != std::string::npos; };
  const auto first = std::ranges::find_if(lines, has);
  if (first == lines.end()) return nullptr;
  return last ? &*std::prev(std::find_if(lines.rbegin(), lines.rend(), has).base()) : &*first;
}

// Finds lines of another version that are missing from a file without a replacement: the result is the lines around the
// gap.
class Gaps {
 public:
  Gaps(const std::vector<CodeLine>& other, const std::vector<CodeLine>& lines)
      : other_(other), lines_(lines), forward_(align_lines(other, lines)) {}

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

Hints hints_from(const Microscope& microscope, const Version& version, const std::filesystem::path& source_tree) {
  const auto file = source_file(version, source_tree);
  const std::vector<CodeLine> lines = lines_of(file), code = numbered_code_lines(file);
  const Version* before = version_before(version);
  const std::vector<CodeLine> lines_before =
      before ? numbered_code_lines(source_file(*before, source_tree)) : std::vector<CodeLine>{};
  const Gaps gaps(lines_before, code);
  std::vector<int> numbers;
  Hints hints;
  for (const Place& place : places_to_look_at(microscope)) {
    const auto in_file = std::ranges::find_if(
        place.words, [&](std::string_view word) { return find_line(lines, word, place.last) != nullptr; });
    if (in_file != place.words.end()) {
      numbers.push_back(find_line(lines, *in_file, place.last)->number);
      continue;
    }
    for (const std::string_view word : place.words) {
      const CodeLine* missing = find_line(lines_before, word, place.last);
      const auto around = missing ? gaps.around(*missing) : std::nullopt;
      if (!around) continue;
      numbers.insert(numbers.end(), {around->first, around->second});
      hints.notes.push_back(fmt::format("Between :{} and :{}, {} has `{}`, and this file has nothing in its place.",
                                        around->first, around->second, label(*before), missing->text));
      break;
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
