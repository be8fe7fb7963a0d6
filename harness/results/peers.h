// What scripts/peers measured: the ladder and other implementations in one run, kept in profiles/<device>/peers.json
// (harness/results/peers.schema.json).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The form of the file that this program reads.
constexpr int kPeersSchema = 3;

/// TFLOP/s of one implementation at one shape.
struct PeerResult {
  std::int64_t batch, seq_len;
  double tflops;
};

/// A version of the ladder.
struct MeasuredVersion {
  std::string kernel;     // "06", or the name of an extension
  std::string config;     // empty: the one that the version chose
  std::string code_hash;  // empty when not known
  std::string date;       // UTC, "2026-01-31T12:00:00Z"
  std::vector<PeerResult> results;
};

/// Another implementation.
struct MeasuredPeer {
  std::string name;
  std::vector<PeerResult> results;
};

/// One way to measure. Figures are compared inside one of them, and with no others.
struct Regime {
  std::string name;  // "sustained", "interleaved"
  std::string date;  // of the run
  std::vector<MeasuredVersion> versions;
  std::vector<MeasuredPeer> peers;
};

struct PeersFile {
  AttentionProblem problem;     // what all have in common; batch and lengths are those of a result
  std::vector<Regime> regimes;  // the one that is shown comes first
};

/// nullopt when there is no such file. Throws UnavailableError for one that is truncated, of another schema or not readable.
std::optional<PeersFile> read_peers(const std::filesystem::path& path);

}  // namespace flash_ladder
