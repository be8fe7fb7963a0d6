#include "emulator/exec/barriers.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

namespace {

// __syncthreads() is for all threads of the block. The hardware does not wait for threads that have ended, but then
// they miss a barrier that others pass, and CUDA leaves the behaviour undefined.
void check_all_came(CtaExecutor& cta, const Barrier& barrier) {
  const std::uint32_t ended = cta.num_threads() - cta.threads_alive();
  if (ended == 0) return;
  std::vector<int> missing;
  for (const Warp& warp : cta.warps()) {
    if (warp.alive == 0) missing.push_back(warp.index);
  }
  const std::string whole = missing.empty() ? "" : fmt::format(", including all of {},", list_of_warps(missing));
  const Warp& waiting = cta.warps()[static_cast<std::size_t>(std::countr_zero(barrier.waiting)) % cta.warps().size()];
  cta.find(FindingKind::divergent_barrier, &waiting, &cta.code()[static_cast<std::size_t>(barrier.instruction)], -1,
           std::nullopt,
           fmt::format("{} of the block's {} threads{} have ended without reaching this barrier", ended,
                       cta.num_threads(), whole));
}

}  // namespace

void release(CtaExecutor& cta, Barrier& barrier) {
  if (barrier.expected == 0) check_all_came(cta, barrier);
  if (cta.ordering() != nullptr) {
    Clocks& clocks = cta.ordering()->clocks();
    bool everybody = true;
    for (const Warp& warp : cta.warps()) everybody &= warp.alive == 0 || ((barrier.waiting >> warp.index) & 1);
    if (everybody) {
      clocks.synchronise_all();
    } else {
      for (const Warp& warp : cta.warps()) {
        if ((barrier.waiting >> warp.index) & 1) clocks.acquire(warp.index, warp.alive, warp.alive, barrier.clock);
      }
    }
  }
  const auto id = static_cast<std::uint32_t>(&barrier - cta.barriers().data());
  for (Warp& warp : cta.warps()) {
    if (!((barrier.waiting >> warp.index) & 1)) continue;
    warp.status = WarpStatus::ready;
    if (cta.trace() != nullptr)
      cta.trace()->go_on(warp.index, barrier.traced, {false, id, cta.trace()->phase_of_barrier(id)},
                         barrier.traced_warp);
    const auto [at, mode] = barrier.warps[static_cast<std::size_t>(warp.index)];
    if (mode == BarrierMode::sync) continue;
    const Instruction& instruction = cta.code()[static_cast<std::size_t>(at)];
    std::byte* to = warp.registers + instruction.r[0];
    if (mode == BarrierMode::red_popc) {
      auto* lanes = reinterpret_cast<std::uint32_t*>(to);
      for (int lane = 0; lane < kWarpSize; ++lane) {
        if ((warp.active >> lane) & 1) lanes[lane] = barrier.ones;
      }
    } else {
      const bool result = mode == BarrierMode::red_and ? barrier.ones == barrier.voters : barrier.ones > 0;
      auto& bits = *reinterpret_cast<std::uint32_t*>(to);
      bits = (bits & ~warp.active) | (result ? warp.active : 0);
    }
  }
  if (cta.trace() != nullptr) cta.trace()->end_phase(id);
  barrier = {};
  cta.note_progress();
}

void check_barriers(CtaExecutor& cta) {
  for (Barrier& barrier : cta.barriers()) {
    if (barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived >= cta.threads_alive() &&
        barrier.waiting != 0) {
      release(cta, barrier);
    }
  }
}

void complete(CtaExecutor& cta, Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* to = cta.memory().shared() + copy.to[lane];
    const std::size_t from_bytes = copy.from_bytes[lane];
    if (from_bytes == 16) {  // the most frequent size, known at compile time and so copied without a call
      std::memcpy(to, copy.from[lane], 16);
      continue;
    }
    if (from_bytes != 0) std::memcpy(to, copy.from[lane], from_bytes);
    std::memset(to + from_bytes, 0, copy.bytes - from_bytes);
  }
  if (cta.shadow() != nullptr) {
    cta.shadow()->complete_copy({warp.index, copy.instruction, false, mask, copy.bytes, copy.to}, by_mbarrier);
  }
  if (cta.async() != nullptr) cta.async()->proxy.note_write(warp.index, copy.instruction, mask, copy.bytes, copy.to);
  copy.mask &= ~mask;
  cta.note_progress();
}

}  // namespace flash_ladder::emulator
