#include "app/debug/gradients.h"

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
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/terminal/table.h"
#include "app/terminal/terminal.h"
#include "errors.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kPairsShown = 4;  // keys of the shown query
constexpr std::size_t kCutsShown = 12;  // of the queries, and of the keys, which always include the first wrong one

// Small numbers, as of gradients of long sequences, keep their digits.
std::string gradient_figure(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  return value == 0 || std::abs(value) >= 0.001 ? fmt::format("{:.5f}", value) : fmt::format("{:.2e}", value);
}

std::string range_of(std::int64_t first, std::int64_t size, std::int64_t end) {
  return fmt::format("{}–{}", first, std::min(first + size, end) - 1);
}

bool is_an_output(const SeenMatrix& seen) { return seen.matrix == seen.through; }

std::string describe_tile(const GradientReport& report) {
  const AttentionProblem& problem = report.problem;
  std::string text =
      fmt::format("queries {} and keys {} of head {}",
                  range_of(report.query_tile * report.block_q, report.block_q, problem.seq_len),
                  range_of(report.key_tile * report.block_kv, report.block_kv, problem.seq_len_kv), report.head);
  if (problem.batch > 1) text += fmt::format(" of batch entry {}", report.batch);
  return text + fmt::format("; query {}, key {}; --row and --head show another query", report.query, report.key);
}

std::string format_gradient_verdict(const GradientReport& report, const Paint& paint) {
  const GradientCut* wrong = report.first_wrong();
  const auto tiles_of = [&](std::string_view of) {
    std::int64_t tiles = 0;
    for (const GradientCut& cut : report.cuts)
      if (cut.of == of) tiles = cut.tiles;
    return fmt::format("{} tile{} of {}", tiles, tiles == 1 ? "" : "s", of);
  };
  std::string text;
  if (wrong == nullptr && !report.right()) {
    text = fmt::format("{}: dQ, dK and dV are right, but a step in between is not", paint.bad("no"));
  } else if (wrong == nullptr) {
    text = fmt::format("{}: dV and dK are right after each of {}, and dQ after each of {}", paint.good("yes"),
                       tiles_of("queries"), tiles_of("keys"));
    text += fmt::format(", with {} inputs", report.inputs);
    if (!report.also_right.empty())
      text += fmt::format("; with {} inputs after the last", fmt::join(report.also_right, ", "));
    return labelled(paint.dim("Correct"), text + ".");
  } else {
    text = fmt::format("{}: first with tile {} of the {}", paint.bad("no"), wrong->tiles - 1, wrong->of);
    const auto first = std::ranges::find_if(wrong->gradients, [](const auto& g) { return g.values.first.has_value(); });
    if (wrong->faulted) {
      text += ": the kernel faults";
    } else if (first != wrong->gradients.end()) {
      const WrongElement& element = *first->values.first;
      text += fmt::format(": {}[{}][{}] of head {}", first->name, element.row, element.column, element.head);
      if (report.problem.batch > 1) text += fmt::format(" of batch entry {}", element.batch);
      text += fmt::format(" is {} instead of {}, and may be off by {:.2g}. {} of {} elements are wrong",
                          gradient_figure(element.got), gradient_figure(element.expected), element.bound,
                          first->values.wrong, first->values.compared);
    } else {
      text += ": the output is right, but see what the virtual GPU found";
    }
  }
  text += fmt::format(", with {} inputs", report.inputs);
  if (!report.also_right.empty())
    text += fmt::format(" (with {} inputs it is right)", fmt::join(report.also_right, ", "));
  text = labelled(paint.dim("Correct"), text + ".");
  if (report.first_step)
    text += labelled(paint.dim("First step"), fmt::format("{} is the first that is wrong.", *report.first_step));
  return text;
}

// The steps in their order, each seen through an output.
std::string format_matrices(const GradientReport& report, const Paint& paint) {
  constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
  const Table table({{"step", 4, kLeft, 99},
                     {"seen in", 7, kLeft, 90},
                     {"element", 12, kLeft, 60},
                     {"kernel", 10, kRight, 95},
                     {"float64", 10, kRight, 94},
                     {"difference", 10, kRight, 70},
                     {"error", 8, kRight, 85},
                     {"wrong", 14, kRight, 80}});
  std::string text = paint.bold(table.header());
  for (const SeenMatrix& seen : report.matrices) {
    const WrongElement& shown = seen.shown;
    const std::string line = table.row(
        {seen.matrix, is_an_output(seen) ? "-" : seen.through, fmt::format("[{}][{}]", shown.row, shown.column),
         gradient_figure(shown.got), gradient_figure(shown.expected), gradient_figure(shown.got - shown.expected),
         std::isnan(seen.values.of_bound) ? "nan" : fmt::format("{:.3g}", seen.values.of_bound),
         fmt::format("{} of {}", seen.values.wrong, seen.values.compared)});
    text += seen.values.wrong == 0 ? line : paint.bad(line);
  }
  text += wrapped(
      "The tile's P, dP and dS become visible if the other operand of a product is one-hot: dO for dV = Pᵀ dO, Q for dK = "
      "dSᵀ Q, K for dQ = dS K. Seen in dK or dQ, P is a dS with dP = 1 and D = 0, and dP is a dS with P = 1 and D = 0. "
      "The one-hot matrix replaces the input, so the numbers differ from line to line. error: the largest of the tile; 1 is "
      "what is allowed.",
      text_width(), 0);
  for (const SeenMatrix& seen : report.matrices)
    if (seen.places && !is_an_output(seen)) {
      text +=
          '\n' + labelled(paint.dim("Places"), fmt::format("{} in {}: {}.", seen.matrix, seen.through, *seen.places));
      break;
    }
  return text + '\n';
}

// S, P, dP and dS of the shown query, with the inputs as they are.
std::string format_query(const GradientReport& report, const Paint& paint) {
  constexpr auto kRight = Column::Side::right;
  std::string text =
      labelled(paint.dim("Query"), fmt::format("{}, with the inputs as they are: L {}, D {}. S is ln(P) + L.",
                                               report.query, gradient_figure(report.L), gradient_figure(report.D)));
  std::vector<Column> columns = {{" key", 6, Column::Side::left, 99}};
  int importance = 90;
  for (const char* matrix : {"S", "P", "dP", "dS"}) {
    columns.push_back({matrix, 10, kRight, importance});
    columns.push_back({"float64", 10, kRight, --importance});
  }
  const Table table(columns);
  text += paint.bold(table.header());
  const std::size_t count = report.keys.size();
  const auto at = std::ranges::find(report.keys, report.key, &QueryAndKey::key);
  const std::size_t from = std::min<std::size_t>(at == report.keys.end() ? 0 : at - report.keys.begin(),
                                                 count - std::min(count, kPairsShown));
  for (std::size_t i = from; i < std::min(from + kPairsShown, count); ++i) {
    const QueryAndKey& pair = report.keys[i];
    text += table.row({fmt::format(" {}", pair.key), gradient_figure(pair.S), gradient_figure(pair.S_expected),
                       gradient_figure(pair.P), gradient_figure(pair.P_expected), gradient_figure(pair.dP),
                       gradient_figure(pair.dP_expected), gradient_figure(pair.dS), gradient_figure(pair.dS_expected)});
  }
  return text + '\n';
}

// One row per cut: an element of each gradient, beside float64.
std::string format_gradient_cuts(const GradientReport& report, std::string_view of, const Paint& paint) {
  constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
  std::vector<const GradientCut*> cuts;
  for (const GradientCut& cut : report.cuts)
    if (cut.of == of) cuts.push_back(&cut);
  if (cuts.empty()) return "";
  const bool of_queries = of == "queries";
  const std::vector<std::string> names =
      of_queries ? std::vector<std::string>{"dV", "dK"} : std::vector<std::string>{"dQ"};
  const auto first_wrong = std::ranges::find_if(cuts, [](const GradientCut* cut) { return !cut->right(); });
  const std::size_t wrong_at = first_wrong - cuts.begin();
  // The columns begin at the first wrong one of the shown row.
  std::int64_t column = 0;
  if (first_wrong != cuts.end())
    for (const auto& gradient : (*first_wrong)->gradients)
      if (const auto& first = gradient.values.first; first && first->row == (of_queries ? report.key : report.query)) {
        column = std::min(first->column, report.problem.head_dim - 2);
        break;
      }
  std::vector<Column> columns = {{"tile", 4, kRight, 99}, {fmt::format(" {}", of), 12, kLeft, 60}};
  for (const std::string& name : names)
    for (int i = 0; i < (of_queries ? 1 : 2); ++i) {
      const std::int64_t row = of_queries ? report.key : report.query;
      columns.push_back({fmt::format("{}[{}][{}]", name, row, column + i), 14, kRight, 95 - 20 * i});
      columns.push_back({"float64", 10, kRight, 94 - 20 * i});
    }
  for (const std::string& name : names) columns.push_back({"error " + name, 9, kRight, 90});
  const Table table(columns);
  std::string text = paint.bold(table.header());
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const GradientCut& cut = *cuts[i];
    const bool near = i + 2 >= wrong_at && i <= wrong_at + 1;
    if (cuts.size() > kCutsShown && i >= kCutsShown / 2 && i + 1 < cuts.size() && !near) continue;
    const std::int64_t block = of_queries ? report.block_q : report.block_kv;
    std::vector<std::string> cells = {std::to_string(cut.tiles - 1),
                                      fmt::format(" {}", range_of((cut.tiles - 1) * block, block, cut.rows))};
    for (const std::string& name : names) {
      const auto found = std::ranges::find(cut.gradients, name, &GradientCut::Gradient::name);
      for (int j = 0; j < (of_queries ? 1 : 2); ++j) {
        const bool known = found != cut.gradients.end() && !found->got.empty();
        cells.push_back(cut.faulted ? "fault" : known ? gradient_figure(found->got[column + j]) : "-");
        cells.push_back(known ? gradient_figure(found->expected[column + j]) : "-");
      }
    }
    for (const std::string& name : names) {
      const auto found = std::ranges::find(cut.gradients, name, &GradientCut::Gradient::name);
      cells.push_back(found == cut.gradients.end()         ? "fault"
                      : std::isnan(found->values.of_bound) ? "nan"
                                                           : fmt::format("{:.3g}", found->values.of_bound));
    }
    const std::string line = table.row(cells);
    text += cut.right() ? line : paint.bad(line);
  }
  return text +
         wrapped(of_queries ? "dV and dK with the queries cut off after the tile. error: the largest of all keys."
                            : "dQ with the keys cut off after the tile. error: the largest of all queries.",
                 text_width(), 0) +
         "\n\n";
}

std::string format_gradients(const Version& version, const GradientReport& report, const Runner& runner,
                             const Hints& hints, const Options& options, const Paint& paint) {
  std::string text =
      paint.bold(title(version)) + fmt::format("   {}   {}\n\n", report.config, to_string(report.problem.dtype));
  const auto line = [&](std::string_view label, const std::string& value) {
    text += labelled(paint.dim(label), value);
  };
  line("Device", describe_device(runner.device().why, true, paint));
  line("Problem", fmt::format("{}; {} inputs, seed {}", describe(report.problem), report.inputs, report.seed));
  text += format_gradient_verdict(report, paint);
  Result result;
  result.diagnosis = report.diagnosis;
  result.findings = report.findings;
  result.findings_kinds = std::ssize(result.findings);
  const std::string look_at = format_hints(hints, options.paths.source, paint);
  const bool found = !result.findings.empty();
  if (found) text += format_findings(result, options.all_findings, paint) + look_at;
  line("Tile", describe_tile(report));
  text += '\n';
  if (!report.matrices.empty()) text += format_matrices(report, paint) + '\n';
  if (!report.keys.empty()) text += format_query(report, paint);
  for (const char* of : {"queries", "keys"}) text += format_gradient_cuts(report, of, paint);
  text += format_diagnosis(result, paint);
  if (!found) text += look_at;
  line("Read on", fmt::format("common/gradients.h  ·  harness --debug {} --json FILE", kernel_id(version)));
  return text;
}

}  // namespace

int show_gradients(const Version& version, GradientReport& report, const Runner& runner, const Options& options) {
  const Hints hints = report.right()            ? Hints{}
                      : report.findings.empty() ? hints_from(report, version, options.paths.source)
                                                : hints_from(report.findings.front(), options.paths.source);
  report.look_at = hints.places;
  say(options, format_gradients(version, report, runner, hints, options, Paint()));
  write_json(options, nlohmann::json(report));
  return report.right() ? kExitOk : kExitWrong;
}

}  // namespace flash_ladder
