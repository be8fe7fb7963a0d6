#include "emulator/exec/async_proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "emulator/exec/async_chunks.h"
#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

AsyncProxy::AsyncProxy(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes)
    : cta_(cta),
      num_warps_(num_warps),
      chunks_((shared_bytes + kChunk - 1) / kChunk),
      fences_(num_warps * kWarpSize),
      mbarrier_fences_(num_warps * kWarpSize),
      known_at_fence_(num_warps) {}

void AsyncProxy::start() {
  std::fill(chunks_.begin(), chunks_.end(), Chunk{});
  now_ = 0;
  std::fill(fences_.begin(), fences_.end(), 0);
  std::fill(mbarrier_fences_.begin(), mbarrier_fences_.end(), 0);
  std::fill(known_at_fence_.begin(), known_at_fence_.end(), Clock{});
  next_engine_ = 0;
}

void AsyncProxy::renumber(const Renumbering& renumbering) {
  for (Chunk& chunk : chunks_) chunk.number = renumbering(chunk.number);
  for (Clock& clock : known_at_fence_) renumbering.apply_to(clock);
}

void AsyncProxy::note_write(int warp, std::int32_t instruction, std::uint32_t lanes, unsigned bytes,
                            const std::uint32_t* offsets) {
  if (cta_.shadow() == nullptr) return;
  ++now_;
  const AccessNumber number = cta_.shadow()->clocks().next() - 1;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::uint32_t i = offsets[lane] / kChunk; i <= (offsets[lane] + bytes - 1) / kChunk; ++i) {
      chunks_[i] = {.writer = instruction,
                    .written_at = now_,
                    .number = number,
                    .thread = static_cast<std::uint16_t>(warp * kWarpSize + lane)};
    }
  }
}

void AsyncProxy::forget_write(std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::uint32_t i = offsets[lane] / kChunk; i <= (offsets[lane] + bytes - 1) / kChunk; ++i) chunks_[i] = {};
  }
}

void AsyncProxy::note_copy(const std::vector<std::uint32_t>& chunks, std::int32_t instruction, const Swizzle* swizzle) {
  const auto known = static_cast<std::uint8_t>(swizzle == nullptr ? 0 : 1 + static_cast<int>(*swizzle));
  for (const std::uint32_t offset : chunks) chunks_[offset / kChunk] = {.swizzle = known, .tma = instruction};
}

void AsyncProxy::fence(const Warp& warp, std::uint32_t lanes, bool only_mbarriers) {
  ++now_;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const std::size_t thread =
        static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(std::countr_zero(rest));
    mbarrier_fences_[thread] = now_;
    if (!only_mbarriers) fences_[thread] = now_;
  }
  if (SharedShadow* shadow = cta_.shadow(); shadow != nullptr && !only_mbarriers)
    known_at_fence_[static_cast<std::size_t>(warp.index)] = shadow->clocks().of(warp.index, std::countr_zero(lanes));
}

void AsyncProxy::note_initialised(Mbarrier& barrier, int warp, int lane, std::int32_t instruction) {
  barrier.engine = next_engine_++ % kEngines;
  barrier.initialised_at = ++now_;
  barrier.initialised_by = instruction;
  barrier.initialised_by_thread = warp * kWarpSize + lane;
}

// Data written by ordinary instructions become visible to the asynchronous proxy through a fence.proxy.async of the
// thread that wrote them, or of the thread that starts the asynchronous operation, once it has acquired the write. (PTX
// ISA, "Causality order".)
void AsyncProxy::check_visible(const Warp& warp, std::int32_t instruction, int lane,
                               const std::vector<std::uint32_t>& chunks) {
  const Clock& known = known_at_fence_[static_cast<std::size_t>(warp.index)];
  const auto was_known = [&](const Chunk& chunk) {
    const std::size_t of_warp = num_warps_ * kWarpSize + chunk.thread / kWarpSize;  // its cp.async
    return !known.empty() && (chunk.number < known[chunk.thread] || chunk.number < known[of_warp]);
  };
  for (const std::uint32_t offset : chunks) {
    Chunk& chunk = chunks_[offset / kChunk];
    if (chunk.writer < 0) continue;
    if (fences_[chunk.thread] < chunk.written_at && !was_known(chunk)) {
      cta_.find(
          FindingKind::missing_fence, warp, instruction, lane, offset,
          fmt::format("byte {} of shared memory was written by an ordinary instruction, and no fence.proxy.async by "
                      "the thread that wrote it has made it visible to the asynchronous proxy, through which this "
                      "instruction reads",
                      offset),
          {.what = "written",
           .instruction = chunk.writer,
           .warp = chunk.thread / kWarpSize,
           .lane = chunk.thread % kWarpSize});
    }
    chunk.writer = -1;
  }
}

void AsyncProxy::check_layout(const Warp& warp, std::int32_t instruction, const std::vector<std::uint32_t>& chunks,
                              Swizzle swizzle, const char* operand) {
  for (const std::uint32_t offset : chunks) {
    const Chunk& chunk = chunks_[offset / kChunk];
    if (chunk.swizzle == 0 || chunk.swizzle == 1 + static_cast<int>(swizzle)) continue;
    cta_.find(FindingKind::layout_mismatch, warp, instruction, -1, offset,
              fmt::format("the descriptor of {} specifies {}, but TMA wrote byte {} of shared memory with {}", operand,
                          to_string(swizzle), offset, to_string(static_cast<Swizzle>(chunk.swizzle - 1))),
              {.what = "written by TMA", .instruction = chunk.tma, .warp = warp.index, .lane = 0});
    break;
  }
}

void AsyncProxy::check_initialised(const Warp& warp, std::int32_t instruction, int lane, Mbarrier& barrier) {
  if (barrier.initialised_by_thread < 0) return;
  const auto fenced = [&](std::size_t thread) { return mbarrier_fences_[thread] >= barrier.initialised_at; };
  const std::size_t own = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  if (fenced(static_cast<std::size_t>(barrier.initialised_by_thread)) || fenced(own)) return;
  cta_.find(
      FindingKind::missing_fence, warp, instruction, lane, barrier.address,
      fmt::format("the mbarrier at byte {} of shared memory was initialised, but the thread that did so has executed "
                  "no fence.mbarrier_init (or fence.proxy.async) since: before version 9.3, the PTX ISA does not "
                  "guarantee that TMA sees the barrier without one",
                  barrier.address),
      {.what = "initialised",
       .instruction = barrier.initialised_by,
       .warp = barrier.initialised_by_thread / kWarpSize,
       .lane = barrier.initialised_by_thread % kWarpSize});
  barrier.initialised_by_thread = -1;
}

}  // namespace flash_ladder::emulator
