#include "app/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/selection.h"
#include "errors.h"
#include "source/kernel_source.h"
#include "worker/support.h"

namespace flash_ladder {

namespace fs = std::filesystem;

std::vector<std::string> Recorded::devices() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(paths_.profiles, error))
    if (entry.is_directory() && entry.path().filename() != "emulator")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

const Recording* Recorded::find(const std::string& device, const Version& version) {
  const fs::path path = paths_.profiles / device / (label(version) + ".json");
  const auto known = recordings_.find(path);
  if (known != recordings_.end()) return known->second.get();
  auto& recording = recordings_[path];
  try {
    if (auto profile = read_profile(path)) {
      const auto hash = code_hash(source_file(version, paths_.source), paths_.source / "common");
      recording = std::make_unique<Recording>(Recording{std::move(*profile), false});
      recording->stale = recording->profile.code_hash != hash;
    }
  } catch (const UnavailableError& error) {
    problems_.push_back(error.what());
  }
  return recording.get();
}

std::vector<Peer> Recorded::peers(const std::string& device, const AttentionProblem& problem) {
  const fs::path path = paths_.profiles / device / "peers.json";
  if (!fs::exists(path)) return {};
  std::vector<Peer> found;
  try {
    std::ifstream file(path);
    const auto document = nlohmann::json::parse(file);
    if (!document.is_object() || document.value("schema", nlohmann::json()) != 2)
      throw std::runtime_error("its schema is not 2");
    const auto& measured = document.at("problem");
    const bool same_problem = measured.at("dtype") == to_string(problem.dtype) &&
                              measured.at("heads") == problem.heads && measured.at("head_dim") == problem.head_dim &&
                              problem.seq_len == problem.seq_len_kv;
    if (!same_problem) return {};
    const auto add = [&](const nlohmann::json& peers, bool external) {
      for (const auto& peer : peers)
        for (const auto& result : peer.at("results"))
          if (result.at("batch") == problem.batch && result.at("seq_len") == problem.seq_len)
            found.push_back({peer.at("name"), result.at("tflops"), external});
    };
    add(document.at("peers"), false);
    if (!document.at("external").is_null()) add(document.at("external").at("peers"), true);
  } catch (const std::exception& error) {
    problems_.push_back(
        fmt::format("'{}' cannot be used: {}; measure it anew with scripts/peers, or take it from the "
                    "repository",
                    path.string(), error.what()));
    return {};
  }
  std::sort(found.begin(), found.end(), [](const Peer& a, const Peer& b) { return a.tflops < b.tflops; });
  return found;
}

const Result* find_result(const Recording& recording, const AttentionProblem& problem, const std::string& config) {
  const Result* best = nullptr;
  for (const Result& result : recording.profile.results) {
    if (!(result.problem == problem) || !result.tflops || (!config.empty() && result.config != config)) continue;
    if (!best || *result.tflops > *best->tflops) best = &result;
  }
  return best;
}

}  // namespace flash_ladder
