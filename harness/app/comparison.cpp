#include "app/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "app/configuration_choice.h"
#include "app/counters.h"
#include "app/opcode_counts.h"
#include "app/output.h"
#include "app/recorded.h"
#include "app/runner.h"
#include "app/selection.h"
#include "app/source_diff.h"
#include "app/study_card.h"
#include "app/terminal.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "rules/support.h"
#include "sass/static_study.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kFigures = 45, kWidestName = 40;  // columns: two figures and a change, and what they are of

std::string row(std::string_view name, const std::string& from, const std::string& to, const std::string& change) {
  const std::size_t name_width = std::clamp<std::size_t>(output_width() - kFigures, 20, kWidestName);
  std::string line = fmt::format("{} {:>16} {:>16} {:>10}", pad(name, name_width), from, to, change);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

std::string count_row(std::string_view name, int from, int to) {
  return row(name, std::to_string(from), std::to_string(to), from == to ? "" : fmt::format("{:+}", to - from));
}

// TFLOP/s of every problem that either recording has.
std::string speed_rows(const std::string& device, const Recording* from, const Recording* to) {
  std::vector<AttentionProblem> problems;
  for (const Recording* recording : {from, to})
    if (recording)
      for (const Result& result : recording->profile.results)
        if (std::find(problems.begin(), problems.end(), result.problem) == problems.end())
          problems.push_back(result.problem);
  std::string text;
  const auto figure = [](const Recording* recording, const Result* result) {
    return result ? fmt::format("{:.1f}{}", *result->tflops, recording->stale ? " stale" : "") : std::string("-");
  };
  for (const AttentionProblem& problem : problems) {
    const Result* result_from = from ? find_result(*from, problem) : nullptr;
    const Result* result_to = to ? find_result(*to, problem) : nullptr;
    const std::string change =
        result_from && result_to ? fmt::format("{:.2f}x", *result_to->tflops / *result_from->tflops) : "";
    text += row(fmt::format("{}: {} x {}, {}", device, problem.batch, problem.seq_len, to_string(problem.dtype)),
                figure(from, result_from), figure(to, result_to), change);
  }
  return text;
}

// The totals that differ. Both have been counted.
std::string counter_rows(const Result& from, const Result& to) {
  std::string text;
  std::vector<std::uint64_t> before;
  for_each_counter(*from.counters, [&](const std::string&, std::uint64_t count) { before.push_back(count); });
  auto old = before.begin();
  for_each_counter(*to.counters, [&](const std::string& name, std::uint64_t count) {
    const std::uint64_t was = *old++;
    if (count == was) return;
    const std::string change =
        was == 0 ? "" : fmt::format("{:.2f}x", static_cast<double>(count) / static_cast<double>(was));
    text += row("  " + name, std::to_string(was), std::to_string(count), change);
  });
  return text;
}

// What the virtual GPU counts now, per source line; else the reason why it does not. `code` is what that means for the process.
std::string counted_lines(const Version& from, const Version& to, const Options& options, const Paint& paint,
                          int& code) {
  Options counting = options;
  counting.device = {.kind = DeviceKind::emulator, .ordinal = 0};
  try {
    const Runner runner(counting);
    const Run run{.problem = runner.problem(), .config = options.config, .check = false, .benchmark = false};
    const Result result_from = runner.run(from, run), result_to = runner.run(to, run);
    code = exit_code(options, {result_from, result_to});
    for (const Result* result : {&result_from, &result_to})
      if (!result->counters)
        return fmt::format("Counters: {} {}: {}\n", label(*result), to_string(result->status), result->reason);
    return paint.bold(wrapped(fmt::format("Counted by the {}, {}\n", *result_to.device, describe(run.problem)),
                              text_width(), 2)) +
           counter_rows(result_from, result_to) + '\n' +
           format_line_comparison(from, result_from, to, result_to, options.paths.source, paint);
  } catch (const UnavailableError& error) {
    code = kExitUnavailable;
    return fmt::format("Counters: {}\n", error.what());
  }
}

std::string opcode_rows(const OpcodeCounts& from, const OpcodeCounts& to) {
  std::string text;
  for (const OpcodeChange& change : changes(from, to))
    text += count_row("  " + change.opcode, change.before, change.after);
  return text + count_row("  total", total(from), total(to));
}

// `code` is left alone, or becomes what it means for the process that the build has no such study.
std::string static_rows(const Version& from, const Version& to, const Options& options, int sm, const Paint& paint,
                        int& code) {
  const auto study_of = [&](const Version& version) {
    const auto choice = choose_configuration(version, options.config, options.problem, std::nullopt, sm);
    if (!choice.configuration) throw UsageError(choice.why_not);
    return std::pair(choice.configuration->name, static_study(version, *choice.configuration, options.paths.study));
  };
  const auto [config_from, studies_from] = study_of(from);
  const auto [config_to, studies_to] = study_of(to);
  std::string text = row("configuration", config_from, config_to, "");
  const StaticStudy *a = study_for(studies_from, sm), *b = study_for(studies_to, sm);
  if (!a || !b) {
    code = kExitUnavailable;
    return text + fmt::format("The build has no study of both for sm_{}.\n", sm);
  }
  text += count_row("registers per thread", a->registers, b->registers);
  text += count_row("spilled bytes per thread", a->spill_bytes, b->spill_bytes);
  text += count_row("shared memory per CTA, bytes", a->smem_bytes, b->smem_bytes);
  text += count_row(fmt::format("CTAs per SM (sm_{})", sm), a->ctas_per_sm, b->ctas_per_sm);
  text += row("  limited by", a->limited_by, b->limited_by, "");
  const StaticStudy *code_a = code_for(studies_from, sm), *code_b = code_for(studies_to, sm);
  if (!code_a || !code_b) return text;
  text += paint.bold(fmt::format("\nSASS of the hot loop, per iteration ({})\n", code_name(sm)));
  text += opcode_rows(code_a->hot_loop_sass, code_b->hot_loop_sass);
  text += paint.bold(fmt::format("\nSASS of the whole kernel ({})\n", code_name(sm)));
  return text + opcode_rows(code_a->sass, code_b->sass);
}

}  // namespace

int compare(const Options& options) {
  const Version& from = select_version(options.diff.first);
  const Version& to = select_version(options.diff.second);
  const Paint paint;
  const auto& tree = options.paths.source;
  const int sm = options.sm.value_or(
      runs_on(from.architecture, kDefaultSm) && runs_on(to.architecture, kDefaultSm) ? kDefaultSm : kHopperSm);

  std::string text = paint.bold(fmt::format("{} → {}", label(from), label(to))) + "\n\n";
  const HeaderComment header = read_header_comment(source_file(to, tree));
  if (!header.idea.empty()) text += labelled(paint.dim("Idea"), header.idea);
  if (!header.changed.empty()) text += labelled(paint.dim("Changed"), header.changed);
  if (!header.prediction.empty()) text += labelled(paint.dim("Prediction"), header.prediction);

  const DiffSize size = diff_size(source_file(from, tree), source_file(to, tree));
  text += '\n';
  text += source_diff(from, to, tree, paint);
  text += fmt::format("\n{} lines of code added, {} removed (comments and version numbers left out)\n\n", size.added,
                      size.removed);

  Recorded recorded(options.paths);
  text += paint.bold(row("", fmt::format("{:02}", from.number), fmt::format("{:02}", to.number), "change"));
  std::string speeds;
  for (const auto& device : recorded.devices())
    speeds += speed_rows(device, recorded.find(device, from), recorded.find(device, to));
  text += speeds.empty() ? "TFLOP/s: nothing is recorded\n" : fmt::format("TFLOP/s, recorded\n{}", speeds);
  int counted = kExitOk, studied = kExitOk;
  text += '\n' + counted_lines(from, to, options, paint, counted);
  text += '\n';
  text += static_rows(from, to, options, sm, paint, studied);
  say(options, text);
  for (const auto& problem : recorded.problems()) complain(problem);
  if (counted != kExitOk) return counted;
  return recorded.problems().empty() ? studied : kExitUnavailable;
}

}  // namespace flash_ladder
