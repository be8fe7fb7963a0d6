#include "app/debug/debug.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/card/hints.h"
#include "app/card/study_card.h"
#include "app/debug/gradients.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "app/run/up_to_date.h"
#include "app/terminal/table.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "results/debug_report.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kShownKeys = 4;    // keys of P
constexpr std::size_t kShownTiles = 12;  // rows of the table, which always include the first wrong one

// ---- What to run ----

// Sizes that were not typed are small, and whole tiles of the configuration: two query tiles, four K/V tiles, two heads. A CTA that
// computes gradients goes through the query tiles, so then there are more of those.
AttentionProblem problem_for(const Version& version, const Configuration& configuration,
                             const AttentionProblem& typed) {
  const bool of_gradients = version.kind == ProblemKind::backward;
  AttentionProblem problem = typed;
  const auto fill = [](std::int64_t& size, std::int64_t otherwise) {
    if (size == 0) size = otherwise;
  };
  fill(problem.batch, 1);
  fill(problem.heads, 2);
  fill(problem.seq_len, (of_gradients ? 4 : 2) * configuration.block_q);
  fill(problem.seq_len_kv, (of_gradients ? 2 : 4) * configuration.block_kv);
  fill(problem.head_dim, configuration.head_dim);
  return problem;
}

// --debug probes with numbers that e4m3 cannot represent.
void refuse_8_bits(const Version& version) {
  const auto in_8_bits = [](const Configuration& configuration) { return configuration.dtype == Dtype::e4m3; };
  if (!std::ranges::all_of(version.configurations, in_8_bits)) return;
  const Version* before = version_before(version);
  throw UsageError(fmt::format("{} computes only e4m3, which cannot represent the numbers that --debug probes with{}",
                               label(version), before ? fmt::format("; try --debug {}", kernel_id(*before)) : ""));
}

// The configuration, and the problem to run with it.
std::pair<const Configuration*, AttentionProblem> choose(const Version& version, const Options& options,
                                                         const Runner& runner) {
  const Configuration* configuration = runner.choose(version, options.config, runner.problem()).configuration;
  const AttentionProblem problem =
      configuration ? problem_for(version, *configuration, options.debug_problem) : runner.problem();
  const auto choice = runner.choose(version, configuration ? configuration->name : options.config, problem);
  if (!choice.why_not.empty()) {
    if (choice.device_cannot) throw UnavailableError(choice.why_not);
    throw UsageError(choice.why_not);
  }
  return {choice.configuration, problem};
}

// ---- Text ----

// "-" if there is no value.
std::string figure(double value, const char* form = "{:.4f}") {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format(fmt::runtime(form), value);
}

// `matrix` is S or O.
std::string holder_of(const FragmentElement& held, const char* matrix) {
  return fmt::format("D[{}] of {} at mma_m {}, mma_n {}, in lane {} of warp {}", held.reg, matrix, held.mma_m,
                     held.mma_n, held.lane, held.warp);
}

std::string describe_row(const DebugReport& report) {
  std::string text = fmt::format("{} of head {}", report.row, report.head);
  if (report.problem.batch > 1) text += fmt::format(" of batch entry {}", report.batch);
  if (const auto& held = report.holder) {
    const int group = held->lane / 4 * 4;
    text += fmt::format(": warp {}, lanes {} to {}, registers {} of O at mma_m {}", held->warp, group, group + 3,
                        held->reg < 2 ? "D[0] and D[1]" : "D[2] and D[3]", held->mma_m);
  }
  return text + "; --row and --head show another";
}

std::string keys_of(std::int64_t first, std::int64_t end) { return fmt::format("{}–{}", first, end - 1); }

// One row per cut: the same columns of the kernel's O and of the float64 O, starting at the first wrong one.
std::string format_cuts(const DebugReport& report, const Paint& paint) {
  constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
  const Cut* wrong = report.first_wrong();
  const bool here = wrong != nullptr && wrong->first && wrong->first->batch == report.batch &&
                    wrong->first->head == report.head && wrong->first->row == report.row;
  const std::int64_t head_dim = value_head_dim(report.problem);
  constexpr std::int64_t kColumns = 4;
  const std::int64_t first = std::min(here ? wrong->first->column : 0, std::max<std::int64_t>(head_dim - kColumns, 0));
  std::vector<Column> columns = {{"tile", 4, kRight, 99},
                                 {" keys", 12, kLeft, 60},
                                 {"m", 8, kRight, 80},
                                 {"r", 7, kRight, 70},
                                 {"l", 9, kRight, 75}};
  for (std::int64_t c = first; c < std::min(first + kColumns, head_dim); ++c) {
    const int importance = 55 - static_cast<int>(c - first);
    columns.push_back({fmt::format("O[{}]", c), 9, kRight, c == first ? 95 : importance});
    columns.push_back({"float64", 9, kRight, c == first ? 94 : importance});
  }
  columns.push_back({"error", 8, kRight, 90});
  const Table table(columns);
  std::string text = paint.bold(table.header());
  const std::size_t wrong_at = wrong ? wrong - report.cuts.data() : 0, count = report.cuts.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Cut& cut = report.cuts[i];
    // If there are many, show the first, the last, and those around the first wrong one.
    const bool near = wrong && i + 2 >= wrong_at && i <= wrong_at + 1;
    if (count > kShownTiles && i >= kShownTiles / 2 && i + 1 < count && !near) continue;
    std::vector<std::string> cells = {
        std::to_string(cut.tiles - 1),
        " " + keys_of((cut.tiles - 1) * report.block_kv, cut.keys),
        figure(cut.m),
        i == 0 ? "-" : figure(cut.r),
        figure(cut.l),
    };
    for (std::int64_t c = first; c < std::min(first + kColumns, head_dim); ++c) {
      cells.push_back(cut.O.empty() ? "fault" : figure(cut.O[c]));
      cells.push_back(figure(cut.O_expected[c]));
    }
    cells.push_back(cut.faulted ? "fault" : figure(cut.of_bound, "{:.3g}"));
    const std::string line = table.row(cells);
    text += cut.right() ? line : paint.bad(line);
  }
  return text;
}

std::string format_P(const DebugReport& report, const Paint& paint) {
  constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
  const SeenP& seen = *report.P;
  const Cut* cut = nullptr;
  for (const Cut& candidate : report.cuts)
    if (candidate.tiles == seen.tile + 1) cut = &candidate;
  std::string text =
      labelled(paint.dim("P"),
               fmt::format("of this row in tile {}, made visible by a V that is one-hot there: column c of O is key "
                           "{} + c, already divided by l.",
                           seen.tile, seen.first_key));
  const Table table({{" key", 6, kLeft, 9},
                     {"S", 9, kRight, 6},
                     {"exp(S - m) / l", 15, kRight, 8},
                     {"kernel", 9, kRight, 9},
                     {"ln(kernel · l) + m", 19, kRight, 5}});
  text += paint.bold(table.header());
  const bool here = seen.first && seen.first->batch == report.batch && seen.first->head == report.head &&
                    seen.first->row == report.row;
  const std::size_t keys = seen.P_expected.size();
  const std::size_t from = here ? std::min<std::size_t>(seen.first->column, keys - std::min(keys, kShownKeys)) : 0;
  for (std::size_t j = from; j < std::min(from + kShownKeys, keys); ++j)
    text += table.row({fmt::format(" {}", seen.first_key + static_cast<std::int64_t>(j)), figure(seen.S_expected[j]),
                       figure(seen.P_expected[j], "{:.6f}"), seen.P.empty() ? "fault" : figure(seen.P[j], "{:.6f}"),
                       seen.P.empty() || !cut ? "-" : figure(std::log(seen.P[j] * cut->l) + cut->m)});
  if (seen.wrong == 0) return text + labelled("", fmt::format("All {} of this tile are right.", seen.compared));
  if (std::ranges::any_of(report.layouts, [](const SeenLayout& l) { return l.tensor == "V" && l.wrong > 0; }))
    text += labelled("", "P is observed through V, and V is not where it belongs: see below.");
  if (seen.places) text += labelled("", fmt::format("{} (A column is a key of the tile.)", *seen.places));
  if (const auto& first = seen.first) {
    std::string sentence = fmt::format("The first: row {} of head {}, key {}: {:.6f} instead of {:.6f}", first->row,
                                       first->head, seen.first_key + first->column, first->got, first->expected);
    if (first->holder) sentence += "; it is " + holder_of(*first->holder, "S");
    text += labelled("", sentence + ".");
  }
  return text;
}

std::string format_layouts(const DebugReport& report, const Paint& paint) {
  std::string text;
  for (const SeenLayout& layout : report.layouts) {
    const char* how = layout.tensor == "K" ? "one-hot Q and V reveal S = Q Kᵀ, and so K" : "one-hot P reveals V";
    std::string sentence = fmt::format("{}: {}", layout.tensor, how);
    if (layout.wrong == 0)
      sentence += fmt::format(". All {} elements of a tile are where they belong.", layout.elements);
    else
      sentence += fmt::format(": {}.", layout.text.value_or("wrong"));
    if (const auto& first = layout.first)
      sentence += fmt::format(
          " {}[{}][{}] belongs in B[{}] of lane {}, its {} half, at mma_n {}, mma_k {}: all warps load it in the "
          "same way.",
          layout.tensor, first->key, first->column, first->reg, first->lane, first->half ? "upper" : "lower",
          first->mma_n, first->mma_k);
    text += labelled(text.empty() ? paint.dim("Layouts") : "", sentence);
  }
  return text;
}

std::string format_verdict(const DebugReport& report, const Paint& paint) {
  const Cut* wrong = report.first_wrong();
  const std::size_t cuts = report.cuts.size();
  if (wrong == nullptr) {
    std::string text = fmt::format("{}: O is right after each of {} K/V tile{}", paint.good("yes"),
                                   report.cuts.back().tiles, cuts == 1 ? "" : "s");
    if (cuts < static_cast<std::size_t>(report.cuts.back().tiles))
      text = fmt::format("{}: O is right in all {} cuts", paint.good("yes"), cuts);
    text += fmt::format(", with {} inputs", report.inputs);
    if (!report.also_right.empty())
      text += fmt::format("; with {} inputs after the last", fmt::join(report.also_right, ", "));
    return labelled(paint.dim("Correct"), text + ".");
  }
  std::string text = fmt::format("{}: first with K/V tile {} (keys {})", paint.bad("no"), wrong->tiles - 1,
                                 keys_of((wrong->tiles - 1) * report.block_kv, wrong->keys));
  if (wrong->faulted) {
    text += ": the kernel faults";
  } else if (const auto& first = wrong->first) {
    text += fmt::format(": row {}, column {} of head {}", first->row, first->column, first->head);
    if (report.problem.batch > 1) text += fmt::format(" of batch entry {}", first->batch);
    text += fmt::format(" is {} instead of {}, and may be off by {:.2g}", figure(first->got), figure(first->expected),
                        first->bound);
    if (first->holder) text += "; it is " + holder_of(*first->holder, "O");
    text += fmt::format(". {} of {} elements are wrong", wrong->wrong, wrong->compared);
  } else {
    text += ": the output is right, but see what the virtual GPU found";
  }
  text += fmt::format(", with {} inputs", report.inputs);
  if (!report.also_right.empty())
    text += fmt::format(" (with {} inputs it is right)", fmt::join(report.also_right, ", "));
  return labelled(paint.dim("Correct"), text + ".");
}

std::string format_report(const Version& version, const DebugReport& report, const Runner& runner, const Hints& hints,
                          const Options& options, const Paint& paint) {
  std::string text =
      paint.bold(title(version)) + fmt::format("   {}   {}\n\n", report.config, to_string(report.problem.dtype));
  const auto line = [&](std::string_view label, const std::string& value) {
    text += labelled(paint.dim(label), value);
  };
  line("Device", describe_device(runner.device().why, true, paint));
  line("Problem", fmt::format("{}; {} inputs, seed {}", describe(report.problem), report.inputs, report.seed));
  text += format_verdict(report, paint);
  Result result;
  result.diagnosis = report.diagnosis;
  result.findings = report.findings;
  result.findings_kinds = std::ssize(result.findings);
  const std::string look_at = format_hints(hints, options.paths.source, paint);
  // A finding says more than values, because the values come from a launch that went wrong elsewhere.
  const bool found = !result.findings.empty();
  if (found) text += format_findings(result, options.all_findings, paint) + look_at;
  line("Row", describe_row(report));
  text += '\n' + format_cuts(report, paint);
  text +=
      wrapped(
          "m, r, l: the largest score so far, exp(m before - m), and the sum of exp(s - m), in float64. O: the kernel's, "
          "with the keys cut off after the tile. error: the largest of all rows; 1 is what is allowed.",
          text_width(), 0) +
      "\n\n";
  if (report.P) text += format_P(report, paint) + '\n';
  if (!found) text += format_layouts(report, paint);
  text += format_diagnosis(result, paint);
  if (!found) text += look_at;
  line("Read on", fmt::format("scripts/blockwise_attention.py  ·  harness --debug {} --json FILE", kernel_id(version)));
  return text;
}

}  // namespace

int debug(const Options& options) {
  const Version& version = select_with_code(options.debug);
  refuse_8_bits(version);
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (const auto file = newer_source({&version}, options.paths.source))
    complain(fmt::format("warning: {} is newer than the compiled code, so what runs is older; build again", *file));
  const Runner runner(options);
  if (!runner.device().gpu)
    throw UnavailableError("--debug has to run the version, and no device can: " + runner.device().why);
  const auto [configuration, problem] = choose(version, options, runner);
  if (version.kind == ProblemKind::backward) {
    GradientReport report = runner.debug_gradients(version, configuration->name, problem, options.head, options.row);
    return show_gradients(version, report, runner, options);
  }
  DebugReport report = runner.debug(version, configuration->name, problem, options.head, options.row);
  const Hints hints = report.right()            ? Hints{}
                      : report.findings.empty() ? hints_from(report, version, options.paths.source)
                                                : hints_from(report.findings.front(), options.paths.source);
  report.look_at = hints.places;
  say(options, format_report(version, report, runner, hints, options, Paint()));
  write_json(options, nlohmann::json(report));
  return report.right() ? kExitOk : kExitWrong;
}

}  // namespace flash_ladder
