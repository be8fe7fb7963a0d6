#include "results/profile.h"

#include <fmt/format.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "errors.h"
#include "results/atomic_file.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

json value_or_null(const std::optional<int>& value) { return value ? json(*value) : json(nullptr); }

void read_optional(const json& value, std::optional<int>& number) {
  if (!value.is_null()) number = value.get<int>();
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UnavailableError(fmt::format(
      "the profile '{}' cannot be used: {}; record it again with --record, or take it anew from the repository",
      path.string(), why));
}

}  // namespace

void to_json(json& json, const Profile& profile) {
  json = results_document(profile.results);
  json["schema"] = kProfileSchema;
  json["device"] = profile.device;
  json["code_hash"] = profile.code_hash;
  json["toolkit"] = profile.toolkit;
  json["driver"] = nullptr;
  if (!profile.driver.empty()) json["driver"] = profile.driver;
  json["clocks"] = {{"sm_max_mhz", value_or_null(profile.clocks.sm_max_mhz)},
                    {"memory_max_mhz", value_or_null(profile.clocks.memory_max_mhz)}};
  json["date"] = nullptr;
  if (!profile.date.empty()) json["date"] = profile.date;
}

void from_json(const json& json, Profile& profile) {
  profile = {};
  json.at("device").get_to(profile.device);
  json.at("code_hash").get_to(profile.code_hash);
  json.at("toolkit").get_to(profile.toolkit);
  if (const auto& driver = json.at("driver"); !driver.is_null()) driver.get_to(profile.driver);
  read_optional(json.at("clocks").at("sm_max_mhz"), profile.clocks.sm_max_mhz);
  read_optional(json.at("clocks").at("memory_max_mhz"), profile.clocks.memory_max_mhz);
  if (const auto& date = json.at("date"); !date.is_null()) date.get_to(profile.date);
  json.at("results").get_to(profile.results);
}

json results_document(const std::vector<Result>& results) { return {{"results", results}}; }

std::optional<Profile> read_profile(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  errno = 0;
  if (!file || !(text << file.rdbuf())) refuse(path, errno ? std::strerror(errno) : "it is empty");

  json document;
  try {
    document = json::parse(text.str());
  } catch (const json::parse_error& error) {
    refuse(path, fmt::format("it is truncated or not JSON (stopped at byte {} of {})", error.byte, text.str().size()));
  }
  if (!document.is_object() || !document.contains("schema")) refuse(path, "it has no \"schema\" and so is no profile");
  if (document["schema"] != kProfileSchema)
    refuse(path, fmt::format("it has schema {}, and this program reads schema {}", document["schema"].dump(),
                             kProfileSchema));
  try {
    return document.get<Profile>();
  } catch (const std::exception& error) {
    refuse(path, fmt::format("it is not of the form that schema {} asks for ({})", kProfileSchema, error.what()));
  }
}

void write_profile(const std::filesystem::path& path, const Profile& profile) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw UnavailableError(
        fmt::format("cannot make the directory '{}': {}", path.parent_path().string(), error.message()));

  // One result a line: a new recording then shows in a diff as the lines whose figures moved.
  std::string text = "{\n";
  std::string results;
  const json document = profile;
  for (const auto& [member, value] : document.items())
    if (member != "results") text += fmt::format("{}: {},\n", json(member).dump(), value.dump());
  for (const auto& result : document.at("results")) {
    if (!results.empty()) results += ",\n";
    results += result.dump();
  }
  text += fmt::format("\"results\": [\n{}\n]\n}}\n", results);
  write_file_atomically(path, text);
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
