// What an access pattern costs: 32-byte sectors of global memory, wavefronts of shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

/// The number of distinct sectors that the active lanes touch. An aligned access lies in one.
unsigned count_sectors(const std::uint64_t* addresses, std::uint32_t mask);

struct Wavefronts {
  std::uint32_t actual = 0;
  std::uint32_t ideal = 0;
};

/// Where the lanes of one instruction go in shared memory, and what that costs. Kernels repeat few patterns many times, shifted by
/// whole words, which costs the same.
struct AccessPattern {
  alignas(64) std::array<std::uint32_t, 32> offsets{};  // of the lanes in the mask; the others have 0
  std::uint32_t mask = 0;
  unsigned bytes = 0;     // of each lane
  bool matrices = false;  // of ldmatrix, whose phases are its 8×8 matrices
  /// The same without repetition: each offset, and the last lane that has it, plus 32 if it is not the only one.
  std::array<std::uint32_t, 32> distinct{}, distinct_lanes{};
  std::uint32_t num_distinct = 0;
  // Where the lowest begins, which may be behind the beginning of its word, and where the last one ends.
  std::uint32_t first = 0, span = 0;
  /// Passes over the 32 banks of 4 bytes that shared memory needs. 32, 16 or 8 lanes are served at a time for accesses of up to 4, 8
  /// or 16 bytes (a phase); two phases become one if their lanes in pairs have the same address. Lanes that touch the same word
  /// share it, and a phase takes as many wavefronts as there are distinct words in the bank that has most. The ideal is one for each
  /// phase with an active lane.
  Wavefronts wavefronts;
};

/// A pattern at a place: byte `base` of shared memory, the beginning of the first word of which something is accessed.
struct PlacedPattern {
  const AccessPattern* pattern = nullptr;
  std::uint32_t base = 0;

  void expand(std::uint32_t* offsets) const {
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) offsets[lane] = base + pattern->offsets[lane];
  }
};

/// All patterns that there are, each once.
class AccessPatterns {
 public:
  AccessPatterns() { patterns_.reserve(kMost); }
  AccessPatterns(const AccessPatterns&) = delete;
  /// The mask is not 0, and there is room. What is returned lives until clear() is called.
  PlacedPattern find(const std::uint32_t* offsets, std::uint32_t mask, unsigned bytes, bool matrices);
  /// There is no room for more: time to clear().
  bool full() const { return patterns_.size() >= kMost; }
  void clear();

 private:
  static constexpr std::size_t kMost = 1024;
  std::vector<AccessPattern> patterns_;  // has room for all, so that none of them moves
  // By hash, or in the next place that is free.
  std::vector<const AccessPattern*> places_ = std::vector<const AccessPattern*>(2 * kMost);
};

}  // namespace flash_ladder::emulator
