// What `--tune` found: the fastest configuration of a version for a problem, kept in profiles/<device>/tuning.json
// (harness/results/tuning.schema.json).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The schema version of the file that this program writes and reads.
constexpr int kTuningSchema = 1;

/// A configuration and its speed.
struct TunedConfiguration {
  std::string config;
  double tflops;
  Milliseconds ms;
};

/// One version, one problem.
struct TuningEntry {
  std::string kernel;  // "06", or the name of an extension
  std::string name;
  AttentionProblem problem;
  std::string code_hash;                    // of the version's source at the time: see source/kernel_source.h
  std::string toolkit;                      // nvcc's release, "13.0.88"
  std::string driver;                       // empty when not known
  std::string date;                         // UTC, "2026-01-31T12:00:00Z"
  std::vector<TunedConfiguration> ranking;  // the fastest first; at least one
};

struct Tuning {
  std::string device;  // "NVIDIA H200"
  std::vector<TuningEntry> entries;

  /// nullptr if there is none.
  const TuningEntry* find(const std::string& kernel, const AttentionProblem& problem) const;
  /// Replaces the entry for the same version and problem, or adds one. Entries are sorted by version and problem.
  void put(TuningEntry entry);
};

/// Reads the tuning of a device; nullopt if there is no such file. Throws UnavailableError if it is truncated, of
/// another schema, of another device or not readable.
std::optional<Tuning> read_tuning(const std::filesystem::path& path, const std::string& device);

/// Writes the file with one entry per line, and creates its directory. Throws UnavailableError.
void write_tuning(const std::filesystem::path& path, const Tuning& tuning);

}  // namespace flash_ladder
