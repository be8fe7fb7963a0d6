#include "app/version_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/output.h"
#include "app/recorded.h"
#include "app/selection.h"
#include "app/standard_shapes.h"
#include "app/study_card.h"
#include "app/terminal.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "results/atomic_file.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kLeastSpeedWidth = 12, kWidestIdea = 110;

// The names of a version's configurations, the preferred one first.
std::vector<std::string> configuration_names(const Version& version) {
  std::vector<std::string> names;
  for (const Configuration& configuration : version.configurations)
    if (std::find(names.begin(), names.end(), configuration.name) == names.end()) names.push_back(configuration.name);
  return names;
}

// harness/results/versions.schema.json
nlohmann::json versions_document(const Paths& paths) {
  auto all = nlohmann::json::array();
  for (const Version& version : versions()) {
    auto configurations = nlohmann::json::array();
    for (const Configuration& configuration : version.configurations)
      configurations.push_back({{"name", configuration.name},
                                {"dtype", to_string(configuration.dtype)},
                                {"block_q", configuration.block_q},
                                {"block_kv", configuration.block_kv},
                                {"head_dim", configuration.head_dim},
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
                   {"solves", nlohmann::json::object()},
                   {"code_hash", code_hash(source_file(version, paths.source), paths.source / "common")},
                   {"configurations", configurations}});
    for (const auto& [name, member] : kSolves) all.back()["solves"][name] = version.solves.*member;
    if (version.is_extension()) all.back()["extends"] = version.extends;
  }
  auto shapes = nlohmann::json::array();
  for (const StandardShape& shape : kStandardShapes)
    shapes.push_back({{"batch", shape.batch}, {"seq_len", shape.seq_len}});
  auto architectures = nlohmann::json::array();
  for (const SmLimits& limits : kSmLimits) architectures.push_back(limits.compute_capability);
  return {{"versions", all},
          {"standard", {{"heads", kStandardHeads}, {"head_dim", kStandardHeadDim}, {"shapes", shapes}}},
          {"sm", architectures}};
}

std::string speed(const Recording* recording, const AttentionProblem& problem) {
  const Result* result = recording ? find_result(*recording, problem) : nullptr;
  const std::string figure = result ? fmt::format("{:.1f}", *result->tflops) : "-";
  return recording && recording->stale ? figure + " stale" : figure;
}

// The first sentence, or as many words of it as `width` columns hold.
std::string in_short(const std::string& idea, std::size_t width) {
  const std::string text = idea.substr(0, idea.find(". "));
  if (display_width(text) <= width) return text;
  const std::string first = wrapped(text, std::max<std::size_t>(width, 3) - 2, 0);
  const std::string words = first.substr(0, first.find('\n'));
  return display_width(words) + 2 > width ? "" : words + " …";
}

}  // namespace

int list_versions(const Options& options) {
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  const Paint paint;
  Recorded recorded(options.paths);
  const auto devices = recorded.devices();

  std::size_t config_width = 0;
  for (const Version& version : versions())
    config_width = std::max(config_width, fmt::format("{}  ", fmt::join(configuration_names(version), ", ")).size());

  const auto speed_width = [](const std::string& device) {
    return std::max(kLeastSpeedWidth, display_width(device) + 2);
  };
  std::size_t taken = version_column_width() + config_width;
  for (const auto& device : devices) taken += speed_width(device);
  const std::size_t idea_width = std::min(output_width() - std::min(output_width(), taken), kWidestIdea);

  std::string header = pad("version", version_column_width());
  for (const auto& device : devices) header += pad(device, speed_width(device));
  std::string text = labelled("TFLOP/s at", describe(options.problem)) + "\n" +
                     paint.bold(header + pad("config", config_width) + "idea") + "\n";
  bool stale = false;
  for (const Version& version : versions()) {
    text += pad(label(version), version_column_width());
    for (const auto& device : devices) {
      const Recording* recording = recorded.find(device, version);
      const std::string figure = speed(recording, options.problem);
      const bool is_stale = recording && recording->stale;
      text += pad(is_stale ? paint.notable(figure) : figure, speed_width(device));
      stale = stale || is_stale;
    }
    text += pad(fmt::format("{}", fmt::join(configuration_names(version), ", ")), config_width);
    text += in_short(read_header_comment(source_file(version, options.paths.source)).idea, idea_width) + "\n";
  }
  if (stale) text += "\nstale: the code has changed since it was recorded; --record measures it anew\n";
  if (devices.empty()) text += fmt::format("\nnothing is recorded in {}\n", options.paths.profiles.string());
  say(options, text);
  for (const auto& problem : recorded.problems()) complain(problem);
  write_json(options, versions_document(options.paths));
  return recorded.problems().empty() ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
