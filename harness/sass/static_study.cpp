#include "sass/static_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sass/configuration_code.h"
#include "sass/machine_code.h"
#include "sass/occupancy.h"
#include "sass/ptxas_report.h"
#include "sass/sass_code.h"
#include "source/compiled_text.h"

namespace flash_ladder {
namespace {

// What a configuration runs on one architecture: its __global__ functions and ptxas's report on each; empty if the
// build has no such code.
struct Code {
  std::vector<SassFunction> functions;
  std::vector<FunctionResources> resources;
  std::string hash;
};

Code code_of(const Configuration& configuration, const std::string& stem, const std::filesystem::path& directory) {
  const auto report = read_study_file(directory / (stem + ".ptxas"));
  const auto sass = report ? machine_code(directory, stem) : std::nullopt;
  if (!sass) return {};

  const auto resources = parse_ptxas_report(*report);
  Code code{.functions = {}, .resources = {}, .hash = sass_hash(*sass)};
  for (SassFunction& function : parse_sass(*sass)) {
    const auto found = resources.find(function.name);
    if (found == resources.end() || !belongs_to(function.name, configuration)) continue;
    code.functions.push_back(std::move(function));
    code.resources.push_back(found->second);
  }
  if (code.functions.empty()) refuse_code(directory / (stem + ".sass"), configuration);
  return code;
}

// The part that depends on the code alone, whatever SM runs it.
StaticStudy study_code(const Code& code, const Configuration& configuration) {
  StaticStudy study;
  study.sass_hash = code.hash;
  for (const FunctionResources& resources : code.resources) {
    study.registers = std::max(study.registers, resources.registers);
    study.spill_bytes = std::max(study.spill_bytes, resources.spill_bytes);
    study.smem_bytes = std::max(study.smem_bytes, resources.static_smem_bytes + configuration.smem_bytes);
  }
  for (const SassFunction& function : code.functions)
    for (const auto& [opcode, count] : count_opcodes(function)) study.sass[opcode] += count;
  if (const auto loop = hot_loop(code.functions)) {
    study.hot_loop_sass = loop->every_iteration;
    study.hot_loop_cold_sass = loop->cold;
  }
  return study;
}

}  // namespace

std::map<std::string, StaticStudy> static_study(const Version& version, const Configuration& configuration,
                                                const std::filesystem::path& directory) {
  // sm_86 and sm_89 run the code of sm_80, under their own limits.
  std::map<std::string, StaticStudy> studies;
  std::map<std::string, Code> codes;
  for (const SmLimits& limits : kSmLimits) {
    if (version.architecture == Architecture::sm_90a && limits.compute_capability != kHopperSm) continue;
    const std::string name = code_name(version, limits.compute_capability);
    const auto [entry, is_new] = codes.try_emplace(name);
    Code& code = entry->second;
    if (is_new) code = code_of(configuration, label(version) + "." + name, directory);
    if (code.functions.empty()) continue;

    StaticStudy study = study_code(code, configuration);
    if (limits.compute_capability != limits.code) {
      study.sass = study.hot_loop_sass = study.hot_loop_cold_sass = {};
      study.sass_hash.clear();
    }
    std::optional<Occupancy> smallest;
    for (const FunctionResources& resources : code.resources) {
      const Occupancy occupied = occupancy(limits, configuration.num_warps * 32, resources.registers,
                                           resources.static_smem_bytes + configuration.smem_bytes);
      if (!smallest || occupied.ctas_per_sm < smallest->ctas_per_sm) smallest = occupied;
    }
    study.ctas_per_sm = smallest->ctas_per_sm;
    study.limited_by = smallest->limited_by;
    studies[fmt::format("sm_{}", limits.compute_capability)] = std::move(study);
  }
  return studies;
}

}  // namespace flash_ladder
