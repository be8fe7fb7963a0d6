// Which units of a GPU a version keeps busy: the part of profiles/<device>/ncu.json that scripts/ncu_counters.py counts with
// Nsight Compute at a problem that fills the GPU (harness/results/ncu.schema.json). This is the only reader of it in C++.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "problem/problem.h"

namespace flash_ladder {

/// The schema version that this program reads.
constexpr int kBusySchema = 2;

/// One launch of one version. Percentages are relative to the maximum of the unit.
struct Busy {
  double issue_slots_percent = 0;    // of the cycles in which an SM has work
  double shared_memory_percent = 0;  // of all cycles: the data pipe that L1 shares with shared memory
  double tensor_cores_percent = 0;   // of the cycles in which an SM has work
  double l2_percent = 0;             // of the bytes that L2 could move in all cycles
  double l2_bytes = 0;               // through L2
  double memory_bytes = 0;           // to and from memory
  double warp_instructions = 0;
  double cycles = 0;
};

/// One device.
struct BusyTable {
  std::string device;  // "NVIDIA H200"
  std::string date;    // UTC, "2026-01-31T12:00:00Z"
  AttentionProblem problem;
  std::map<std::string, Busy> versions;            // by label, "06_swizzle"; some are not counted
  std::map<std::string, std::string> code_hashes;  // hashes of the code that was counted, by label
};

/// Reads an ncu.json; nullopt if there is none. Throws UnavailableError if it is truncated or has another schema.
std::optional<BusyTable> read_busy(const std::filesystem::path& path);

}  // namespace flash_ladder
