#include "app/card/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/options/selection.h"
#include "errors.h"
#include "problem/kind.h"
#include "results/peers.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {

namespace fs = std::filesystem;

namespace {

std::optional<double> tflops_at(const std::vector<PeerResult>& results, const AttentionProblem& problem) {
  for (const PeerResult& result : results)
    if (result.batch == problem.batch && result.seq_len == problem.seq_len) return result.tflops;
  return std::nullopt;
}

}  // namespace

std::vector<std::string> Profiles::devices() const {
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

const Recording* Profiles::find(const std::string& device, const Version& version) {
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

const BusyTable* Profiles::busy(const std::string& device) {
  const auto [entry, is_new] = busy_.try_emplace(device);
  if (is_new) try {
      entry->second = read_busy(paths_.profiles / device / "ncu.json");
    } catch (const UnavailableError& error) {
      problems_.push_back(error.what());
    }
  return entry->second ? &*entry->second : nullptr;
}

const std::string& Profiles::current_hash(const Version& version) {
  const auto [entry, is_new] = hashes_.try_emplace(label(version));
  if (is_new) entry->second = code_hash(source_file(version, paths_.source), paths_.source / "common");
  return entry->second;
}

const PeersFile* Profiles::peers(const std::string& device, const AttentionProblem& problem) {
  const auto path = paths_.profiles / device / (problem.dtype == Dtype::e4m3 ? "peers_e4m3.json" : "peers.json");
  const auto [entry, is_new] = peers_.try_emplace(path);
  if (is_new) try {
      entry->second = read_peers(path);
    } catch (const UnavailableError& error) {
      problems_.push_back(error.what());
    }
  const std::optional<PeersFile>& file = entry->second;
  if (!file || file->regimes.empty()) return nullptr;
  AttentionProblem measured = file->problem;
  measured.batch = problem.batch;
  measured.seq_len = measured.seq_len_kv = problem.seq_len;
  return measured == problem ? &*file : nullptr;
}

BesidePeers Profiles::beside_peers(const std::string& device, const Version& version, const std::string& config,
                                   const AttentionProblem& problem) {
  const PeersFile* const file = kind_of(version).has_peers ? peers(device, problem) : nullptr;
  if (file == nullptr) return {};
  const Regime& regime = file->regimes.front();
  BesidePeers found{.regime = regime.name, .peers = {}, .own = {}};
  for (const MeasuredPeer& peer : regime.peers)
    if (const auto speed = tflops_at(peer.results, problem)) found.peers.push_back({peer.name, *speed});
  const std::string& hash = current_hash(version);
  for (const MeasuredVersion& measured : regime.versions)
    if (measured.kernel == kernel_id(version) && measured.config == config && measured.code_hash == hash)
      found.own = tflops_at(measured.results, problem);
  std::sort(found.peers.begin(), found.peers.end(), [](const Peer& a, const Peer& b) { return a.tflops < b.tflops; });
  return found;
}

std::optional<RecordedSpeed> Profiles::speed_beside_peers(const std::string& device, const Version& version,
                                                          const AttentionProblem& problem, const std::string& config) {
  const Recording* const recording = find(device, version);
  const PeersFile* const file = peers(device, problem);
  if (recording == nullptr || file == nullptr) return std::nullopt;
  // A version chooses the first configuration that fits the device, which is therefore the first that --record measures.
  std::string chosen;
  for (const Result& result : recording->profile.results)
    if (chosen.empty() && result.problem == problem) chosen = result.config;
  const Regime& regime = file->regimes.front();
  std::optional<RecordedSpeed> best;
  for (const MeasuredVersion& measured : regime.versions) {
    const std::string& its_config = measured.config.empty() ? chosen : measured.config;
    if (measured.kernel != kernel_id(version) || measured.code_hash != recording->profile.code_hash ||
        (!config.empty() && its_config != config))
      continue;
    if (const auto tflops = tflops_at(measured.results, problem); tflops && (!best || *tflops > best->tflops))
      best = RecordedSpeed{.device = recording->profile.device,
                           .config = its_config,
                           .way = regime.name,
                           .date = measured.date,
                           .toolkit = "",
                           .tflops = *tflops,
                           .stale = recording->stale};
  }
  return best;
}

std::optional<RecordedSpeed> Profiles::speed_by_record(const std::string& device, const Version& version,
                                                       const AttentionProblem& problem, const std::string& config) {
  const Recording* const recording = find(device, version);
  const Result* const result = recording ? find_result(*recording, problem, config) : nullptr;
  if (result == nullptr) return std::nullopt;
  const Profile& profile = recording->profile;
  return RecordedSpeed{.device = profile.device,
                       .config = result->config,
                       .way = kByRecord,
                       .date = profile.date,
                       .toolkit = profile.toolkit,
                       .tflops = *result->tflops,
                       .stale = recording->stale};
}

std::optional<RecordedSpeed> Profiles::speed(const std::string& device, const Version& version,
                                             const AttentionProblem& problem, const std::string& config) {
  if (auto found = speed_beside_peers(device, version, problem, config)) return found;
  return speed_by_record(device, version, problem, config);
}

std::optional<std::pair<RecordedSpeed, RecordedSpeed>> Profiles::speeds(const std::string& device, const Version& from,
                                                                        const Version& to,
                                                                        const AttentionProblem& problem,
                                                                        const std::string& config_from,
                                                                        const std::string& config_to) {
  for (const auto measured : {&Profiles::speed_beside_peers, &Profiles::speed_by_record}) {
    const auto a = (this->*measured)(device, from, problem, config_from);
    const auto b = (this->*measured)(device, to, problem, config_to);
    if (a && b) return std::pair(*a, *b);
  }
  return std::nullopt;
}

void MeasuredWays::add(const std::optional<RecordedSpeed>& speed) {
  if (!speed) return;
  (speed->way == kByRecord ? by_record_ : speed->way == "interleaved" ? interleaved_ : sustained_) = true;
}

std::string MeasuredWays::figure(const std::optional<RecordedSpeed>& speed, const std::string& none) const {
  if (!speed) return none;
  return fmt::format("{:.1f}{}{}", speed->tflops, speed->way == kByRecord && has_stars() ? "*" : "",
                     speed->stale ? " stale" : "");
}

std::string MeasuredWays::legend() const {
  std::string text;
  if (sustained_) text += "sustained: each version alone, at steady power";
  if (interleaved_) text += std::string(text.empty() ? "" : "; ") + "interleaved: versions and peers take turns";
  if (!by_record_) return text;
  return text.empty() ? "by --record: each version alone, for a short time"
                      : text + "; * by --record: alone for a short time, in which the power limit slows it down less";
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
