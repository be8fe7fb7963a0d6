// What an access pattern costs: 32-byte sectors of global memory, wavefronts of shared memory.
#pragma once

#include <array>
#include <cstdint>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

/// Of a sector, the least that is read from global memory.
constexpr unsigned kSectorBytes = 32;

/// The number of distinct sectors that the active lanes touch. An aligned access lies in one.
unsigned count_sectors(const std::uint64_t* addresses, std::uint32_t mask);

struct Wavefronts {
  std::uint32_t actual = 0;
  std::uint32_t ideal = 0;
};

/// Passes over the 32 banks of 4 bytes that shared memory needs for one warp instruction. 32, 16 or 8 lanes are served at a time
/// for accesses of up to 4, 8 or 16 bytes (a phase); two phases become one if their lanes in pairs have the same address.
/// Lanes that touch the same word share it, and a phase takes as many wavefronts as there are distinct words in the bank that
/// has most. The ideal is one for each phase with an active lane.
class BankModel {
 public:
  /// `matrices`: of ldmatrix, whose phases are its 8×8 matrices.
  Wavefronts count(const std::uint32_t* addresses, std::uint32_t mask, unsigned bytes, bool matrices = false);

 private:
  // Kernels repeat few patterns many times, shifted by whole words, which costs the same.
  struct Entry {
    std::array<std::uint32_t, 32> pattern{};
    std::uint32_t mask = 0;
    unsigned bytes = 0;
    bool matrices = false;
    Wavefronts wavefronts;
  };
  std::array<Entry, 128> cache_{};
  const SharedFunctions& functions_ = shared_functions();
};

}  // namespace flash_ladder::emulator
