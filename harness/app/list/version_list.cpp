#include "app/list/version_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/card/profiles.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/options/standard_shapes.h"
#include "app/run/kernel_code.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "problem/kind.h"
#include "results/atomic_file.h"
#include "rules/support.h"
#include "source/kernel_source.h"
#include "source/registration_text.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kLeastSpeedWidth = 6, kWidestConfig = 40, kNarrowestIdea = 60, kWidestIdea = 110, kIndent = 4;

// The names of a version's configurations, the preferred one first. The file says them too, so that a list needs no compiled
// kernel.
std::vector<std::string> configuration_names(const Version& version, const Paths& paths) {
  if (!version.is_registered) return read_registration(source_file(version, paths.source)).configurations;
  std::vector<std::string> names;
  for (const Configuration& configuration : version.configurations)
    if (std::find(names.begin(), names.end(), configuration.name) == names.end()) names.push_back(configuration.name);
  return names;
}

// harness/results/versions.schema.json
nlohmann::json versions_document(const Paths& paths) {
  auto all = nlohmann::json::array();
  for (const Version& version : versions()) {
    if (!version.is_registered) continue;  // its code cannot be had
    auto configurations = nlohmann::json::array();
    for (const Configuration& configuration : version.configurations)
      configurations.push_back({{"name", configuration.name},
                                {"dtype", to_string(configuration.dtype)},
                                {"block_q", configuration.block_q},
                                {"block_kv", configuration.block_kv},
                                {"head_dim", configuration.head_dim},
                                {"head_dim_v", configuration.head_dim_v},
                                {"num_warps", configuration.num_warps},
                                {"stages", configuration.stages},
                                {"step_kv", configuration.step_kv},
                                {"smem_bytes", configuration.smem_bytes}});
    all.push_back({{"kernel", kernel_id(version)},
                   {"name", version.name},
                   {"file", version.source},
                   {"extends", nullptr},
                   {"is_fast", is_fast(version)},
                   {"architecture", version.architecture == Architecture::sm_90a ? "sm_90a" : "sm_80"},
                   {"kind", kind_of(version).name},
                   {"most_queries", version.most_queries},
                   {"deterministic", version.deterministic},
                   {"solves", nlohmann::json::object()},
                   {"code_hash", code_hash(source_file(version, paths.source), paths.source / "common")},
                   {"configurations", configurations}});
    for (const auto& [name, member] : kSolves) all.back()["solves"][name] = version.solves.*member;
    if (version.is_extension()) all.back()["extends"] = version.extends;
  }
  auto shapes = nlohmann::json::array();
  for (const StandardShape& shape : kStandardShapes)
    shapes.push_back({{"batch", shape.batch}, {"seq_len", shape.seq_len}});
  auto decoding_shapes = nlohmann::json::array();
  for (const StandardShape& shape : kDecodingShapes)
    decoding_shapes.push_back({{"batch", shape.batch}, {"seq_len", 1}, {"seq_len_kv", shape.seq_len}});
  auto architectures = nlohmann::json::array();
  for (const SmLimits& limits : kSmLimits) architectures.push_back(limits.compute_capability);
  return {{"versions", all},
          {"standard", {{"heads", kStandardHeads}, {"head_dim", kStandardHeadDim}, {"shapes", shapes}}},
          {"standard_decoding",
           {{"heads", kDecodingHeads},
            {"kv_heads", kDecodingKvHeads},
            {"head_dim", kStandardHeadDim},
            {"shapes", decoding_shapes}}},
          {"sm", architectures}};
}

// The problem at which a version's figure is shown, and the figure: TFLOP/s, or GB/s of K and V.
const AttentionProblem& problem_of(const Version& version, const Options& options) {
  return version.track == Track::decoding ? options.decoding_problem : options.problem;
}
std::optional<RecordedSpeed> shown_speed(Profiles& profiles, const std::string& device, const Version& version,
                                         const Options& options) {
  const AttentionProblem& problem = problem_of(version, options);
  auto speed = profiles.speed(device, version, problem);
  if (speed && version.track == Track::decoding) speed->tflops = kv_gb_per_s(problem, speed->tflops);
  return speed;
}

// The first sentence.
std::string in_short(const std::string& idea) { return idea.substr(0, idea.find(". ")); }

// "kernels/hopper", because each track is a folder.
std::string track_of(const Version& version) { return version.source.substr(0, version.source.rfind('/')); }

// Those of a track together: extensions are ordered by their names alone, whatever their track.
std::vector<const Version*> versions_by_track() {
  std::vector<const Version*> ordered;
  std::vector<std::string> tracks;
  for (const Version& version : versions()) {
    ordered.push_back(&version);
    if (std::ranges::find(tracks, track_of(version)) == tracks.end()) tracks.push_back(track_of(version));
  }
  std::ranges::stable_sort(ordered, {},
                           [&](const Version* version) { return std::ranges::find(tracks, track_of(*version)); });
  return ordered;
}

}  // namespace

int list_versions(const Options& options) {
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (!options.json.empty()) select_all_with_code("all");  // it describes each configuration
  const Paint paint;
  Profiles profiles(options.paths);
  const auto devices = profiles.devices();

  std::size_t config_width = 0;
  MeasuredWays ways;
  for (const Version& version : versions()) {
    config_width =
        std::max(config_width, fmt::format("{}", fmt::join(configuration_names(version, options.paths), ", ")).size());
    for (const auto& device : devices) ways.add(shown_speed(profiles, device, version, options));
  }
  const auto to_the_right = [](const std::string& cell, const std::string& device) {
    const std::size_t width = std::max(kLeastSpeedWidth, display_width(device));
    return std::string(width - std::min(width, display_width(cell)), ' ') + cell + "  ";
  };
  std::string header = pad("version", version_column_width());
  for (const auto& device : devices) header += to_the_right(device, device);
  config_width = std::min(config_width, kWidestConfig);
  header += pad("config", config_width);
  // An idea gets its own line if the row has no room for it.
  const std::size_t width = std::min(output_width(), display_width(header) + 2 + kWidestIdea);
  const bool in_row = width >= display_width(header) + 2 + kNarrowestIdea;

  std::string text = labelled("TFLOP/s at", describe(options.problem));
  if (std::ranges::any_of(versions(), [](const Version& version) { return version.track == Track::decoding; }))
    text += labelled("Decoding", "GB/s of K and V at " + describe(options.decoding_problem));
  if (!ways.legend().empty()) text += labelled("Measured", ways.legend());
  text += "\n" + paint.bold(header + (in_row ? "  idea" : "")) + "\n";
  bool stale = false;
  std::string track;
  for (const Version* const shown : versions_by_track()) {
    const Version& version = *shown;
    if (track_of(version) != track) {
      track = track_of(version);
      text += "\n" + paint.dim(track + "/") + "\n";
    }
    std::string row = pad(label(version), version_column_width());
    for (const auto& device : devices) {
      const auto speed = shown_speed(profiles, device, version, options);
      std::string figure = ways.figure(speed);
      if (ways.has_stars() && (!speed || speed->way != kByRecord)) figure += ' ';  // aligns digits with digits
      const bool is_stale = speed && speed->stale;
      row += to_the_right(is_stale ? paint.notable(figure) : figure, device);
      stale = stale || is_stale;
    }
    const std::size_t left = output_width() - std::min(output_width(), display_width(row));
    row += shortened(fmt::format("{}", fmt::join(configuration_names(version, options.paths), ", ")),
                     in_row ? config_width : left);
    const std::string idea = in_short(read_header_comment(source_file(version, options.paths.source)).idea);
    if (in_row) {
      row = pad(row, display_width(header)) + "  ";
      text += row + shortened(idea, width - display_width(row)) + "\n";
    } else {
      text += row + "\n" + wrapped(std::string(kIndent, ' ') + idea, width, kIndent) + "\n";
    }
  }
  if (stale) text += "\nstale: the code has changed since it was recorded; --record measures it again\n";
  if (devices.empty()) text += fmt::format("\nnothing is recorded in {}\n", options.paths.profiles.string());
  say(options, text);
  for (const auto& problem : profiles.problems()) complain(problem);
  write_json(options, versions_document(options.paths));
  return profiles.problems().empty() ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
