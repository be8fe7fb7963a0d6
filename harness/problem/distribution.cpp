#include "problem/distribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

namespace flash_ladder {
namespace {

struct Known {
  Distribution distribution;
  const char *name, *definition;
};

constexpr Known kDistributions[] = {
    {Distribution::normal, "normal", "q, k, v = z, standard normal numbers"},
    {Distribution::offset_mean, "offset-mean", "q, k = 0.5 + z, v = 1 + z"},
    {Distribution::large_logit, "large-logit", "q = 16 z"},
    {Distribution::ramp, "ramp", "q = 1 + z/4, k = t + z/4, t from -2 to 2 over the keys"},
    {Distribution::q_times_3, "q-times-3", "q = 3 z"},
    {Distribution::q_times_6, "q-times-6", "q = 6 z"},
    {Distribution::sink, "sink", "q = z + w, key 0 = 4 w, every other k = z - w/2, w a normal vector per head"},
    {Distribution::rising, "rising",
     "q = z + 8 u, k = z + t u, t from 0 to 16 over the keys, u a unit vector per head"},
    {Distribution::falling, "falling",
     "q = z + 8 u, k = z + t u, t from 16 to 0 over the keys, u a unit vector per head"},
    {Distribution::steps, "steps", "q = z + 16 u, k = z + floor(key / 64) u, u a unit vector per head"},
    {Distribution::zeros, "zeros", "q, k, v = 0"},
    {Distribution::equal_keys, "equal-keys", "every k = w, w a normal vector per head"},
    {Distribution::diagonal, "diagonal", "q, k = z + 5 r(place), r a rotary embedding's 16 highest frequencies"},
    {Distribution::four_sinks, "four-sinks", "q = z + 10 u, keys 0 to 3 = z + 10 u, u a unit vector per head"},
    {Distribution::broad, "broad", "q = z/4"},
    {Distribution::trained, "trained", "heads that are diagonal, four-sinks and broad in turn"},
    {Distribution::adversarial, "adversarial", "weights and maxima at the limits of fp16 and of what versions skip"},
};

const Known& known(Distribution distribution) {
  for (const Known& one : kDistributions)
    if (one.distribution == distribution) return one;
  throw std::logic_error("a Distribution without a name");
}

}  // namespace

std::string to_string(Distribution distribution) { return known(distribution).name; }

std::optional<Distribution> distribution_from_string(std::string_view text) {
  for (const Known& one : kDistributions)
    if (text == one.name) return one.distribution;
  return std::nullopt;
}

void to_json(nlohmann::json& json, Distribution distribution) { json = to_string(distribution); }

void from_json(const nlohmann::json& json, Distribution& distribution) {
  const auto name = json.get<std::string>();
  const auto known = distribution_from_string(name);
  if (!known) throw std::runtime_error(fmt::format("data '{}' is unknown; allowed: {}", name, all_distributions()));
  distribution = *known;
}

std::string definition(Distribution distribution) { return known(distribution).definition; }

std::string all_distributions() {
  std::vector<std::string> names;
  for (const Known& one : kDistributions) names.emplace_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace flash_ladder
