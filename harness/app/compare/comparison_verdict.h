// The outcome of a step in three lines: its speed, what fell, what rose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/compare/comparison_data.h"

namespace flash_ladder {

/// "1.29x: 203.3 → 262.0 TFLOP/s on NVIDIA H200, sustained"; "registers 239 → 220, …".
struct Verdict {
  std::string speed, fell, rose;
};

/// The verdict for the requested problem, on every device on which both versions were measured in the same way.
Verdict verdict_of(const Comparison& comparison);

/// A total that differs, described in words: "shared loads: wavefronts".
struct CounterChange {
  std::string counter;
  std::uint64_t from, to;
};
/// The changes between two results that have counters.
std::vector<CounterChange> counter_changes(const Result& from, const Result& to);

}  // namespace flash_ladder
