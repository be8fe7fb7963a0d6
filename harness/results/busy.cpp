#include "results/busy.h"

#include <nlohmann/json.hpp>

#include "results/document.h"

namespace flash_ladder {
namespace {

constexpr DocumentKind kBusy{"file of counters", kBusySchema, "count again with scripts/ncu_counters.py"};

Busy busy(const nlohmann::json& counted) {
  return {.issue_slots_percent = counted.at("issue_slots_percent"),
          .shared_memory_percent = counted.at("lsu_data_pipe_percent"),
          .tensor_cores_percent = counted.at("tensor_pipe_percent"),
          .l2_percent = counted.at("l2_percent"),
          .l2_bytes = counted.at("l2_bytes"),
          .memory_bytes = counted.at("dram_bytes"),
          .warp_instructions = counted.at("warp_instructions"),
          .cycles = counted.at("cycles")};
}

}  // namespace

std::optional<BusyTable> read_busy(const std::filesystem::path& path) {
  const auto document = read_document(kBusy, path);
  if (!document) return std::nullopt;
  try {
    const auto& counted = document->at("busy");
    BusyTable table;
    document->at("device").get_to(table.device);
    document->at("date").get_to(table.date);
    document->at("code_hash").get_to(table.code_hashes);
    counted.at("problem").get_to(table.problem);
    for (const auto& [label, version] : counted.at("versions").items()) table.versions[label] = busy(version);
    return table;
  } catch (const std::exception& error) {
    refuse_form(kBusy, path, error);
  }
}

}  // namespace flash_ladder
