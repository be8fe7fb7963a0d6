#include "rules/protocol.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "json_members.h"
#include "problem/problem.h"

namespace flash_ladder {

using nlohmann::json;

void to_json(json& json, const DeviceInfo& info) {
  json = {{"name", known_or_null(info.name)},
          {"compute_capability", known_or_null(info.compute_capability)},
          {"memory_total_bytes", known_or_null(info.memory_total_bytes)},
          {"memory_free_bytes", known_or_null(info.memory_free_bytes)},
          {"is_virtual", info.is_virtual},
          {"sm_count", known_or_null(info.sm_count)},
          {"l2_bytes", known_or_null(info.l2_bytes)},
          {"smem_per_cta_bytes", known_or_null(info.smem_per_cta_bytes)},
          {"driver_version", known_or_null(info.driver_version)},
          {"runtime_version", known_or_null(info.runtime_version)},
          {"driver", known_or_null(info.driver)},
          {"sm_clock_max_mhz", known_or_null(info.sm_clock_max_mhz)},
          {"memory_clock_max_mhz", known_or_null(info.memory_clock_max_mhz)}};
}

void from_json(const json& json, DeviceInfo& info) {
  info = {};
  read_known(json, "name", info.name);
  read_known(json, "compute_capability", info.compute_capability);
  read_known(json, "memory_total_bytes", info.memory_total_bytes);
  read_known(json, "memory_free_bytes", info.memory_free_bytes);
  read_known(json, "is_virtual", info.is_virtual);
  read_known(json, "sm_count", info.sm_count);
  read_known(json, "l2_bytes", info.l2_bytes);
  read_known(json, "smem_per_cta_bytes", info.smem_per_cta_bytes);
  read_known(json, "driver_version", info.driver_version);
  read_known(json, "runtime_version", info.runtime_version);
  read_known(json, "driver", info.driver);
  read_known(json, "sm_clock_max_mhz", info.sm_clock_max_mhz);
  read_known(json, "memory_clock_max_mhz", info.memory_clock_max_mhz);
}

void to_json(json& json, const Request& request) {
  json = {{"command", request.command},
          {"device", request.device},
          {"sm", request.sm},
          {"max_instructions", request.max_instructions},
          {"trace", request.trace},
          {"kernel", request.kernel},
          {"config", request.config},
          {"configs", request.configs},
          {"only_requested_problem", request.only_requested_problem},
          {"stop_when_wrong", request.stop_when_wrong},
          {"launches", request.launches},
          {"problem", request.problem},
          {"data", request.data},
          {"seed", request.seed},
          {"check", request.check},
          {"benchmark", request.benchmark},
          {"repeat", request.repeat},
          {"reference_cache", request.reference_cache}};
  if (request.head) json["head"] = *request.head;
  if (request.row) json["row"] = *request.row;
}

void from_json(const json& json, Request& request) {
  request = {};
  json.at("command").get_to(request.command);
  read_known(json, "device", request.device);
  read_known(json, "sm", request.sm);
  read_known(json, "max_instructions", request.max_instructions);
  read_known(json, "trace", request.trace);
  if (request.command == "device") return;
  if (request.command != "run" && request.command != "time" && request.command != "debug")
    throw std::runtime_error(
        fmt::format("command '{}' is unknown; allowed: debug, device, run, time", request.command));
  json.at("kernel").get_to(request.kernel);
  json.at("problem").get_to(request.problem);
  read_known(json, "config", request.config);
  read_known(json, "configs", request.configs);
  read_known(json, "data", request.data);
  read_known(json, "seed", request.seed);
  read_known(json, "check", request.check);
  read_known(json, "benchmark", request.benchmark);
  read_known(json, "repeat", request.repeat);
  read_known(json, "only_requested_problem", request.only_requested_problem);
  read_known(json, "stop_when_wrong", request.stop_when_wrong);
  read_known(json, "launches", request.launches);
  read_known(json, "reference_cache", request.reference_cache);
  if (json.contains("head")) request.head = json.at("head").get<std::int64_t>();
  if (json.contains("row")) request.row = json.at("row").get<std::int64_t>();
  if (request.repeat < 1)
    throw std::runtime_error(fmt::format("repeat {} is out of range; allowed: 1 or more", request.repeat));
  if (request.launches < 0)
    throw std::runtime_error(fmt::format("launches {} is out of range; allowed: 0 or more", request.launches));
  if (request.command == "time" && request.configs.empty())
    throw std::runtime_error("\"configs\" is empty; name the configurations to time");
}

}  // namespace flash_ladder
