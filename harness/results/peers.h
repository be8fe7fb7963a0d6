// What scripts/peers measured: the ladder and other implementations in one run, kept in profiles/<device>/peers.json
// (harness/results/peers.schema.json).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The schema version that this program reads.
constexpr int kPeersSchema = 3;

/// TFLOP/s of one implementation at one shape.
struct PeerResult {
  std::int64_t batch, seq_len;
  double tflops;
};

/// A version of the ladder.
struct MeasuredVersion {
  std::string kernel;     // "06", or the name of an extension
  std::string config;     // empty: the version's own choice
  std::string code_hash;  // empty when not known
  std::string date;       // UTC, "2026-01-31T12:00:00Z"
  std::vector<PeerResult> results;
};

/// Another implementation.
struct MeasuredPeer {
  std::string name;
  std::vector<PeerResult> results;
};

/// One way to measure. Figures may be compared within a regime, but not across regimes.
struct Regime {
  std::string name;  // "sustained", "interleaved"
  std::string date;  // of the run
  std::vector<MeasuredVersion> versions;
  std::vector<MeasuredPeer> peers;
};

struct PeersFile {
  AttentionProblem problem;     // what all results have in common; batch and lengths belong to each result
  std::vector<Regime> regimes;  // the one that is shown comes first
};

/// nullopt if there is no such file. Throws UnavailableError if it is truncated, of another schema or not readable.
std::optional<PeersFile> read_peers(const std::filesystem::path& path);

}  // namespace flash_ladder
