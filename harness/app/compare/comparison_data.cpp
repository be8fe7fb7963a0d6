#include "app/compare/comparison_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/card/opcode_counts.h"
#include "app/compare/source_diff.h"
#include "app/options/selection.h"
#include "app/run/configuration_choice.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "json_members.h"
#include "sass/machine_code.h"
#include "sass/static_study.h"

namespace flash_ladder {
namespace {

// Every problem that either recording contains, at `config`, or with an empty name at the fastest configuration.
std::vector<SpeedPair> speeds_of(Profiles& profiles, const Version& from, const Version& to,
                                 const std::string& config) {
  std::vector<SpeedPair> speeds;
  for (const std::string& folder : profiles.devices()) {
    const Recording *before = profiles.find(folder, from), *after = profiles.find(folder, to);
    std::vector<AttentionProblem> problems;
    for (const Recording* recording : {before, after})
      if (recording)
        for (const Result& result : recording->profile.results)
          if (std::find(problems.begin(), problems.end(), result.problem) == problems.end())
            problems.push_back(result.problem);
    for (const AttentionProblem& problem : problems) {
      SpeedPair pair{.folder = folder, .device = "", .problem = problem, .from = {}, .to = {}};
      if (auto both = profiles.speeds(folder, from, to, problem, config, config)) {
        pair.from = std::move(both->first);
        pair.to = std::move(both->second);
      } else {
        pair.from = profiles.speed(folder, from, problem, config);
        pair.to = profiles.speed(folder, to, problem, config);
      }
      for (const auto& speed : {pair.from, pair.to})
        if (speed) pair.device = speed->device;
      if (pair.from || pair.to) speeds.push_back(std::move(pair));
    }
  }
  return speeds;
}

std::vector<BusyPair> busy_pairs(Profiles& profiles, const Version& from, const Version& to,
                                 const StaticPair& compiled) {
  std::vector<BusyPair> pairs;
  for (const std::string& folder : profiles.devices()) {
    BusyPair pair{.folder = folder, .from = {}, .to = {}};
    const auto fill = [&](const Version& version, const Configuration& shown, std::optional<BusyVersion>& place) {
      if (auto found = busy_of(profiles, {folder}, version, shown.name); !found.empty())
        place = std::move(found.front());
    };
    fill(from, *compiled.config_from, pair.from);
    fill(to, *compiled.config_to, pair.to);
    if (pair.from || pair.to) pairs.push_back(std::move(pair));
  }
  return pairs;
}

CountedPair count(const Version& from, const Version& to, const Options& options) {
  Options counting = options;
  counting.device = {.kind = DeviceKind::emulator, .ordinal = 0};
  CountedPair counted;
  try {
    const auto run = [&](const Version& version) {
      const Options own = for_version(counting, version);
      const Runner runner(own);
      return runner.run(version,
                        {.problem = runner.problem(), .config = own.config, .check = false, .benchmark = false});
    };
    counted.from = run(from);
    counted.to = run(to);
    counted.exit_code = exit_code(options, {counted.from, counted.to});
    for (const Result* result : {&counted.from, &counted.to})
      if (!result->counters) {
        counted.why_not = fmt::format("{} {}: {}", label(*result), to_string(result->status), result->reason);
        return counted;
      }
    counted.lines = line_changes(from, counted.from, to, counted.to, options.paths.source);
  } catch (const UnavailableError& error) {
    counted.exit_code = kExitUnavailable;
    counted.why_not = error.what();
  }
  return counted;
}

StaticPair compiled(const Version& from, const Version& to, const Options& options) {
  const int sm = options.sm.value_or(kDefaultSm);
  StaticPair pair{.sm = sm,
                  .code = code_name(sm),
                  .config_from = nullptr,
                  .config_to = nullptr,
                  .from = {},
                  .to = {},
                  .code_from = {},
                  .code_to = {}};
  const auto fill = [&](const Version& version, const Configuration*& configuration, std::optional<StaticStudy>& own,
                        std::optional<StaticStudy>& code) {
    const auto choice =
        choose_configuration(version, options.config, for_version(options, version).problem, std::nullopt, sm);
    if (!choice.configuration) throw UsageError(choice.why_not);
    configuration = choice.configuration;
    const auto studies = static_study(version, *configuration, options.paths.study);
    if (const StaticStudy* study = study_for(studies, sm)) own = *study;
    if (const StaticStudy* study = code_for(studies, sm)) code = *study;
  };
  fill(from, pair.config_from, pair.from, pair.code_from);
  fill(to, pair.config_to, pair.to, pair.code_to);
  return pair;
}

nlohmann::json version_document(const Version& version, const std::string& config) {
  return {{"kernel", kernel_id(version)}, {"name", version.name}, {"file", version.source}, {"config", config}};
}

nlohmann::json counted_document(const CountedPair& counted) {
  if (!counted.why_not.empty()) return nullptr;
  auto lines = nlohmann::json::array();
  for (const LineChange& change : counted.lines)
    lines.push_back({{"line_from", known_or_null(change.from)},
                     {"line_to", known_or_null(change.to)},
                     {"code", change.code},
                     {"from", counters_to_json(change.before, Zeros::left_out)},
                     {"to", counters_to_json(change.after, Zeros::left_out)}});
  return {{"device", known_or_null(counted.to.device)},
          {"problem", counted.to.problem},
          {"from", counters_to_json(*counted.from.counters, Zeros::kept)},
          {"to", counters_to_json(*counted.to.counters, Zeros::kept)},
          {"lines", lines}};
}

}  // namespace

Comparison gather_comparison(const Options& options, Profiles& profiles) {
  const auto [from, to] = select_with_code(options.diff.first, options.diff.second);
  const auto& tree = options.paths.source;
  CountedPair counted = count(from, to, options);
  StaticPair pair = compiled(from, to, options);
  return {.from = from,
          .to = to,
          .problem = options.problem,
          .header = read_header_comment(source_file(to, tree)),
          .size = diff_size(source_file(from, tree), source_file(to, tree)),
          .diff = source_diff(from, to, tree),
          .speeds = speeds_of(profiles, from, to, options.config),
          .busy = busy_pairs(profiles, from, to, pair),
          .counted = std::move(counted),
          .compiled = std::move(pair)};
}

MeasuredWays ways_of(const std::vector<SpeedPair>& speeds) {
  MeasuredWays ways;
  for (const SpeedPair& speed : speeds) {
    ways.add(speed.from);
    ways.add(speed.to);
  }
  return ways;
}

std::string speed_figure(const std::optional<RecordedSpeed>& speed, const Configuration& shown,
                         const MeasuredWays& ways, const std::string& none) {
  const bool is_other = speed && !speed->config.empty() && speed->config != shown.name;
  return (is_other ? speed->config + ": " : "") + ways.figure(speed, none);
}

nlohmann::json comparison_document(const Comparison& comparison) {
  using nlohmann::json;
  const auto way_document = [](const std::string& way) { return way == kByRecord ? "record" : way; };
  auto speeds = nlohmann::json::array();
  for (const SpeedPair& speed : comparison.speeds)
    speeds.push_back({{"device", speed.device},
                      {"problem", speed.problem},
                      {"from", speed.from ? json(speed.from->tflops) : json()},
                      {"to", speed.to ? json(speed.to->tflops) : json()},
                      {"config_from", speed.from ? json(speed.from->config) : json()},
                      {"config_to", speed.to ? json(speed.to->config) : json()},
                      {"measured_from", speed.from ? json(way_document(speed.from->way)) : json()},
                      {"measured_to", speed.to ? json(way_document(speed.to->way)) : json()},
                      {"ratio", known_or_null(speed.ratio())},
                      {"stale", speed.stale()}});
  auto busy = nlohmann::json::array();
  for (const BusyPair& pair : comparison.busy)
    for (const auto& [version, counted] :
         {std::pair(&comparison.from, &pair.from), std::pair(&comparison.to, &pair.to)})
      if (*counted)
        for (auto& one : busy_document(*version, {**counted})) busy.push_back(std::move(one));
  const StaticPair& compiled = comparison.compiled;
  return {
      {"from", version_document(comparison.from, compiled.config_from->name)},
      {"to", version_document(comparison.to, compiled.config_to->name)},
      {"idea", comparison.header.idea},
      {"changed", comparison.header.changed},
      {"prediction", comparison.header.prediction},
      {"source", {{"added", comparison.size.added}, {"removed", comparison.size.removed}, {"diff", comparison.diff}}},
      {"tflops", speeds},
      {"busy", busy},
      {"counted", counted_document(comparison.counted)},
      {"why_not_counted", known_or_null(comparison.counted.why_not)},
      {"static",
       {{"sm", compiled.sm},
        {"code", compiled.code},
        {"from", known_or_null(compiled.from)},
        {"to", known_or_null(compiled.to)},
        {"code_from", known_or_null(compiled.code_from)},
        {"code_to", known_or_null(compiled.code_to)}}}};
}

}  // namespace flash_ladder
