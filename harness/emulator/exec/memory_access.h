// The access of one warp instruction to memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "emulator/decode/instruction.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// The addresses of 32 lanes.
struct LaneAddresses {
  alignas(64) std::array<std::uint64_t, kWarpSize> at;
};

/// The access of an instruction to memory of one state space, for the lanes whose addresses are in it.
struct MemoryAccess {
  ptx::Space space;
  std::uint32_t lanes;
  std::uint32_t good;                // the lanes among these whose access is in bounds and aligned
  unsigned bytes;                    // per lane
  std::uint32_t offsets[kWarpSize];  // in shared or the thread's local memory
  std::byte* host[kWarpSize];        // host addresses of the bytes, for the good lanes
  CtaExecutor* peer = nullptr;       // the CTA of the cluster that owns the shared memory; null: this CTA
  // For global memory: all lanes take part and are good, and their accesses are adjacent, in order of lanes.
  bool consecutive = false;
  PlacedPattern placed = {};  // for shared memory, if all lanes are good
};

}  // namespace flash_ladder::emulator
