#include "app/card/busy_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "problem/problem.h"

namespace flash_ladder {

namespace {

// scripts/ncu_counters.py counts the first configuration that fits the device, but ncu.json does not name it. A
// configuration fits if it was recorded there; if nothing was recorded, assume the version's first.
std::string counted_configuration(const Recording* recording, const Version& version, Dtype dtype) {
  std::string first;
  for (const Configuration& configuration : version.configurations) {
    if (configuration.dtype != dtype) continue;
    if (first.empty()) first = configuration.name;
    if (recording && std::ranges::any_of(recording->profile.results, [&](const Result& result) {
          return result.problem.dtype == dtype && result.config == configuration.name;
        }))
      return configuration.name;
  }
  return first;
}

}  // namespace

std::vector<BusyVersion> busy_of(Profiles& profiles, const std::vector<std::string>& devices, const Version& version,
                                 const std::string& config) {
  std::vector<BusyVersion> found;
  for (const std::string& folder : devices) {
    const BusyTable* table = profiles.busy(folder);
    if (!table) continue;
    const auto counted = table->versions.find(label(version));
    if (counted == table->versions.end()) continue;
    if (!config.empty() &&
        config != counted_configuration(profiles.find(folder, version), version, table->problem.dtype))
      continue;
    const auto hash = table->code_hashes.find(label(version));
    const bool same_code = hash != table->code_hashes.end() && hash->second == profiles.current_hash(version);
    found.push_back({folder, table->device, table->date, table->problem, counted->second, !same_code});
  }
  return found;
}

const std::vector<BusyMetric>& busy_metrics() {
  static const std::vector<BusyMetric> metrics = {
      {"issue slots, %", &Busy::issue_slots_percent, 1, 1},
      {"shared-memory pipe, %", &Busy::shared_memory_percent, 1, 1},
      {"tensor cores, %", &Busy::tensor_cores_percent, 1, 1},
      {"L2, %", &Busy::l2_percent, 1, 1},
      {"through L2, GB", &Busy::l2_bytes, 1e9, 2},
      {"from and to memory, GB", &Busy::memory_bytes, 1e9, 2},
      {"warp instructions, millions", &Busy::warp_instructions, 1e6, 0},
      {"cycles, millions", &Busy::cycles, 1e6, 2},
  };
  return metrics;
}

std::string format_metric(const BusyMetric& metric, const Busy& busy) {
  return fmt::format("{:.{}f}", busy.*metric.member / metric.unit, metric.decimals);
}

std::string format_change(const BusyMetric& metric, const Busy& from, const Busy& to) {
  const double before = from.*metric.member, after = to.*metric.member;
  if (metric.unit == 1) return fmt::format("{:+.{}f}", after - before, metric.decimals);
  return before > 0 ? fmt::format("{:.2f}x", after / before) : "";
}

std::string describe_busy(const BusyVersion& version) {
  const Busy& busy = version.busy;
  return fmt::format(
      "issue slots {:.0f} %, shared-memory pipe {:.0f} %, tensor cores {:.0f} %, L2 {:.0f} % of the cycles; {:.2f} GB through "
      "L2, {:.2f} GB from and to memory ({}, {}, seq_len {}, batch {}, {})",
      busy.issue_slots_percent, busy.shared_memory_percent, busy.tensor_cores_percent, busy.l2_percent,
      busy.l2_bytes / 1e9, busy.memory_bytes / 1e9, version.device, version.date.substr(0, 10), version.problem.seq_len,
      version.problem.batch, to_string(version.problem.dtype));
}

nlohmann::json busy_document(const Version& version, const std::vector<BusyVersion>& counted) {
  auto all = nlohmann::json::array();
  for (const BusyVersion& one : counted)
    all.push_back({{"kernel", kernel_id(version)},
                   {"name", version.name},
                   {"device", one.device},
                   {"date", one.date},
                   {"stale", one.stale},
                   {"problem", one.problem},
                   {"issue_slots_percent", one.busy.issue_slots_percent},
                   {"shared_memory_percent", one.busy.shared_memory_percent},
                   {"tensor_cores_percent", one.busy.tensor_cores_percent},
                   {"l2_percent", one.busy.l2_percent},
                   {"l2_bytes", one.busy.l2_bytes},
                   {"memory_bytes", one.busy.memory_bytes},
                   {"warp_instructions", one.busy.warp_instructions},
                   {"cycles", one.busy.cycles}});
  return all;
}

}  // namespace flash_ladder
