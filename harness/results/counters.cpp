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

}  // namespace flash_ladder
