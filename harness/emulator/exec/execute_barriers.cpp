// bar and mbarrier. PTX ISA, "Parallel Synchronization and Communication Instructions".

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

// The state that mbarrier.arrive returns: the phase, and how many arrivals are pending. Opaque to programs.
std::uint64_t state_of(std::uint32_t phase, std::uint32_t pending) { return (std::uint64_t{phase} << 32) | pending; }

constexpr std::uint32_t kMaxArrivals = (1u << 20) - 1;

}  // namespace

// Whether the warp can go on. Barriers count threads; a warp counts whole, as on the hardware.
bool CtaExecutor::barrier(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto mode = static_cast<BarrierMode>(instruction.operation);
  const int lane = std::countr_zero(mask);
  const auto* ids = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes]);
  const auto* counts = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes + 1u]);
  const std::uint32_t id = ids[lane];
  if (id >= barriers_.size()) {
    find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
         fmt::format("barrier {}; there are 16, from 0", id));
    return true;
  }
  if (mask != warp.alive) {
    find(FindingKind::divergent_barrier, &warp, &instruction, std::countr_zero(warp.alive & ~mask), std::nullopt,
         fmt::format("lanes {:#010x} of the warp are at a barrier that its lanes {:#010x} do not reach with them{}",
                     mask, warp.alive & ~mask, describe_parting(warp, warp.alive & ~mask)));
  }
  const std::uint32_t count = instruction.has_count ? counts[lane] : 0;
  if (instruction.has_count && (count == 0 || count % kWarpSize != 0)) {
    find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
         fmt::format("a barrier for {} threads; the count must be a multiple of 32", count));
    return true;
  }
  Barrier& barrier = barriers_[id];
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.instruction = index_of(instruction);
  } else if (barrier.expected != count) {
    find(FindingKind::divergent_barrier, &warp, &instruction, lane, std::nullopt,
         fmt::format("barrier {} for {} threads while others wait at it for {}", id, count, barrier.expected));
  }
  if (shadow_ != nullptr) {
    if (barrier.clock.empty()) barrier.clock = shadow_->clocks().empty();
    shadow_->clocks().release(warp.index, mask, barrier.clock);
  }
  // __syncthreads(): all threads must be at the same one. Compilers may copy it, but the copies keep its line.
  if (!instruction.has_count && barrier.instruction != index_of(instruction)) {
    const SourcePosition here = position_of(index_of(instruction)), there = position_of(barrier.instruction);
    if (here != there && findings_.is_new(FindingKind::divergent_barrier, place_of(index_of(instruction)),
                                          place_of(barrier.instruction))) {
      RawFinding raw = describe(FindingKind::divergent_barrier, &warp, &instruction, lane, std::nullopt,
                                "the warp is at another barrier of the program than the warps that wait");
      raw.other_place = place_of(barrier.instruction);
      raw.finding.other = {
          .what = "waited for", .position = there, .warp = std::countr_zero(barrier.waiting), .lane = 0};
      findings_.add(std::move(raw));
    }
  }
  barrier.arrived += instruction.has_count ? kWarpSize : static_cast<std::uint32_t>(std::popcount(warp.alive));
  ++progress_;
  if (mode >= BarrierMode::red_popc) {
    std::uint32_t votes;
    std::memcpy(&votes, warp.registers + instruction.r[instruction.writes + 2u], 4);
    barrier.ones += static_cast<std::uint32_t>(std::popcount(votes & mask));
    barrier.voters += static_cast<std::uint32_t>(std::popcount(mask));
  }
  if (mode != BarrierMode::arrive) {
    barrier.waiting |= 1u << warp.index;
    barrier.reduction[static_cast<std::size_t>(warp.index)] =
        mode >= BarrierMode::red_popc ? index_of(instruction) : -1;
  }
  const std::uint32_t expected = barrier.expected == 0 ? threads_alive_ : barrier.expected;
  if (barrier.arrived < expected) return mode == BarrierMode::arrive;
  release(barrier);
  return true;
}

// All have arrived: the waiting warps go on.
void CtaExecutor::release(Barrier& barrier) {
  if (barrier.expected == 0) check_all_came(barrier);
  if (shadow_ != nullptr) {
    Clocks& clocks = shadow_->clocks();
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
  for (Warp& warp : warps_) {
    if (!((barrier.waiting >> warp.index) & 1)) continue;
    warp.status = WarpStatus::ready;
    const std::int32_t at = barrier.reduction[static_cast<std::size_t>(warp.index)];
    if (at < 0) continue;
    const Instruction& instruction = code_[static_cast<std::size_t>(at)];
    const auto mode = static_cast<BarrierMode>(instruction.operation);
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
  barrier = {};
  ++progress_;
}

// __syncthreads() is for all threads of the block. The hardware does not wait for threads that have ended, but they have missed
// a barrier that others pass, and CUDA leaves undefined what happens then.
void CtaExecutor::check_all_came(const Barrier& barrier) {
  const std::uint32_t ended = num_threads_ - threads_alive_;
  if (ended == 0) return;
  std::vector<int> missing;
  for (const Warp& warp : warps_) {
    if (warp.alive == 0) missing.push_back(warp.index);
  }
  const std::string whole = missing.empty() ? "" : fmt::format(", all of {} among them,", list_of_warps(missing));
  const Warp& waiting = warps_[static_cast<std::size_t>(std::countr_zero(barrier.waiting)) % warps_.size()];
  find(FindingKind::divergent_barrier, &waiting, &code_[static_cast<std::size_t>(barrier.instruction)], -1,
       std::nullopt,
       fmt::format("{} of the block's {} threads{} have ended without coming to this barrier", ended, num_threads_,
                   whole));
}

void CtaExecutor::check_barriers() {
  for (Barrier& barrier : barriers_) {
    if (barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived >= threads_alive_ && barrier.waiting != 0) {
      release(barrier);
    }
  }
}

// To the race detector, an mbarrier is written when it is initialised or made invalid, and read by all other operations.
void CtaExecutor::note_mbarrier_access(Warp& warp, const Instruction& instruction, std::uint32_t lanes,
                                       const std::uint32_t* offsets) {
  if (shadow_ == nullptr || lanes == 0) return;
  const auto operation = static_cast<MbarrierOperation>(instruction.operation);
  const bool writes = instruction.action == Action::mbarrier &&
                      (operation == MbarrierOperation::init || operation == MbarrierOperation::inval);
  const SharedAccess access{warp.index, index_of(instruction), !writes, lanes, 8, offsets};
  if (writes) {
    shadow_->write(access, 0);
  } else {
    shadow_->read(access);
  }
}

CtaExecutor::Mbarrier* CtaExecutor::find_mbarrier(Warp& warp, const Instruction& instruction, int lane,
                                                  std::uint32_t address) {
  for (Mbarrier& barrier : mbarriers_) {
    if (barrier.address == address) return &barrier;
  }
  find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
       fmt::format("byte {} of shared memory holds no mbarrier: it was not initialised, or made invalid", address));
  return nullptr;
}

// Whether the warp can go on: false after a test_wait that failed, so that others get their turn.
bool CtaExecutor::mbarrier(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto operation = static_cast<MbarrierOperation>(instruction.operation);
  if (operation == MbarrierOperation::pending_count) {
    const auto* states = reinterpret_cast<const std::uint64_t*>(warp.registers + instruction.r[1]);
    auto* counts = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((mask >> lane) & 1) counts[lane] = static_cast<std::uint32_t>(states[lane]);
    }
    return true;
  }
  LaneAddresses at;
  addresses(warp, instruction, instruction.r[instruction.writes], at);
  std::uint32_t offsets[kWarpSize];
  const std::uint32_t good = check_shared(warp, instruction, at, mask, 8, offsets);
  const std::byte* operand =
      instruction.operands > instruction.writes + 1 ? warp.registers + instruction.r[instruction.writes + 1u] : nullptr;
  note_mbarrier_access(warp, instruction, good, offsets);
  bool all_passed = true;
  std::uint32_t passed = 0;
  std::map<std::uint32_t, std::uint32_t> acquired;  // mbarrier → lanes that have seen its phase complete
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t address = offsets[lane];
    if (operation == MbarrierOperation::init) {
      const std::uint32_t count = reinterpret_cast<const std::uint32_t*>(operand)[lane];
      if (count == 0 || count > kMaxArrivals) {
        find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
             fmt::format("an mbarrier for {} arrivals; it can be 1 to {}", count, kMaxArrivals));
        continue;
      }
      std::erase_if(mbarriers_, [&](const Mbarrier& barrier) { return barrier.address == address; });
      Mbarrier& barrier = mbarriers_.emplace_back();
      barrier.address = address;
      barrier.count = barrier.expected = barrier.pending = count;
      if (shadow_ != nullptr) barrier.arriving = barrier.completed = shadow_->clocks().empty();
      ++progress_;
      continue;
    }
    Mbarrier* barrier = find_mbarrier(warp, instruction, lane, address);
    if (barrier == nullptr) {
      passed |= 1u << lane;  // do not spin for ever on what cannot happen
      continue;
    }
    switch (operation) {
      case MbarrierOperation::inval:
        std::erase_if(mbarriers_, [&](const Mbarrier& known) { return known.address == address; });
        break;
      case MbarrierOperation::arrive:
      case MbarrierOperation::arrive_drop: {
        const std::uint32_t count = reinterpret_cast<const std::uint32_t*>(operand)[lane];
        reinterpret_cast<std::uint64_t*>(warp.registers + instruction.r[0])[lane] =
            state_of(barrier->phase, barrier->pending);
        if (count == 0 || count > barrier->pending || (instruction.count != 0 && count == barrier->pending)) {
          find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
               fmt::format("{} arrivals{} at an mbarrier that expects {} more in this phase", count,
                           instruction.count != 0 ? " that must not complete the phase" : "", barrier->pending));
          break;
        }
        if (operation == MbarrierOperation::arrive_drop) barrier->count -= count;
        if (shadow_ != nullptr) shadow_->clocks().release(warp.index, 1u << lane, barrier->arriving);
        arrive(*barrier, count);
        break;
      }
      case MbarrierOperation::test_wait:
      case MbarrierOperation::test_wait_parity: {
        complete_async_arrivals(*barrier);
        bool done;
        if (operation == MbarrierOperation::test_wait) {
          const std::uint64_t state = reinterpret_cast<const std::uint64_t*>(operand)[lane];
          done = static_cast<std::uint32_t>(state >> 32) != barrier->phase;
        } else {
          const std::uint32_t parity = reinterpret_cast<const std::uint32_t*>(operand)[lane];
          done = (barrier->phase & 1) != (parity & 1);
        }
        if (done) {
          passed |= 1u << lane;
          if (shadow_ != nullptr) acquired[barrier->address] |= 1u << lane;
        } else {
          all_passed = false;
        }
        break;
      }
      default:
        break;
    }
  }
  if (operation == MbarrierOperation::test_wait || operation == MbarrierOperation::test_wait_parity) {
    auto& bits = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
    bits = (bits & ~mask) | passed;
    const std::uint32_t failed = good & ~passed;
    warp.failed_wait = {};
    if (failed != 0) warp.failed_wait = {index_of(instruction), offsets[std::countr_zero(failed)], failed};
    for (const auto& [address, lanes] : acquired) {
      const Mbarrier* barrier = find_mbarrier(warp, instruction, std::countr_zero(lanes), address);
      shadow_->clocks().acquire(warp.index, lanes, warp.alive, barrier->completed);
    }
  }
  return all_passed;
}

void CtaExecutor::arrive(Mbarrier& barrier, std::uint32_t count) {
  ++progress_;
  barrier.pending -= count;
  if (barrier.pending == 0) {
    ++barrier.phase;
    if (shadow_ != nullptr) {
      join(barrier.completed, barrier.arriving);
      barrier.arriving = shadow_->clocks().empty();
    }
    barrier.expected = barrier.pending = barrier.count;
  }
}

// cp.async.mbarrier.arrive: the lanes arrive when all copies that they have issued so far are complete. That is as late as
// possible: when someone asks whether the phase is.
void CtaExecutor::arrive_when_copied(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  LaneAddresses at;
  addresses(warp, instruction, instruction.r[0], at);
  std::uint32_t offsets[kWarpSize];
  const std::uint32_t good = check_shared(warp, instruction, at, mask, 8, offsets);
  note_mbarrier_access(warp, instruction, good, offsets);
  for (std::uint32_t rest = good; rest != 0;) {
    const int lane = std::countr_zero(rest);
    std::uint32_t same = 0;  // the lanes that name the same mbarrier
    for (int other = lane; other < kWarpSize; ++other) {
      if (((rest >> other) & 1) && offsets[other] == offsets[lane]) same |= 1u << other;
    }
    rest &= ~same;
    Mbarrier* barrier = find_mbarrier(warp, instruction, lane, offsets[lane]);
    if (barrier == nullptr) continue;
    const bool counts = instruction.operation != 0;
    // Without .noinc the arrival is one more than those that the phase was to have.
    if (!counts) {
      barrier->expected += static_cast<std::uint32_t>(std::popcount(same));
      barrier->pending += static_cast<std::uint32_t>(std::popcount(same));
    }
    barrier->async.push_back({.warp = warp.index, .mask = same, .issued = warp.copies_issued, .counts = counts});
  }
  ++progress_;
}

void CtaExecutor::complete_async_arrivals(Mbarrier& barrier) {
  for (const Mbarrier::AsyncArrival& arrival : std::exchange(barrier.async, {})) {
    Warp& warp = warps_[static_cast<std::size_t>(arrival.warp)];
    for (std::uint32_t rest = arrival.mask; rest != 0 && barrier.pending > 0;) {
      // Lanes beyond those that complete the phase belong to the next, and whoever waits for this one does not have their copies.
      std::uint32_t lanes = rest;
      while (static_cast<std::uint32_t>(std::popcount(lanes)) > barrier.pending) lanes &= ~std::bit_floor(lanes);
      rest &= ~lanes;
      for (PendingCopy& copy : warp.copies) {
        if (copy.number < arrival.issued && (copy.mask & lanes) != 0) complete(warp, copy, copy.mask & lanes, true);
      }
      if (shadow_ != nullptr) shadow_->clocks().publish_async(arrival.warp, barrier.arriving);
      arrive(barrier, static_cast<std::uint32_t>(std::popcount(lanes)));
    }
    std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
  }
}

}  // namespace flash_ladder::emulator
