#include "app/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/selection.h"
#include "errors.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {

namespace fs = std::filesystem;

namespace {

constexpr int kPeersSchema = 3;  // harness/results/peers.schema.json

}  // namespace

std::vector<std::string> Recorded::devices() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(paths_.profiles, error))
    if (entry.is_directory() && entry.path().filename() != "emulator")
      names.push_back(entry.path().filename().string());
  std::string first;
  std::ifstream(paths_.profiles / "shown_first.txt") >> first;
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(a != first, a) < std::pair(b != first, b);
  });
  return names;
}

const Recording* Recorded::find(const std::string& device, const Version& version) {
  const fs::path path = paths_.profiles / device / (label(version) + ".json");
  const auto known = recordings_.find(path);
  if (known != recordings_.end()) return known->second.get();
  auto& recording = recordings_[path];
  try {
    if (auto profile = read_profile(path)) {
      recording = std::make_unique<Recording>(Recording{std::move(*profile), false});
      recording->stale = recording->profile.code_hash != current_hash(version);
    }
  } catch (const UnavailableError& error) {
    problems_.push_back(error.what());
  }
  return recording.get();
}

const BusyTable* Recorded::busy(const std::string& device) {
  const auto [entry, is_new] = busy_.try_emplace(device);
  if (is_new) try {
      entry->second = read_busy(paths_.profiles / device / "ncu.json");
    } catch (const UnavailableError& error) {
      problems_.push_back(error.what());
    }
  return entry->second ? &*entry->second : nullptr;
}

const std::string& Recorded::current_hash(const Version& version) {
  const auto [entry, is_new] = hashes_.try_emplace(label(version));
  if (is_new) entry->second = code_hash(source_file(version, paths_.source), paths_.source / "common");
  return entry->second;
}

BesidePeers Recorded::beside_peers(const std::string& device, const Version& version, const std::string& config,
                                   const AttentionProblem& problem) {
  const fs::path path = paths_.profiles / device / "peers.json";
  if (!fs::exists(path)) return {};
  try {
    std::ifstream file(path);
    const auto document = nlohmann::json::parse(file);
    if (!document.is_object() || document.value("schema", nlohmann::json()) != kPeersSchema)
      throw std::runtime_error(fmt::format("its schema is not {}", kPeersSchema));
    const auto& measured = document.at("problem");
    const bool same_problem = measured.at("dtype") == to_string(problem.dtype) &&
                              measured.at("heads") == problem.heads && measured.at("head_dim") == problem.head_dim &&
                              measured.at("causal") == problem.causal && problem.seq_len == problem.seq_len_kv;
    if (!same_problem) return {};
    const auto tflops = [&](const nlohmann::json& entry) -> std::optional<double> {
      for (const auto& result : entry.at("results"))
        if (result.at("batch") == problem.batch && result.at("seq_len") == problem.seq_len)
          return result.at("tflops").get<double>();
      return std::nullopt;
    };
    const auto& regimes = document.at("regimes");
    for (const char* name : {"sustained", "interleaved"}) {  // as docs show them: harness/results/peers.schema.json
      if (!regimes.contains(name)) continue;
      BesidePeers found{.regime = name, .peers = {}, .own = {}};
      for (const auto& peer : regimes.at(name).at("peers"))
        if (const auto speed = tflops(peer)) found.peers.push_back({peer.at("name"), *speed});
      const std::string& hash = current_hash(version);
      for (const auto& entry : regimes.at(name).at("versions")) {
        const auto& its_config = entry.at("config");
        const bool same_config = its_config.is_null() ? config.empty() : its_config == config;
        if (entry.at("kernel") == kernel_id(version) && same_config && entry.at("code_hash") == hash)
          found.own = tflops(entry);
      }
      std::sort(found.peers.begin(), found.peers.end(),
                [](const Peer& a, const Peer& b) { return a.tflops < b.tflops; });
      return found;
    }
  } catch (const std::exception& error) {
    problems_.push_back(
        fmt::format("'{}' cannot be used: {}; measure it anew with scripts/peers, or take it from the "
                    "repository",
                    path.string(), error.what()));
  }
  return {};
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
