#include "app/card/counters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "app/card/source_text.h"
#include "app/options/selection.h"
#include "results/counter_text.h"
#include "source/line_alignment.h"

namespace flash_ladder {
namespace {

// ---- source lines ----

// Everything that was counted at one place, including what it calls in other files.
struct Line {
  std::string kernel;
  SourcePosition position;
  Counters counters;
};

// By line of the kernel's file and by the calls that led there, in file order.
std::vector<Line> lines_of_kernel_file(const Result& result) {
  std::map<std::vector<std::pair<std::string, int>>, Line> lines;
  for (const LineCounters& counted : result.lines) {
    const SourcePosition position = in_kernel_file(counted.position);
    std::vector<std::pair<std::string, int>> key;
    for (const std::string& place : position) key.push_back(split_place(place));
    key.emplace_back(counted.kernel, 0);
    Line& line = lines[key];
    line.kernel = counted.kernel;
    line.position = position;
    line.counters += counted.counters;
  }
  std::vector<Line> sorted;
  for (auto& [key, line] : lines) sorted.push_back(std::move(line));
  return sorted;
}

// What each __global__ function did if the version has several, in launch order: the sums of the lines' counters.
std::vector<std::string> describe_kernels(const Result& result) {
  std::vector<std::pair<std::string, Counters>> kernels;
  for (const LineCounters& line : result.lines) {
    if (kernels.empty() || kernels.back().first != line.kernel) kernels.emplace_back(line.kernel, Counters());
    kernels.back().second += line.counters;
  }
  std::vector<std::string> texts;
  if (kernels.size() < 2) return texts;
  for (const auto& [name, counters] : kernels) {
    std::string text = fmt::format("{} {} warp instructions", name, grouped(counters.warp_instructions));
    if (const MemoryCost shared = shared_wavefronts(counters); shared.actual > 0)
      text += fmt::format(", {} wavefronts", grouped(shared.actual));
    if (const MemoryCost global = global_sectors(counters); global.actual > 0)
      text += fmt::format(", {} sectors", grouped(global.actual));
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe_counters(const Result& result) {
  if (!result.counters) return {};
  std::vector<std::pair<std::string, std::string>> lines = describe_counters(*result.counters);
  lines.emplace_back("Roles", emulator::describe(result.roles));
  lines.emplace_back("By kernel", fmt::format("{}", fmt::join(describe_kernels(result), "; ")));
  return lines;
}

CounterSummary summarise_counters(const Result& result) {
  if (!result.counters) return {"-", "-", "-"};
  const auto instructions = static_cast<double>(result.counters->warp_instructions);
  const std::string count = instructions < 1e4   ? fmt::format("{:.0f}", instructions)
                            : instructions < 1e6 ? fmt::format("{:.1f}k", instructions / 1e3)
                                                 : fmt::format("{:.2f}M", instructions / 1e6);
  return {count, shared_wavefronts(*result.counters).ratio(), global_sectors(*result.counters).ratio()};
}

std::string format_lines(const Result& result, std::size_t most, const std::filesystem::path& source_tree,
                         const Paint& paint) {
  if (result.lines.empty()) return "";
  std::vector<Line> lines = lines_of_kernel_file(result);
  std::uint64_t all = 0;
  for (const Line& line : lines) all += total_cost(line.counters);
  std::string title = "Lines";
  if (most > 0) {
    title = "Costliest lines";
    std::stable_sort(lines.begin(), lines.end(),
                     [](const Line& a, const Line& b) { return total_cost(a.counters) > total_cost(b.counters); });
    if (lines.size() > most) lines.resize(most);
  }

  SourceText source(source_tree);
  constexpr std::size_t kPositionWidth = 14, kWidest = 120, kRoomForAll = 100;
  const std::size_t width = std::min(output_width(), kWidest);
  // If only one kind of memory fits, show shared memory, because most of the ladder is about it.
  const bool room_for_all = width >= kRoomForAll;
  std::string text = paint.bold(line_heading(title, room_for_all)) + '\n';
  const bool several =
      std::any_of(lines.begin(), lines.end(), [&](const Line& line) { return line.kernel != lines.front().kernel; });
  for (const Line& line : lines) {
    const std::string code = line.position.empty() ? "" : source.line(line.position.front());
    const std::string figures =
        line_figures(line.counters, all, room_for_all) + pad(describe_position(line.position), kPositionWidth) + ' ';
    const std::size_t room = width - std::min(width, display_width(figures));
    text += shortened(figures, width) + paint.dim(shortened((several ? line.kernel + ": " : "") + code, room)) + '\n';
  }
  text += paint.dim(wrapped(kCostExplained, text_width(), 0)) + '\n';
  return text;
}

std::vector<LineChange> line_changes(const Version& from, const Result& result_from, const Version& to,
                                     const Result& result_to, const std::filesystem::path& source_tree) {
  // By line of the __global__ function, which is the outermost line of each position.
  const auto by_line = [](const Result& result) {
    std::map<int, Counters> lines;
    for (const LineCounters& counted : result.lines)
      if (!counted.position.empty() && is_in_kernels(counted.position.back()))
        lines[split_place(counted.position.back()).second] += counted.counters;
    return lines;
  };
  const auto lines_from = by_line(result_from), lines_to = by_line(result_to);
  const auto forward = align_lines(numbered_code_lines(source_file(from, source_tree)),
                                   numbered_code_lines(source_file(to, source_tree)));

  // In the order of the new file; a line that only the old file has comes after the line that preceded it there.
  std::map<std::pair<int, int>, LineChange> changes;
  for (const auto& [line, counters] : lines_to) {
    LineChange& change = changes[{line, 0}];
    change.to = line;
    change.after = counters;
  }
  for (const auto& [line, counters] : lines_from) {
    const auto behind = forward.upper_bound(line);  // the first aligned line after this one
    const auto same = forward.find(line);
    LineChange& change = same != forward.end()
                             ? changes[{same->second, 0}]
                             : changes[{behind == forward.begin() ? 0 : std::prev(behind)->second, line}];
    change.from = line;
    change.before = counters;
  }

  SourceText text_of(source_tree);
  std::vector<LineChange> shown;
  for (auto& [key, change] : changes) {
    const Counters &a = change.before, &b = change.after;
    const bool memory =
        shared_wavefronts(a).ideal + shared_wavefronts(b).ideal + global_sectors(a).ideal + global_sectors(b).ideal > 0;
    if (!memory && a.warp_instructions == b.warp_instructions) continue;
    change.code = change.to != 0 ? text_of.line(fmt::format("{}:{}", to.source, change.to))
                                 : text_of.line(fmt::format("{}:{}", from.source, change.from));
    change.place = change.to != 0 ? fmt::format(":{}", change.to) : fmt::format("{}:{}", kernel_id(from), change.from);
    shown.push_back(std::move(change));
  }
  return shown;
}

LineCells cells(const LineChange& change) {
  const auto arrow = [](const std::string& a, const std::string& b) {
    return a == b ? a : fmt::format("{} → {}", a, b);
  };
  const Counters &a = change.before, &b = change.after;
  return {arrow(count_or_dash(a.warp_instructions), count_or_dash(b.warp_instructions)),
          arrow(shared_wavefronts(a).ratio(), shared_wavefronts(b).ratio()),
          arrow(global_sectors(a).ratio(), global_sectors(b).ratio())};
}

std::string format_line_changes(const std::vector<LineChange>& changes, const Paint& paint) {
  constexpr std::size_t kWidestText = 52, kFigures = 58;
  const std::size_t text_width = std::clamp<std::size_t>(output_width() - kFigures, 16, kWidestText);
  const auto row_text = [&](const std::string& name, const LineCells& figures) {
    std::string row = fmt::format("{} {} {} {}", pad(name, text_width), pad(figures.instructions, 22),
                                  pad(figures.shared, 17), figures.global);
    row.erase(row.find_last_not_of(' ') + 1);
    return row + '\n';
  };
  std::string text =
      paint.bold(row_text("counted per source line", {"warp instructions", "shared, x ideal", "global, x ideal"}));
  for (const LineChange& change : changes)
    text += row_text(shortened(change.place + " " + change.code, text_width), cells(change));
  return text;
}

}  // namespace flash_ladder
