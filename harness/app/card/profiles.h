// The contents of profiles/: recordings of the versions on each device, and of other implementations there.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/options/options.h"
#include "host/versions.h"
#include "results/busy.h"
#include "results/peers.h"
#include "results/profile.h"

namespace flash_ladder {

/// The recording of one version on one device.
struct Recording {
  Profile profile;
  bool stale;  // the code has changed since
};

/// TFLOP/s of a version on a device, and how the figure was measured.
struct RecordedSpeed {
  std::string device, config;
  std::string way;            // a regime of scripts/peers, such as "sustained"; or kByRecord
  std::string date, toolkit;  // the toolkit is empty if the file does not name it
  double tflops;
  bool stale;  // the code has changed since
};

inline constexpr const char* kByRecord = "by --record";

/// How the figures of one table were measured. If the ways differ, a star marks the figures of --record.
class MeasuredWays {
 public:
  void add(const std::optional<RecordedSpeed>& speed);
  /// "203.3", "204.9*", "204.9 stale"; `none` if there is no figure.
  std::string figure(const std::optional<RecordedSpeed>& speed, const std::string& none = "-") const;
  bool has_stars() const { return by_record_ && (sustained_ || interleaved_); }
  /// "sustained: each version alone, at steady power; …"; empty if there are no figures.
  std::string legend() const;

 private:
  bool sustained_ = false, interleaved_ = false, by_record_ = false;
};

/// Another implementation of attention, on the same device.
struct Peer {
  std::string name;
  double tflops;
};

/// A run of scripts/peers in one regime: its figures may be compared with each other, but not with figures from elsewhere.
struct BesidePeers {
  std::string regime;       // "sustained", or "interleaved" if there is no other; empty: there is no run
  std::vector<Peer> peers;  // the slowest first
  std::optional<double>
      own;  // TFLOP/s of the version in that run; empty if the version was not part of it or had different code then
};

/// A view of the profiles directory that reads each file once. A profile that cannot be used counts as missing and is
/// remembered in problems(), so that one broken file does not end a study.
class Profiles {
 public:
  explicit Profiles(const Paths& paths) : paths_(paths) {}

  /// Sorted names of the folders, such as "h200", except that the folder named in profiles/shown_first.txt comes first.
  /// The folder of the virtual GPU, which has no TFLOP/s, is left out.
  std::vector<std::string> devices() const;

  /// nullptr when there is none.
  const Recording* find(const std::string& device, const Version& version);

  /// The figure that is shown: if the version took part in a run beside the peers (the sustained one if there are two
  /// regimes), the figure of that run, otherwise the figure of --record. With an empty config, the figure of the
  /// fastest configuration.
  std::optional<RecordedSpeed> speed(const std::string& device, const Version& version, const AttentionProblem& problem,
                                     const std::string& config = "");
  /// The figure of --record, which measures as the harness does now.
  std::optional<RecordedSpeed> speed_by_record(const std::string& device, const Version& version,
                                               const AttentionProblem& problem, const std::string& config = "");
  /// Figures of two versions that were measured in the same way and so may be compared; nullopt if there are none.
  std::optional<std::pair<RecordedSpeed, RecordedSpeed>> speeds(const std::string& device, const Version& from,
                                                                const Version& to, const AttentionProblem& problem,
                                                                const std::string& config_from = "",
                                                                const std::string& config_to = "");

  /// What profiles/<device>/peers.json, or peers_e4m3.json, contains for this problem. An empty config stands for the
  /// version's own choice.
  BesidePeers beside_peers(const std::string& device, const Version& version, const std::string& config,
                           const AttentionProblem& problem);

  /// profiles/<device>/ncu.json; nullptr when there is none.
  const BusyTable* busy(const std::string& device);

  /// The hash of the version's present code, with which a record is compared.
  const std::string& current_hash(const Version& version);

  /// The problems found in profiles so far, one message each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::optional<RecordedSpeed> speed_beside_peers(const std::string& device, const Version& version,
                                                  const AttentionProblem& problem, const std::string& config);
  // The peers of the problem; nullptr if nothing was measured for it. The first regime is the one that is shown.
  const PeersFile* peers(const std::string& device, const AttentionProblem& problem);

  const Paths& paths_;
  std::map<std::filesystem::path, std::unique_ptr<Recording>> recordings_;
  std::map<std::filesystem::path, std::optional<PeersFile>> peers_;
  std::map<std::string, std::optional<BusyTable>> busy_;  // by folder
  std::map<std::string, std::string> hashes_;             // by label
  std::vector<std::string> problems_;
};

/// The fastest result for the problem, restricted to one configuration if it is named; nullptr if there is none.
const Result* find_result(const Recording& recording, const AttentionProblem& problem, const std::string& config = "");

}  // namespace flash_ladder
