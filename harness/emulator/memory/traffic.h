// The cost of an access pattern: 32-byte sectors of global memory, wavefronts of shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

/// The number of distinct sectors that the active lanes access. An aligned access is within one sector.
unsigned count_sectors(const std::uint64_t* addresses, std::uint32_t mask);

struct Wavefronts {
  std::uint32_t actual = 0;
  std::uint32_t ideal = 0;
};

/// The shared-memory offsets of the lanes of one instruction, and what they cost. Kernels repeat a few patterns many
/// times, shifted by whole words, which does not change the cost.
struct AccessPattern {
  alignas(64) std::array<std::uint32_t, 32> offsets{};  // for the lanes in the mask; the others have 0
  std::uint32_t mask = 0;
  unsigned bytes = 0;     // per lane
  bool matrices = false;  // an ldmatrix, whose phases are its 8×8 matrices
  /// The same without repetitions: each offset, and the last lane that has it, plus 32 if several lanes do.
  std::array<std::uint32_t, 32> distinct{}, distinct_lanes{};
  std::uint32_t num_distinct = 0;
  // Where the lowest access begins, which may be inside its word, and where the last one ends.
  std::uint32_t first = 0, span = 0;
  /// Passes over the 32 banks of 4 bytes that the access needs. 32, 16 or 8 lanes are served at a time for accesses of
  /// up to 4, 8 or 16 bytes (a phase); two phases become one if their lanes in pairs have the same address. Lanes that
  /// access the same word share it, and a phase takes as many wavefronts as the bank with the most distinct words has
  /// words. The ideal is one for each phase with an active lane.
  Wavefronts wavefronts;
};

/// A pattern at a location: byte `base` of shared memory is the start of the first word that is accessed.
struct PlacedPattern {
  const AccessPattern* pattern = nullptr;
  std::uint32_t base = 0;

  void expand(std::uint32_t* offsets) const {
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) offsets[lane] = base + pattern->offsets[lane];
  }
};

/// All patterns that occur, each stored once.
class AccessPatterns {
 public:
  AccessPatterns() { patterns_.reserve(kMost); }
  AccessPatterns(const AccessPatterns&) = delete;
  /// The mask must not be 0, and there must be room. The result is valid until clear() is called.
  PlacedPattern find(const std::uint32_t* offsets, std::uint32_t mask, unsigned bytes, bool matrices);
  /// There is no room for more, so clear() must be called.
  bool full() const { return patterns_.size() >= kMost; }
  void clear();

 private:
  static constexpr std::size_t kMost = 1024;
  std::vector<AccessPattern> patterns_;  // has room for all of them, so that they never move
  // At the index given by the hash, or in the next free place.
  std::vector<const AccessPattern*> places_ = std::vector<const AccessPattern*>(2 * kMost);
};

}  // namespace flash_ladder::emulator
