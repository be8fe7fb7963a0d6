#include "app/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/card/busy_view.h"
#include "app/card/counters.h"
#include "app/card/hints.h"
#include "app/card/opcode_counts.h"
#include "app/card/profiles.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "app/run/up_to_date.h"
#include "app/terminal/table.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "results/profile.h"
#include "rules/support.h"
#include "sass/static_study.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

// The relevant folders of profiles/: the GPU's own, or all of them if no GPU runs. Empty if the data differ from those
// of the recordings.
std::vector<std::string> devices_to_show(const Profiles& profiles, const DeviceChoice& device, Distribution data) {
  if (data != Distribution::normal) return {};
  if (device.gpu && !device.gpu->is_virtual) return {device_slug(device.gpu->info.name)};
  return profiles.devices();
}

// On each device, the speed of `config`, or with an empty name that of the fastest configuration, as in the README and
// --list.
std::vector<RecordedSpeed> recorded_speeds(Profiles& profiles, const std::vector<std::string>& devices,
                                           const Version& version, const AttentionProblem& problem,
                                           const std::string& config) {
  std::vector<RecordedSpeed> speeds;
  for (const auto& device : devices)
    if (auto speed = profiles.speed(device, version, problem, config)) speeds.push_back(std::move(*speed));
  return speeds;
}

// What the card shows: the fastest configuration and, if it is a different one, the configuration that the card is
// about; with --config only the latter. Next to a figure that was measured now, also the figure of --record, which was
// measured in the same way.
std::vector<RecordedSpeed> speeds_for_card(Profiles& profiles, const std::vector<std::string>& devices,
                                           const Version& version, const Result& result, const Options& options) {
  const AttentionProblem& problem = options.problem;
  auto speeds = recorded_speeds(profiles, devices, version, problem, options.config);
  const auto add = [&](const RecordedSpeed& speed) {
    if (std::none_of(speeds.begin(), speeds.end(), [&](const RecordedSpeed& shown) {
          return shown.device == speed.device && shown.config == speed.config &&
                 (shown.way == speed.way || !result.tflops);
        }))
      speeds.push_back(speed);
  };
  for (const RecordedSpeed& own : recorded_speeds(profiles, devices, version, problem, result.config)) add(own);
  for (const auto& device : devices)
    if (const auto speed = profiles.speed_by_record(device, version, problem, result.config); speed && result.tflops)
      add(*speed);
  return speeds;
}

std::string origin_of(const RecordedSpeed& speed) {
  return fmt::format("{} on {}{}", speed.way, speed.device, speed.stale ? std::string("; ") + kStale : "");
}

// The speed of the version and of the version before, measured in the same way: now if this version was measured now,
// otherwise as recorded.
void fill_step(StudyCard& card, Profiles& profiles, const std::vector<std::string>& devices, const Options& options,
               const Runner& runner) {
  const Result& result = card.result;
  const AttentionProblem& problem = options.problem;
  if (result.tflops) {
    card.own_speed = Speed{*result.tflops, "measured now"};
    for (const std::string& device : devices)
      if (const auto speed = profiles.speed_by_record(device, *card.before, problem); speed && !speed->stale) {
        card.speed_before = Speed{speed->tflops, origin_of(*speed)};
        return;
      }
    if (!card.before->is_registered) return;
    const Result measured =
        runner.run(*card.before, {.problem = result.problem, .config = "", .check = false, .benchmark = true});
    if (measured.tflops) card.speed_before = Speed{*measured.tflops, "measured now"};
    return;
  }
  for (const std::string& device : devices)
    if (const auto both = profiles.speeds(device, *card.before, card.version, problem, "", options.config)) {
      card.speed_before = Speed{both->first.tflops, origin_of(both->first)};
      card.own_speed = Speed{both->second.tflops, origin_of(both->second)};
      return;
    }
  if (!card.recorded.empty()) card.own_speed = Speed{card.recorded.front().tflops, origin_of(card.recorded.front())};
}

std::vector<std::string> read_on(const Version& version, const Version* before, const Paths& paths) {
  std::vector<std::string> places;
  const std::string chapter = fmt::format("docs/chapters/{}.md", label(version));
  if (std::filesystem::exists(paths.source / chapter)) places.push_back(chapter);
  places.push_back(version.source);
  if (before) places.push_back(fmt::format("harness --diff {} {}", kernel_id(*before), kernel_id(version)));
  places.push_back(fmt::format("harness --kernel {} --sass", kernel_id(version)));
  return places;
}

std::string card_of(const Version& version, const Result& result, const Options& options, const Runner& runner,
                    Profiles& profiles, const Paint& paint) {
  const auto devices = devices_to_show(profiles, runner.device(), options.data);
  const Version* before = version_before(version);
  // The virtual GPU runs a smaller problem than the ones that GPUs are recorded at.
  const AttentionProblem& recorded_problem = options.problem;
  StudyCard card{.version = version,
                 .result = result,
                 .device = runner.device().why,
                 .ran = runner.device().gpu && result.status != Status::skipped,
                 .tuned = runner.choose(version, options.config, result.problem).tuned,
                 .sm = runner.sm(version),
                 .header = read_header_comment(source_file(version, options.paths.source)),
                 .recorded = speeds_for_card(profiles, devices, version, result, options),
                 .recorded_problem = recorded_problem == result.problem ? "" : describe(recorded_problem),
                 .beside_peers = {},
                 .busy = busy_of(profiles, devices, version, result.config),
                 .before = before,
                 .own_speed = {},
                 .speed_before = {},
                 .static_before = {},
                 .lines = options.lines ? kAllLines : kCostliestLines,
                 .source_tree = options.paths.source,
                 .all_findings = options.all_findings,
                 .read_on = read_on(version, before, options.paths)};
  if (!devices.empty())
    card.beside_peers = profiles.beside_peers(devices.front(), version, options.config, recorded_problem);
  if (before) {
    fill_step(card, profiles, devices, options, runner);
  }
  if (before && before->is_registered) {
    const auto choice = runner.choose(*before, "", result.problem);
    if (choice.configuration) card.static_before = static_study(*before, *choice.configuration, options.paths.study);
  }
  return format_study_card(card, paint);
}

// One line per version, printed as each finishes.
class VersionTable {
 public:
  VersionTable(const std::vector<const Version*>& selected, const Options& options, const Runner& runner,
               Profiles& profiles, const Paint& paint)
      : options_(options), runner_(runner), profiles_(profiles), paint_(paint), table_(columns(runner)) {
    const auto& device = runner.device();
    for (const Version* version : selected) ways_.add(speed(*version));
    say(options,
        labelled("Device", describe_device(device.why, device.gpu.has_value(), paint)) +
            labelled("Problem", describe_with_data(runner.problem(), options.data)) +
            (runner.is_virtual() ? labelled("Columns",
                                            "instr: warp instructions; shared and global: wavefronts and sectors as "
                                            "multiples of the ideal; recorded: TFLOP/s at " +
                                                describe(options.problem))
                                 : "") +
            (ways_.legend().empty() ? "" : labelled("Recorded", ways_.legend())) +
            (table_.left_out().empty() ? "" : labelled("No room for", table_.left_out() + " (--json has all)")) + '\n');
    say(options, paint.bold(table_.header()));
  }

  void add(const Version& version, const Result& result) {
    const std::string recorded = ways_.figure(speed(version));
    std::optional<double> factor;
    if (result.tflops && tflops_before_) factor = *result.tflops / *tflops_before_;
    if (const auto devices = devices_to_show(profiles_, runner_.device(), options_.data);
        before_ != nullptr && !runner_.device().gpu && !devices.empty())
      if (const auto both =
              profiles_.speeds(devices.front(), *before_, version, options_.problem, options_.config, options_.config))
        factor = both->second.tflops / both->first.tflops;
    const std::string step = factor ? fmt::format("{:.2f}x", *factor) : "-";
    tflops_before_ = result.tflops;
    before_ = &version;
    std::string registers = "-", spills = "-", smem = "-", ctas = "-";
    const int sm = runner_.sm(version);
    if (const StaticStudy* study = study_for(result.static_study, sm)) {
      registers = std::to_string(study->registers);
      spills = std::to_string(study->spill_bytes);
      smem = fmt::format("{:.4g} KiB", study->smem_bytes / 1024.0);
      ctas = fmt::format("{} {}", study->ctas_per_sm, study->limited_by);
      if (sm != runner_.sm()) ctas += fmt::format(" (sm_{})", sm);
    }
    std::string first = result.tflops ? fmt::format("{:.1f}", *result.tflops) : "-", second = step,
                third = result.ms ? fmt::format("{:.4g}", result.ms->median) : "-";
    if (runner_.is_virtual()) {
      const CounterSummary summary = summarise_counters(result);
      first = summary.instructions;
      second = summary.shared;
      third = summary.global;
    }
    std::string line = table_.row(
        {label(version), result.config, status(result), first, second, third, recorded, registers, spills, smem, ctas});
    if (result.status == Status::wrong || result.status == Status::failed) line = paint_.bad(line);
    if (const auto choice = runner_.choose(version, options_.config, result.problem); !choice.tuned.empty())
      line += labelled("", "tuned: " + choice.tuned);
    if (!result.reason.empty()) line += labelled("", result.reason);
    line += format_findings(result, options_.all_findings, paint_);
    if (!result.findings.empty())
      line += format_hints(hints_from(result.findings.front(), options_.paths.source), options_.paths.source, paint_);
    line += format_diagnosis(result, paint_) + format_mismatches(result, paint_);
    if (options_.lines) line += format_lines(result, kAllLines, options_.paths.source, paint_);
    say(options_, line);
  }

 private:
  static std::vector<Column> columns(const Runner& runner) {
    const bool counts = runner.is_virtual();
    constexpr auto kLeft = Column::Side::left, kRight = Column::Side::right;
    return {{"version", version_column_width() - 1, kLeft, 10},
            {"config", 8, kLeft, 9},
            {"result", 9, kLeft, 10},
            {counts ? "instr" : "TFLOP/s", 7, kRight, 8},
            {counts ? "shared" : "step", 7, kRight, 7},
            {counts ? "global" : "ms", 8, kRight, 4},
            {"recorded", 13, kRight, 6},
            {"regs", 5, kRight, 5},
            {"spill", 6, kRight, 1},
            {"smem", 9, kRight, 3},
            {fmt::format("CTAs/SM (sm_{})", runner.sm()), 29, kLeft, 2}};
  }

  static std::string status(const Result& result) {
    if (result.status != Status::ok) return to_string(result.status);
    if (!result.device) return "not run";
    return result.correct ? "correct" : "unchecked";
  }

  // On the first device that has a figure; next to a figure measured now, the one that was measured in the same way.
  std::optional<RecordedSpeed> speed(const Version& version) const {
    const bool measures = runner_.device().gpu && !runner_.is_virtual();
    for (const std::string& device : devices_to_show(profiles_, runner_.device(), options_.data))
      if (auto found = measures ? profiles_.speed_by_record(device, version, options_.problem, options_.config)
                                : profiles_.speed(device, version, options_.problem, options_.config))
        return found;
    return std::nullopt;
  }

  const Options& options_;
  const Runner& runner_;
  Profiles& profiles_;
  const Paint& paint_;
  const Table table_;
  MeasuredWays ways_;
  const Version* before_ = nullptr;  // the version of the row above
  std::optional<double> tflops_before_;
};

std::string totals(const std::vector<Result>& results, bool ran) {
  std::string text = fmt::format("\n{} versions", results.size());
  for (const Status status : {Status::ok, Status::wrong, Status::skipped, Status::failed}) {
    const auto count =
        std::count_if(results.begin(), results.end(), [&](const Result& r) { return r.status == status; });
    if (count > 0) text += fmt::format(", {} {}", count, status == Status::ok && !ran ? "not run" : to_string(status));
  }
  return text + "\n";
}

// If a result of --tune exists and is not used, the figures are those of another configuration.
void complain_of_tuning(const std::vector<const Version*>& selected, const Options& options, const Runner& runner) {
  if (!runner.tuning_problem().empty()) complain(runner.tuning_problem());
  for (const Version* version : selected)
    if (const auto why = runner.choose(*version, options.config, runner.problem()).tuning_not_used; !why.empty())
      complain(why);
}

}  // namespace

int study(const Options& asked) {
  const auto selected = select_all_with_code_before(asked.kernels);
  // A table is about one problem, so versions that do not compute its type are skipped.
  const Options options = selected.size() == 1 ? for_version(asked, *selected.front()) : asked;
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (!options.trace.empty()) check_writable(options.trace);
  if (const auto file = newer_source(selected, options.paths.source))
    complain(fmt::format("warning: {} is newer than the compiled code, so what runs is older; build again", *file));
  const Runner runner(options);
  if (!runner.is_virtual() && (options.lines || options.max_instructions > 0 || !options.trace.empty()))
    throw UsageError(
        "--lines, --max-instructions and --trace are for the virtual GPU: add --device emulator, or leave them out");
  if (!options.trace.empty() && selected.size() > 1)
    throw UsageError(
        fmt::format("--trace is for a single version, and --kernel '{}' names {}", options.kernels, selected.size()));
  Profiles profiles(options.paths);
  const Paint paint;
  const Run run{
      .problem = runner.problem(), .config = options.config, .check = options.check, .benchmark = options.benchmark};

  std::vector<Result> results;
  if (selected.size() == 1) {
    const Version& version = *selected.front();
    results.push_back(runner.run(version, run));
    const Result& result = results.front();
    if (result.status == Status::skipped && !result.device_cannot)
      complain(result.reason);
    else
      say(options, card_of(version, result, options, runner, profiles, paint));
  } else {
    VersionTable table(selected, options, runner, profiles, paint);
    for (const Version* version : selected) {
      results.push_back(runner.run(*version, run));
      table.add(*version, results.back());
    }
    say(options, totals(results, runner.device().gpu.has_value()));
    if (exit_code(options, results) == kExitUsage) {
      const bool runs = std::any_of(selected.begin(), selected.end(), [&](const Version* version) {
        return runs_on(version->architecture, runner.sm(*version));
      });
      complain(runs
                   ? "no version supports this problem: every one was skipped"
                   : fmt::format("none of these versions runs on sm_{}: every one was skipped; choose another --sm, or "
                                 "leave it out",
                                 runner.sm()));
    }
  }
  // With --json -, none of the above was shown.
  if (options.json == "-")
    for (const Result& result : results) {
      if (!result.reason.empty() &&
          !(selected.size() == 1 && result.status == Status::skipped && !result.device_cannot))
        complain(fmt::format("{} {}: {}", label(result), to_string(result.status), result.reason));
      if (!result.diagnosis) continue;
      for (const std::string& sentence : result.diagnosis->sentences)
        complain(fmt::format("{}: {}", label(result), sentence));
    }
  nlohmann::json document = results_document(results);
  auto& busy = document["busy"] = nlohmann::json::array();
  for (std::size_t i = 0; i < selected.size(); ++i)
    for (auto& counted :
         busy_document(*selected[i], busy_of(profiles, devices_to_show(profiles, runner.device(), options.data),
                                             *selected[i], results[i].config)))
      busy.push_back(std::move(counted));
  for (const auto& problem : profiles.problems()) complain(problem);
  complain_of_tuning(selected, options, runner);
  if (!options.trace.empty() && results.front().counters)
    say(options, labelled("Trace", options.trace + ": open it with https://ui.perfetto.dev; it counts instructions, "
                                                   "not time"));
  write_json(options, document);
  const int code = exit_code(options, results);
  return code == kExitOk && !runner.device().gpu ? kExitUnavailable : code;  // the user asked to run them
}

}  // namespace flash_ladder
