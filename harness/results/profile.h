// Profiles: what `--record` measured for one version on one device, kept in profiles/<device>/NN_name.json
// (harness/results/profile.schema.json).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The schema version of the profiles that this program writes and reads.
constexpr int kProfileSchema = 1;

/// The highest clocks of the device, in MHz; under load it may run slower. nullopt when not known.
struct Clocks {
  std::optional<int> sm_max_mhz;
  std::optional<int> memory_max_mhz;
};

struct Profile {
  std::string device;     // "NVIDIA H200"
  std::string code_hash;  // hash of the version's source when it was recorded: see source/kernel_source.h
  std::string toolkit;    // nvcc's release, "13.0.88"
  std::string driver;     // "580.159.04"; empty when not known
  Clocks clocks;
  std::string date;  // UTC, "2026-01-31T12:00:00Z"; empty for the virtual GPU, whose figures do not depend on the date
  std::vector<Result> results;
};

void to_json(nlohmann::json& json, const Profile& profile);
void from_json(const nlohmann::json& json, Profile& profile);

/// The document that `--json` writes: {"results": […]}.
nlohmann::json results_document(const std::vector<Result>& results);

/// Reads a profile; nullopt if there is no such file. Throws UnavailableError if it is truncated, of another schema or
/// not readable.
std::optional<Profile> read_profile(const std::filesystem::path& path);

/// Writes a profile with one result per line, and creates its directory. Throws UnavailableError.
void write_profile(const std::filesystem::path& path, const Profile& profile);

/// The name of a device's folder in profiles/: "NVIDIA A100-SXM4-80GB" → "a100-sxm4-80gb".
std::string device_slug(const std::string& device);

}  // namespace flash_ladder
