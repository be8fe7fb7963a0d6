#include "app/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/selection.h"
#include "errors.h"
#include "results/peers.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {

namespace fs = std::filesystem;

std::vector<std::string> Recorded::devices() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(paths_.profiles, error))
    if (entry.is_directory(error) && entry.path().filename() != "emulator")
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
  std::optional<PeersFile> file;
  try {
    file = read_peers(paths_.profiles / device / (problem.dtype == Dtype::e4m3 ? "peers_e4m3.json" : "peers.json"));
  } catch (const UnavailableError& error) {
    problems_.push_back(error.what());
  }
  if (!file || file->regimes.empty()) return {};
  file->problem.batch = problem.batch;
  file->problem.seq_len = file->problem.seq_len_kv = problem.seq_len;
  if (file->problem != problem) return {};
  const auto tflops = [&](const std::vector<PeerResult>& results) -> std::optional<double> {
    for (const PeerResult& result : results)
      if (result.batch == problem.batch && result.seq_len == problem.seq_len) return result.tflops;
    return std::nullopt;
  };
  const Regime& regime = file->regimes.front();
  BesidePeers found{.regime = regime.name, .peers = {}, .own = {}};
  for (const MeasuredPeer& peer : regime.peers)
    if (const auto speed = tflops(peer.results)) found.peers.push_back({peer.name, *speed});
  const std::string& hash = current_hash(version);
  for (const MeasuredVersion& measured : regime.versions)
    if (measured.kernel == kernel_id(version) && measured.config == config && measured.code_hash == hash)
      found.own = tflops(measured.results);
  std::sort(found.peers.begin(), found.peers.end(), [](const Peer& a, const Peer& b) { return a.tflops < b.tflops; });
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
