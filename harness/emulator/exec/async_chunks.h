// The pieces in which the asynchronous proxy accesses shared memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/checks/shared_shadow.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

/// The unit of access of the asynchronous proxy, in bytes.
inline constexpr std::uint32_t kChunk = 16;

/// Calls f(access) for 32 chunks at a time. `chunks`: their offsets in shared memory.
template <typename F>
void for_each_access(const Warp& warp, std::int32_t instruction, int lane, const std::vector<std::uint32_t>& chunks,
                     F f) {
  for (std::size_t first = 0; first < chunks.size(); first += kWarpSize) {
    const std::size_t count = std::min<std::size_t>(kWarpSize, chunks.size() - first);
    alignas(64) std::uint32_t offsets[kWarpSize] = {};
    std::copy_n(chunks.begin() + static_cast<std::ptrdiff_t>(first), count, offsets);
    const std::uint32_t mask = count == kWarpSize ? kAllLanes : (1u << count) - 1;
    f(SharedAccess{warp.index, instruction, false, mask, kChunk, offsets, lane});
  }
}

}  // namespace flash_ladder::emulator
