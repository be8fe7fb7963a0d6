#include "app/tune/tune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/card/opcode_counts.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "app/run/stored_tuning.h"
#include "app/run/up_to_date.h"
#include "app/terminal/table.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "results/document.h"
#include "results/tuning.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

void refuse_without_a_clock(const Options& options, const DeviceChoice& device) {
  if (device.gpu && !device.gpu->is_virtual) return;
  if (options.device.kind == DeviceKind::emulator)
    throw UsageError(
        "--tune measures time, and the virtual GPU has no clock; leave --device emulator out on a machine with a GPU");
  throw UnavailableError("--tune measures time, which only a GPU has: " + device.why_no_gpu);
}

// Checks each configuration in its own process, then times the correct ones together.
std::vector<Result> measure(const Version& version, const Runner& runner) {
  std::vector<Result> results;
  std::vector<std::string> right;
  for (const Configuration& configuration : version.configurations) {
    if (configuration.dtype != runner.problem().dtype) continue;
    results.push_back(runner.run(
        version, {.problem = runner.problem(), .config = configuration.name, .check = true, .benchmark = false}));
    if (results.back().status == Status::ok) right.push_back(configuration.name);
  }
  if (!right.empty()) runner.time_in_turn(version, right, results);
  // The fastest comes first; configurations without a time keep their order, after the others.
  std::stable_sort(results.begin(), results.end(),
                   [](const Result& a, const Result& b) { return a.tflops.value_or(0) > b.tflops.value_or(0); });
  return results;
}

const Configuration& configuration_of(const Version& version, const Result& result) {
  return *std::find_if(version.configurations.begin(), version.configurations.end(), [&](const Configuration& other) {
    return other.name == result.config && other.dtype == result.problem.dtype;
  });
}

Table ranking_table(int sm) {
  constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
  return Table({{"rank", 4, kRight, 9},
                {" config", 17, kLeft, 9},
                {"tile", 8, kRight, 3},
                {"warps", 6, kRight, 2},
                {"stages", 6, kRight, 2},
                {"step", 4, kRight, 2},
                {"TFLOP/s", 8, kRight, 8},
                {"of best", 8, kRight, 7},
                {" ms (p10, p90)", 25, kLeft, 6},
                {"registers", 9, kRight, 4},
                {"smem", 9, kRight, 3},
                {fmt::format(" CTAs/SM (sm_{})", sm), 30, kLeft, 1}});
}

std::string ranking(const Version& version, const std::vector<Result>& results, int sm, const Paint& paint) {
  const Table table = ranking_table(sm);
  std::string text =
      table.left_out().empty() ? "" : labelled("No room for", table.left_out() + " (--json has all)") + '\n';
  text += paint.bold(table.header());
  int rank = 0;
  for (const Result& result : results) {
    const Configuration& configuration = configuration_of(version, result);
    std::string registers = "-", smem = "-", ctas = "-";
    if (const StaticStudy* study = study_for(result.static_study, sm)) {
      registers =
          study->spill_bytes > 0 ? fmt::format("{} spills", study->registers) : std::to_string(study->registers);
      smem = fmt::format("{:.4g} KiB", study->smem_bytes / 1024.0);
      ctas = fmt::format("{} {}", study->ctas_per_sm, study->limited_by);
    }
    const bool timed = result.tflops && result.ms;
    std::string line = table.row(
        {timed ? std::to_string(++rank) : "-", " " + result.config,
         fmt::format("{}x{}", configuration.block_q, configuration.block_kv), std::to_string(configuration.num_warps),
         std::to_string(configuration.stages), std::to_string(configuration.step_kv),
         timed ? fmt::format("{:.1f}", *result.tflops) : to_string(result.status),
         timed ? fmt::format("{:.1f} %", 100 * *result.tflops / *results.front().tflops) : "-",
         timed ? fmt::format(" {:.4g} ({:.4g}, {:.4g})", result.ms->median, result.ms->p10, result.ms->p90) : " -",
         registers, smem, " " + ctas});
    if (result.status == Status::wrong || result.status == Status::failed) line = paint.bad(line);
    if (!result.reason.empty()) line += labelled("", result.reason);
    text += line + format_mismatches(result, paint);
  }
  return text;
}

TuningEntry entry_of(const Version& version, const std::vector<Result>& results, const DeviceInfo& device,
                     std::string hash) {
  TuningEntry entry{.kernel = kernel_id(version),
                    .name = version.name,
                    .problem = results.front().problem,
                    .code_hash = std::move(hash),
                    .toolkit = FLASH_LADDER_TOOLKIT,
                    .driver = device.driver,
                    .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))),
                    .ranking = {}};
  for (const Result& result : results)
    if (result.tflops && result.ms) entry.ranking.push_back({result.config, *result.tflops, *result.ms});
  return entry;
}

}  // namespace

int tune(const Options& asked) {
  const Version& version = select_with_code(asked.tune);
  const Options options = for_version(asked, version);
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (const auto file = newer_source({&version}, options.paths.source))
    throw UsageError(fmt::format(
        "--tune: {} is newer than the compiled code; build again, so that the tuning names the code that ran", *file));
  const Runner runner(options);
  refuse_without_a_clock(options, runner.device());
  const DeviceInfo& device = runner.device().gpu->info;
  const auto path = tuning_file(options.paths, device);
  // Refuse an unusable file before the work.
  read_tuning(path, device.name);
  check_document_writable(path);
  // Take the hash before the work, because a file that is edited meanwhile is not what ran.
  const auto hash = code_hash(source_file(version, options.paths.source), options.paths.source / "common");

  const Paint paint;
  say(options, paint.bold(title(version) + "\n\n") + labelled("Device", runner.device().why) +
                   labelled("Problem", describe(runner.problem())) + '\n');
  const std::vector<Result> results = measure(version, runner);
  say(options, ranking(version, results, runner.sm(), paint) + '\n');

  const bool any = std::any_of(results.begin(), results.end(), [](const Result& r) { return r.tflops.has_value(); });
  const bool all_right = std::all_of(results.begin(), results.end(), [](const Result& result) {
    return result.status == Status::skipped || (result.status == Status::ok && result.tflops);
  });
  if (any && all_right) {
    // Read the file again, because another --tune may have written it meanwhile.
    Tuning tuning = read_tuning(path, device.name).value_or(Tuning{.device = device.name, .entries = {}});
    tuning.put(entry_of(version, results, device, hash));
    write_tuning(path, tuning);
    say(options, fmt::format("wrote {}: for this problem {} now runs {} on {}, unless --config says otherwise\n",
                             path.string(), label(version), results.front().config, device.name));
  } else {
    complain(fmt::format("{}: nothing was written to {}, because {}", label(version), path.string(),
                         all_right ? "no configuration can run this problem" : "not every configuration was correct"));
  }
  // With --json -, none of the above was shown.
  if (options.json == "-" || !any)
    for (const Result& result : results)
      if (!result.reason.empty())
        complain(fmt::format("{} {} {}: {}", label(version), result.config, to_string(result.status), result.reason));
  write_json(options, results);
  return exit_code(options, results);
}

}  // namespace flash_ladder
