#include "results/profile.h"

#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "json_members.h"
#include "results/document.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

constexpr DocumentKind kProfile{"profile", kProfileSchema, "record it again with --record"};

}  // namespace

void to_json(json& json, const Profile& profile) {
  json = results_document(profile.results);
  json["schema"] = kProfileSchema;
  json["device"] = profile.device;
  json["code_hash"] = profile.code_hash;
  json["toolkit"] = profile.toolkit;
  json["driver"] = known_or_null(profile.driver);
  json["clocks"] = {{"sm_max_mhz", known_or_null(profile.clocks.sm_max_mhz)},
                    {"memory_max_mhz", known_or_null(profile.clocks.memory_max_mhz)}};
  json["date"] = known_or_null(profile.date);
}

void from_json(const json& json, Profile& profile) {
  profile = {};
  json.at("device").get_to(profile.device);
  json.at("code_hash").get_to(profile.code_hash);
  json.at("toolkit").get_to(profile.toolkit);
  read_known(json, "driver", profile.driver);
  read_known(json.at("clocks"), "sm_max_mhz", profile.clocks.sm_max_mhz);
  read_known(json.at("clocks"), "memory_max_mhz", profile.clocks.memory_max_mhz);
  read_known(json, "date", profile.date);
  json.at("results").get_to(profile.results);
  for (const Result& result : profile.results)
    if (result.data != Distribution::normal)
      throw std::runtime_error(
          fmt::format("a result is for {} data, but a profile contains only normal data", to_string(result.data)));
}

json results_document(const std::vector<Result>& results) { return {{"results", results}}; }

std::optional<Profile> read_profile(const std::filesystem::path& path) {
  const auto document = read_document(kProfile, path);
  if (!document) return std::nullopt;
  try {
    return document->get<Profile>();
  } catch (const std::exception& error) {
    refuse_form(kProfile, path, error);
  }
}

void write_profile(const std::filesystem::path& path, const Profile& profile) {
  write_document(path, profile, "results");
}

std::string device_slug(const std::string& device) {
  const std::string vendor = "NVIDIA ";
  std::string slug;
  for (const unsigned char c : device.starts_with(vendor) ? device.substr(vendor.size()) : device) {
    if (std::isalnum(c))
      slug += static_cast<char>(std::tolower(c));
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "unknown" : slug;
}

}  // namespace flash_ladder
