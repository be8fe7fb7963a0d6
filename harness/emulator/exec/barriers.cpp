// What happens when a barrier has received all its arrivals, and when a copy must complete at the latest.

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

// All threads have arrived: the waiting warps continue.
void CtaExecutor::release(Barrier& barrier) {
  if (barrier.expected == 0) check_all_came(barrier);
  if (ordering_ != nullptr) {
    Clocks& clocks = ordering_->clocks();
    bool everybody = true;
    for (const Warp& warp : warps_) everybody &= warp.alive == 0 || ((barrier.waiting >> warp.index) & 1);
    if (everybody) {
      clocks.synchronise_all();
    } else {
      for (const Warp& warp : warps_) {
        if ((barrier.waiting >> warp.index) & 1) clocks.acquire(warp.index, warp.alive, warp.alive, barrier.clock);
      }
    }
  }
  const auto id = static_cast<std::uint32_t>(&barrier - barriers_.data());
  for (Warp& warp : warps_) {
    if (!((barrier.waiting >> warp.index) & 1)) continue;
    warp.status = WarpStatus::ready;
    if (trace_ != nullptr)
      trace_->go_on(warp.index, barrier.traced, {false, id, trace_->phase_of_barrier(id)}, barrier.traced_warp);
    const auto [at, mode] = barrier.warps[static_cast<std::size_t>(warp.index)];
    if (mode == BarrierMode::sync) continue;
    const Instruction& instruction = code_[static_cast<std::size_t>(at)];
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
  if (trace_ != nullptr) trace_->end_phase(id);
  barrier = {};
  note_progress();
}

// __syncthreads() is for all threads of the block. The hardware does not wait for threads that have ended, but then
// they miss a barrier that others pass, and CUDA leaves the behaviour undefined.
void CtaExecutor::check_all_came(const Barrier& barrier) {
  const std::uint32_t ended = num_threads_ - threads_alive_;
  if (ended == 0) return;
  std::vector<int> missing;
  for (const Warp& warp : warps_) {
    if (warp.alive == 0) missing.push_back(warp.index);
  }
  const std::string whole = missing.empty() ? "" : fmt::format(", including all of {},", list_of_warps(missing));
  const Warp& waiting = warps_[static_cast<std::size_t>(std::countr_zero(barrier.waiting)) % warps_.size()];
  find(FindingKind::divergent_barrier, &waiting, &code_[static_cast<std::size_t>(barrier.instruction)], -1,
       std::nullopt,
       fmt::format("{} of the block's {} threads{} have ended without reaching this barrier", ended, num_threads_,
                   whole));
}

void CtaExecutor::check_barriers() {
  for (Barrier& barrier : barriers_) {
    if (barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived >= threads_alive_ && barrier.waiting != 0) {
      release(barrier);
    }
  }
}

// A cp.async completes in these lanes.
void CtaExecutor::complete(Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* to = shared_.data() + copy.to[lane];
    const std::size_t from_bytes = copy.from_bytes[lane];
    if (from_bytes == 16) {  // the most frequent size, known at compile time and so copied without a call
      std::memcpy(to, copy.from[lane], 16);
      continue;
    }
    if (from_bytes != 0) std::memcpy(to, copy.from[lane], from_bytes);
    std::memset(to + from_bytes, 0, copy.bytes - from_bytes);
  }
  if (shadow_ != nullptr) {
    shadow_->complete_copy({warp.index, copy.instruction, false, mask, copy.bytes, copy.to}, by_mbarrier);
  }
  if (async_ != nullptr) async_->proxy.note_write(warp.index, copy.instruction, mask, copy.bytes, copy.to);
  copy.mask &= ~mask;
  note_progress();
}

}  // namespace flash_ladder::emulator
