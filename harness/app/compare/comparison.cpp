#include "app/compare/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/card/opcode_counts.h"
#include "app/card/study_card.h"
#include "app/compare/comparison_data.h"
#include "app/compare/comparison_verdict.h"
#include "app/compare/source_diff.h"
#include "app/options/output.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "results/counter_text.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kFigures = 45, kWidestName = 40;  // columns: two figures and a change, and their label

std::string row(std::string_view name, const std::string& from, const std::string& to, const std::string& change) {
  const std::size_t name_width = std::clamp<std::size_t>(output_width() - kFigures, 20, kWidestName);
  std::string line = fmt::format("{} {:>16} {:>16} {:>10}", pad(name, name_width), from, to, change);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

std::string count_row(std::string_view name, int from, int to) {
  return row(name, std::to_string(from), std::to_string(to), from == to ? "" : fmt::format("{:+}", to - from));
}

std::string speed_rows(const std::vector<SpeedPair>& speeds, const StaticPair& shown) {
  if (speeds.empty()) return "TFLOP/s: nothing is recorded\n";
  const MeasuredWays ways = ways_of(speeds);
  std::string text = wrapped(fmt::format("TFLOP/s, {}\n", ways.legend()), text_width(), 2);
  for (const SpeedPair& speed : speeds)
    text += row(fmt::format("{}: {} x {}, {}", speed.folder, speed.problem.batch, speed.problem.seq_len,
                            to_string(speed.problem.dtype)),
                speed_figure(speed.from, *shown.config_from, ways, "-"),
                speed_figure(speed.to, *shown.config_to, ways, "-"),
                speed.ratio() ? fmt::format("{:.2f}x", *speed.ratio()) : "");
  return text;
}

std::string busy_rows(const std::vector<BusyPair>& pairs, const Paint& paint) {
  std::string text;
  for (const BusyPair& pair : pairs) {
    const BusyVersion& any = pair.any();
    const bool stale = (pair.from && pair.from->stale) || (pair.to && pair.to->stale);
    text += '\n' + paint.bold(wrapped(fmt::format("What is busy: {}, batch {}, seq_len {}, by Nsight Compute\n",
                                                  any.device, any.problem.batch, any.problem.seq_len),
                                      text_width(), 2));
    for (const BusyMetric& metric : busy_metrics()) {
      const auto figure = [&](const std::optional<BusyVersion>& version) {
        return version ? format_metric(metric, version->busy) + (version->stale ? " stale" : "") : std::string("-");
      };
      text += row(std::string("  ") + metric.name, figure(pair.from), figure(pair.to),
                  pair.from && pair.to ? format_change(metric, pair.from->busy, pair.to->busy) : "");
    }
    if (stale)
      text += paint.notable(
          wrapped("stale: the code has changed since it was counted; scripts/ncu_counters.py counts it again\n",
                  text_width(), 2));
  }
  return text;
}

// The totals that differ. Both results have been counted.
std::string counter_rows(const Result& from, const Result& to) {
  std::string text;
  for (const CounterChange& change : counter_changes(from, to))
    text += row("  " + change.counter, grouped(change.from), grouped(change.to),
                change.from == 0
                    ? ""
                    : fmt::format("{:.2f}x", static_cast<double>(change.to) / static_cast<double>(change.from)));
  return text;
}

std::string counted_rows(const CountedPair& counted, const Paint& paint) {
  if (!counted.why_not.empty()) return fmt::format("Counters: {}\n", counted.why_not);
  return paint.bold(wrapped(fmt::format("Counted by the {}, {}\n", *counted.to.device, describe(counted.to.problem)),
                            text_width(), 2)) +
         counter_rows(counted.from, counted.to) + '\n' + format_line_changes(counted.lines, paint);
}

// The opcodes whose counts differ, and the number of those that do not.
std::string opcode_rows(const OpcodeCounts& from, const OpcodeCounts& to) {
  std::string text;
  int unchanged = 0, sum = 0;
  for (const OpcodeChange& change : changes(from, to)) {
    if (change.change() != 0) {
      text += count_row("  " + change.opcode, change.before, change.after);
    } else {
      ++unchanged;
      sum += change.after;
    }
  }
  if (unchanged > 0)
    text += count_row(fmt::format("  {} unchanged opcode{}", unchanged, unchanged == 1 ? "" : "s"), sum, sum);
  return text + count_row("  total", total(from), total(to));
}

std::string static_rows(const StaticPair& compiled, const Paint& paint) {
  std::string text = row("configuration", compiled.config_from->name, compiled.config_to->name, "");
  if (!compiled.from || !compiled.to)
    return text + fmt::format("The build has no study of both for sm_{}.\n", compiled.sm);
  const StaticStudy &a = *compiled.from, &b = *compiled.to;
  text += count_row("registers per thread", a.registers, b.registers);
  text += count_row("spilled bytes per thread", a.spill_bytes, b.spill_bytes);
  text += count_row("shared memory per CTA, bytes", a.smem_bytes, b.smem_bytes);
  text += count_row(fmt::format("CTAs per SM (sm_{})", compiled.sm), a.ctas_per_sm, b.ctas_per_sm);
  text += row("  limited by", a.limited_by, b.limited_by, "");
  if (!compiled.code_from || !compiled.code_to) return text;
  text += paint.bold(fmt::format("\nSASS of the hot loop, per iteration ({})\n", compiled.code));
  text += opcode_rows(compiled.code_from->hot_loop_sass, compiled.code_to->hot_loop_sass);
  text += paint.bold(fmt::format("\nSASS of the whole kernel ({})\n", compiled.code));
  return text + opcode_rows(compiled.code_from->sass, compiled.code_to->sass);
}

std::string comparison_text(const Comparison& comparison, const Paint& paint) {
  const Version &from = comparison.from, &to = comparison.to;
  std::string text = paint.bold(fmt::format("{} → {}", label(from), label(to))) + "\n\n";
  const Verdict verdict = verdict_of(comparison);
  text += labelled(paint.bold("Speed"), verdict.speed) + labelled(paint.bold("Fell"), verdict.fell) +
          labelled(paint.bold("Rose"), verdict.rose) + '\n';
  const HeaderComment& header = comparison.header;
  if (!header.idea.empty()) text += labelled(paint.dim("Idea"), header.idea);
  if (!header.changed.empty()) text += labelled(paint.dim("Changed"), header.changed);
  if (!header.prediction.empty()) text += labelled(paint.dim("Prediction"), header.prediction);
  text += '\n' + painted_diff(comparison.diff, paint);
  text += fmt::format("\n{} lines of code added, {} removed (comments and version numbers left out)\n\n",
                      comparison.size.added, comparison.size.removed);
  text += paint.bold(row("", kernel_id(from), kernel_id(to), "change"));
  text += speed_rows(comparison.speeds, comparison.compiled) + busy_rows(comparison.busy, paint);
  text += '\n' + counted_rows(comparison.counted, paint);
  return text + '\n' + static_rows(comparison.compiled, paint);
}

}  // namespace

int compare(const Options& options) {
  for (const std::string& file : {options.json, options.html})
    if (!file.empty() && file != "-") check_writable(file);
  if (options.json == "-" && options.html == "-")
    throw UsageError("--json - and --html - both need standard output; name a file for one of them");
  Profiles profiles(options.paths);
  const Comparison comparison = gather_comparison(options, profiles);
  if (options.html.empty()) say(options, comparison_text(comparison, Paint()));
  for (const auto& problem : profiles.problems()) complain(problem);
  // The text reports this too, but in the middle.
  if (!comparison.counted.why_not.empty()) complain(comparison.counted.why_not);
  write_json(options, comparison_document(comparison));
  if (options.html == "-") {
    write_out(comparison_page(comparison, options));
  } else if (!options.html.empty()) {
    write_file_atomically(options.html, comparison_page(comparison, options));
    say(options, fmt::format("wrote {}\n", options.html));
  }
  if (comparison.counted.exit_code != kExitOk) return comparison.counted.exit_code;
  const bool complete = profiles.problems().empty() && comparison.compiled.from && comparison.compiled.to;
  return complete ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
