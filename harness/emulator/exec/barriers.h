// The state of a CTA's barriers, and what happens when one has received all its arrivals, and when a copy must complete at
// the latest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "emulator/checks/clocks.h"

namespace flash_ladder::emulator {

class CtaExecutor;
struct PendingCopy;
struct Warp;

enum class BarrierMode : std::uint8_t { sync, arrive, red_popc, red_and, red_or };

/// Per CTA; 0 is the barrier of __syncthreads().
inline constexpr std::size_t kNamedBarriers = 16;

/// A CTA-wide or named barrier.
struct Barrier {
  std::uint32_t arrived = 0;      // threads
  std::uint32_t expected = 0;     // by the barrier that threads are waiting at; 0: all threads that have not ended
  std::uint32_t waiting = 0;      // warps
  std::int32_t instruction = -1;  // the first instruction that arrived
  std::uint32_t ones = 0;         // bar.red: threads whose predicate is true
  std::uint32_t voters = 0;       // bar.red: threads
  struct Waiting {                // warp
    std::int32_t instruction = -1;
    BarrierMode mode = BarrierMode::sync;
  };
  std::array<Waiting, 32> warps{};
  Clock clock;  // the knowledge of the threads that arrived
  // For a trace: when the last thread arrived, and which warp it belongs to.
  std::uint64_t traced = 0;
  int traced_warp = -1;
};

struct Mbarrier {
  std::uint32_t address = 0;
  std::uint32_t count = 0;     // arrivals that the next phase expects
  std::uint32_t expected = 0;  // arrivals that this phase expects in total
  std::uint32_t pending = 0;   // arrivals that it still expects
  std::uint32_t phase = 0;
  struct AsyncArrival {  // cp.async.mbarrier.arrive: takes effect when the copies issued by the lanes are complete
    int warp;
    std::uint32_t mask;
    std::uint64_t issued;  // how many copies the warp had issued
    bool counts;           // .noinc: it is one of the arrivals for which the barrier was initialised
    std::uint64_t traced;  // when it was issued, for a trace
  };
  std::vector<AsyncArrival> async;
  std::uint32_t warps = 0, warps_before = 0;  // warps that have arrived in this phase, and in the one before
  // Bytes that TMA or st.async must still bring before the phase ends: the bytes announced (expect_tx) minus those that
  // have arrived.
  std::int64_t transactions = 0;
  std::int64_t promised = 0;              // bytes announced in this phase
  std::int32_t promised_by = -1;          // the latest instruction that announced bytes
  std::vector<std::uint64_t> deliveries;  // numbers in AsyncUnits of operations in flight that will signal this barrier
  int engine = 0;                         // the engine that represents those arrivals of data in the race detector
  std::uint64_t initialised_at = 0;       // used by AsyncUnits to decide whether the async proxy can see it
  std::int32_t initialised_by = -1;       // instruction
  int initialised_by_thread = -1;
  Clock arriving, completed;  // the knowledge of the threads that arrived in this phase, and in earlier phases
  // For exec/phase_order.h: when something happened. Clocks from this number on know that it did.
  struct Moment {
    std::int32_t instruction = -1;  // -1: not known
    int warp = -1, lane = -1;
    AccessNumber known_from = 0;
  };
  Moment arrived, ended, ended_before;  // the last arrival of this phase, of the one before, and of the one before that
  bool peers_arrived = false;           // in this phase: threads of other CTAs
  bool copies_arrive = false;           // cp.async.mbarrier.arrive has been executed
  std::vector<Moment> passed;           // of each warp, the last wait that passed because the previous phase has ended
  // For a trace: when the last of them arrived, and which warp it was.
  std::uint64_t traced_arriving = 0, traced_completed = 0;
  int traced_by = -1, traced_completed_by = -1;
  void trace_arrival(std::uint64_t at, int warp) {
    if (at >= traced_arriving) traced_by = warp;
    traced_arriving = std::max(traced_arriving, at);
  }
};

/// All threads have arrived: the waiting warps continue.
void release(CtaExecutor& cta, Barrier& barrier);
/// Lanes have ended: a barrier may now have every arrival that it waits for.
void check_barriers(CtaExecutor& cta);
/// A cp.async completes in these lanes.
void complete(CtaExecutor& cta, Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier);

}  // namespace flash_ladder::emulator
