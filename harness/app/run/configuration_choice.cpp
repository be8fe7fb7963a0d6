#include "app/run/configuration_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "host/sm_limits.h"
#include "rules/support.h"

namespace flash_ladder {
namespace {

// An SM without the rest of a GPU, which is enough to decide which configurations fit it.
DeviceInfo bare_sm(int compute_capability) {
  DeviceInfo info;
  info.name = fmt::format("sm_{}", compute_capability);
  info.compute_capability = compute_capability;
  if (const SmLimits* limits = sm_limits(compute_capability)) info.smem_per_cta_bytes = limits->smem_per_cta_bytes;
  return info;
}

bool exceeds_32_bits(const AttentionProblem& problem) {
  return std::max({problem.batch, problem.heads, problem.seq_len, problem.seq_len_kv}) >
         std::numeric_limits<std::int32_t>::max();
}

std::optional<std::string> why_not(const Version& version, const Configuration& configuration,
                                   const AttentionProblem& problem, const DeviceInfo& device) {
  const bool memory_known = device.memory_total_bytes > 0;
  // If a size is absurdly large, a message about memory is more helpful than the limit of an int.
  if (memory_known && exceeds_32_bits(problem))
    if (auto why = why_no_memory(version, configuration, problem, device)) return why;
  if (auto why = why_unsupported(version, configuration, problem)) return why;
  if (auto why = why_unsupported_by_device(version, configuration, device)) return why;
  return memory_known ? why_no_memory(version, configuration, problem, device) : std::nullopt;
}

}  // namespace

ConfigurationChoice choose_configuration(const Version& version, const std::string& name,
                                         const AttentionProblem& problem, const std::optional<Gpu>& gpu, int sm) {
  const auto why_not_here = gpu ? why_not_on_device(version, gpu->info) : std::nullopt;
  const DeviceInfo device = gpu && !why_not_here ? gpu->info : bare_sm(sm);
  const auto [configuration, why_none] = find_configuration(version, problem, name, device);
  if (configuration == nullptr) return {nullptr, why_none, false, "", ""};
  if (const auto why = why_not(version, *configuration, problem, device)) return {configuration, *why, false, "", ""};
  return {configuration, why_not_here.value_or(""), why_not_here.has_value(), "", ""};
}

double machine_memory_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace flash_ladder
