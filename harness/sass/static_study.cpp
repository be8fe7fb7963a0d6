#include "sass/static_study.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "errors.h"
#include "sass/occupancy.h"
#include "sass/opcode_class.h"
#include "sass/ptxas_report.h"
#include "sass/sass_code.h"
#include "source/compiled_text.h"

namespace flash_ladder {
namespace {

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

// One __global__ function of a configuration.
struct Kernel {
  SassFunction code;
  FunctionResources resources;
};

// What a configuration runs on one architecture; no kernels when the build has no such code.
struct Code {
  std::vector<Kernel> kernels;
  std::string hash;
};

Code code_of(const Configuration& configuration, const std::string& stem, const std::filesystem::path& directory) {
  const auto sass_file = directory / (stem + ".sass");
  const auto sass = read_file(sass_file), report = read_file(directory / (stem + ".ptxas"));
  if (!sass || !report) return {};

  const std::string traits = demangled(configuration.traits);
  const auto resources = parse_ptxas_report(*report);
  Code code{.kernels = {}, .hash = sass_hash(*sass)};
  for (SassFunction& function : parse_sass(*sass)) {
    const auto found = resources.find(function.name);
    if (found != resources.end() && demangled(function.name).find(traits) != std::string::npos)
      code.kernels.push_back({std::move(function), found->second});
  }
  if (code.kernels.empty())
    throw UnavailableError(
        fmt::format("{} has no __global__ function with {} in its name: build again, the file does not "
                    "fit this harness",
                    sass_file.string(), traits));
  return code;
}

// What the code says by itself, whatever SM runs it.
StaticStudy study_code(const Code& code, const Configuration& configuration) {
  StaticStudy study;
  study.sass_hash = code.hash;
  for (const Kernel& kernel : code.kernels) {
    study.registers = std::max(study.registers, kernel.resources.registers);
    study.spill_bytes = std::max(study.spill_bytes, kernel.resources.spill_bytes);
    study.smem_bytes = std::max(study.smem_bytes, kernel.resources.static_smem_bytes + configuration.smem_bytes);
    for (const auto& [opcode, count] : count_opcodes(kernel.code)) study.sass[opcode] += count;
  }

  const std::string opcode = work_opcode(study.sass);
  for (const Kernel& kernel : code.kernels) {
    const auto loop = hot_loop(kernel.code, opcode);
    if (!loop) continue;
    const auto count_in = [&](const OpcodeCounts& hot, const OpcodeCounts& cold) {
      return (hot.contains(opcode) ? hot.at(opcode) : 0) + (cold.contains(opcode) ? cold.at(opcode) : 0);
    };
    if (count_in(loop->every_iteration, loop->cold) > count_in(study.hot_loop_sass, study.hot_loop_cold_sass)) {
      study.hot_loop_sass = loop->every_iteration;
      study.hot_loop_cold_sass = loop->cold;
    }
  }
  return study;
}

}  // namespace

std::map<std::string, StaticStudy> static_study(const Version& version, const Configuration& configuration,
                                                const std::filesystem::path& directory) {
  // sm_86 and sm_89 run sm_80's code, under their own limits.
  std::map<std::string, StaticStudy> studies;
  std::map<std::string, Code> codes;
  for (const SmLimits& limits : kSmLimits) {
    const bool is_hopper = version.architecture == Architecture::sm_90a;
    if (is_hopper && limits.compute_capability != kHopperSm) continue;
    const std::string code_name = fmt::format("sm_{}{}", limits.code, is_hopper ? "a" : "");
    const auto [entry, is_new] = codes.try_emplace(code_name);
    Code& code = entry->second;
    if (is_new) code = code_of(configuration, label(version) + "." + code_name, directory);
    if (code.kernels.empty()) continue;

    StaticStudy study = study_code(code, configuration);
    if (limits.compute_capability != limits.code) {
      study.sass = study.hot_loop_sass = study.hot_loop_cold_sass = {};
      study.sass_hash.clear();
    }
    std::optional<Occupancy> smallest;
    for (const Kernel& kernel : code.kernels) {
      const Occupancy occupied = occupancy(limits, configuration.num_warps * 32, kernel.resources.registers,
                                           kernel.resources.static_smem_bytes + configuration.smem_bytes);
      if (!smallest || occupied.ctas_per_sm < smallest->ctas_per_sm) smallest = occupied;
    }
    study.ctas_per_sm = smallest->ctas_per_sm;
    study.limited_by = smallest->limited_by;
    studies[fmt::format("sm_{}", limits.compute_capability)] = std::move(study);
  }
  return studies;
}

}  // namespace flash_ladder
