#include "emulator/exec/phase_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

using Moment = Mbarrier::Moment;

Moment moment(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, int lane) {
  return {.instruction = cta.index_of(instruction),
          .warp = warp.index,
          .lane = lane,
          .known_from = cta.shadow()->clocks().next()};
}

// Whether a warp knows of something that happened in this thread. The lanes of a warp wait together, and an instruction
// for all lanes, such as wgmma, holds up those that are ahead: one that knows is enough.
bool knows(const Clocks& clocks, const Warp& warp, const Moment& moment) {
  if (moment.warp == warp.index) return true;
  const auto thread = static_cast<std::size_t>(moment.warp * kWarpSize + moment.lane);
  for (int lane = 0; lane < kWarpSize; ++lane)
    if (((warp.alive >> lane) & 1) != 0 && clocks.of(warp.index, lane)[thread] >= moment.known_from) return true;
  return false;
}

// The same for the threads that have arrived, of which any lane of the warp may have told them.
bool is_known(const Clock& arriving, const Moment& moment) {
  const auto first = arriving.begin() + moment.warp * kWarpSize;
  return std::any_of(first, first + kWarpSize, [&](AccessNumber known) { return known >= moment.known_from; });
}

// Whether clocks tell the order of waits. They do not say what a thread had done before it issued the copies that arrive for
// it, because such an arrival releases nothing but the copies.
bool is_order_known(CtaExecutor& cta) {
  return cta.shadow() != nullptr && std::none_of(cta.mbarriers().begin(), cta.mbarriers().end(),
                                                 [](const Mbarrier& m) { return m.copies_arrive; });
}

}  // namespace

void note_arrival(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier) {
  if (cta.shadow() != nullptr) barrier.arrived = moment(cta, warp, instruction, lane);
}

void check_end_of_phase(CtaExecutor& cta, Mbarrier& barrier) {
  if (!is_order_known(cta)) return;
  const bool all_known = !std::exchange(barrier.peers_arrived, false);
  for (const Moment& wait : std::exchange(barrier.passed, {})) {
    if (!all_known || is_known(barrier.arriving, wait)) continue;
    cta.find(FindingKind::race, cta.warps()[static_cast<std::size_t>(wait.warp)], wait.instruction, wait.lane,
             barrier.address,
             fmt::format("this waits for phase {} (parity {}) of the mbarrier at byte {} of shared memory, and nothing "
                         "orders it before the end of phase {}, after which it would wait for ever",
                         barrier.phase - 1, (barrier.phase - 1) & 1, barrier.address, barrier.phase),
             {.what = "arrived",
              .instruction = barrier.arrived.instruction,
              .warp = barrier.arrived.warp,
              .lane = barrier.arrived.lane});
  }
  barrier.ended_before = std::exchange(barrier.ended, std::exchange(barrier.arrived, {}));
}

void check_wait(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t lanes,
                Mbarrier& barrier) {
  if (!is_order_known(cta)) return;
  if (barrier.phase == 0) return;  // the phase before the first, from which a ring's producer starts
  const int lane = std::countr_zero(lanes);
  const Moment wait = moment(cta, warp, instruction, lane);
  const auto earlier =
      std::find_if(barrier.passed.begin(), barrier.passed.end(), [&](const Moment& m) { return m.warp == warp.index; });
  if (earlier == barrier.passed.end())
    barrier.passed.push_back(wait);
  else
    *earlier = wait;

  const Moment& before = barrier.ended_before;
  if (barrier.phase < 2 || before.instruction < 0 || knows(cta.shadow()->clocks(), warp, before)) return;
  const std::uint32_t phase = barrier.phase - 1;
  cta.find(
      FindingKind::race, warp, wait.instruction, lane, barrier.address,
      fmt::format("this waits for phase {} (parity {}) of the mbarrier at byte {} of shared memory, and nothing "
                  "orders it after the end of phase {}: {}",
                  phase, phase & 1, barrier.address, phase - 1,
                  phase == 1 ? std::string("before any phase has ended, it would not wait")
                             : fmt::format("after phase {}, which has the same parity, it would not wait", phase - 2)),
      {.what = "arrived", .instruction = before.instruction, .warp = before.warp, .lane = before.lane});
}

}  // namespace flash_ladder::emulator
