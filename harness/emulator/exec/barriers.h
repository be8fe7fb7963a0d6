// The state of a CTA's barriers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "emulator/checks/clocks.h"

namespace flash_ladder::emulator {

enum class BarrierMode : std::uint8_t { sync, arrive, red_popc, red_and, red_or };

/// Of each CTA; 0 is that of __syncthreads().
inline constexpr std::size_t kNamedBarriers = 16;

/// A CTA-wide or named barrier.
struct Barrier {
  std::uint32_t arrived = 0;      // threads
  std::uint32_t expected = 0;     // of the barrier that is being waited for; 0: all threads that have not ended
  std::uint32_t waiting = 0;      // warps
  std::int32_t instruction = -1;  // the first that arrived
  std::uint32_t ones = 0;         // bar.red: threads whose predicate is true
  std::uint32_t voters = 0;       // bar.red: threads
  struct Waiting {                // warp
    std::int32_t instruction = -1;
    BarrierMode mode = BarrierMode::sync;
  };
  std::array<Waiting, 32> warps{};
  Clock clock;  // what those that arrived knew
  // For a trace: when the last of them came, and who that was.
  std::uint64_t traced = 0;
  int traced_warp = -1;
};

struct Mbarrier {
  std::uint32_t address = 0;
  std::uint32_t count = 0;     // arrivals that the next phase expects
  std::uint32_t expected = 0;  // that this phase expects in all
  std::uint32_t pending = 0;   // that it still expects
  std::uint32_t phase = 0;
  struct AsyncArrival {  // cp.async.mbarrier.arrive: happens when the copies that the lanes had issued are complete
    int warp;
    std::uint32_t mask;
    std::uint64_t issued;  // how many copies the warp had issued
    bool counts;           // .noinc: it is one of the arrivals that the barrier was initialised for
    std::uint64_t traced;  // when it was said, for a trace
  };
  std::vector<AsyncArrival> async;
  std::uint32_t warps = 0, warps_before = 0;  // that have arrived in this phase, and in the one before
  // Bytes that TMA or st.async is to bring before the phase ends: those promised (expect_tx), less those that came.
  std::int64_t transactions = 0;
  std::int64_t promised = 0;              // in this phase
  std::int32_t promised_by = -1;          // the latest instruction that did
  std::vector<std::uint64_t> deliveries;  // numbers of what is under way and is to tell this barrier, in AsyncUnits
  int engine = 0;                         // whose arrivals of data those are, to the race detector
  std::uint64_t initialised_at = 0;       // for the question whether the async proxy can see it: AsyncUnits
  std::int32_t initialised_by = -1;       // instruction
  int initialised_by_thread = -1;
  Clock arriving, completed;  // what those knew that arrived in this phase, in the phases before
  // For a trace: when the last of them came, and who that was.
  std::uint64_t traced_arriving = 0, traced_completed = 0;
  int traced_by = -1, traced_completed_by = -1;
  void trace_arrival(std::uint64_t at, int warp) {
    if (at >= traced_arriving) traced_by = warp;
    traced_arriving = std::max(traced_arriving, at);
  }
};

}  // namespace flash_ladder::emulator
