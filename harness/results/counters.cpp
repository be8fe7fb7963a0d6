#include "results/counters.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace flash_ladder {

nlohmann::json counters_to_json(const Counters& counters, Zeros zeros) {
  auto json = nlohmann::json::object();
  for_each_counter(counters, [&](const std::string& name, std::uint64_t count) {
    if (count != 0 || (zeros == Zeros::kept && !is_of_hopper(name))) json[name] = count;
  });
  return json;
}

Counters counters_from_json(const nlohmann::json& json, Zeros zeros) {
  Counters counters;
  std::size_t known = 0;
  for_each_counter(counters, [&](const std::string& name, std::uint64_t& count) {
    const auto found = json.find(name);
    if (found == json.end() && (zeros == Zeros::left_out || is_of_hopper(name))) return;
    if (found == json.end()) throw std::runtime_error(fmt::format("the counter '{}' is missing", name));
    found->get_to(count);
    ++known;
  });
  if (known == json.size()) return counters;
  auto unknown = json;
  for_each_counter(counters, [&](const std::string& name, std::uint64_t) { unknown.erase(name); });
  throw std::runtime_error(fmt::format("there is no counter '{}'", unknown.items().begin().key()));
}

nlohmann::json roles_to_json(const std::vector<emulator::Role>& roles) {
  auto array = nlohmann::json::array();
  for (const emulator::Role& role : roles) {
    array.push_back({{"warps", role.warps},
                     {"loads", role.loads},
                     {"multiplies", role.multiplies},
                     {"stores", role.stores},
                     {"registers", role.registers},
                     {"registers_at_launch", role.registers_at_launch}});
  }
  return array;
}

std::vector<emulator::Role> roles_from_json(const nlohmann::json& array) {
  std::vector<emulator::Role> roles;
  for (const nlohmann::json& one : array) {
    roles.push_back({.warps = one.at("warps").get<std::vector<int>>(),
                     .loads = one.at("loads").get<bool>(),
                     .multiplies = one.at("multiplies").get<bool>(),
                     .stores = one.at("stores").get<bool>(),
                     .registers_at_launch = one.at("registers_at_launch").get<int>(),
                     .registers = one.at("registers").get<int>()});
  }
  return roles;
}

}  // namespace flash_ladder
