// What the warps of one CTA did, in sequence: phases, with the source lines that they come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator {

/// The activity of a warp in a run of instructions, or what it waits for.
enum class Phase : std::uint8_t {
  wait_barrier,   // for other warps, at a CTA-wide or named barrier
  wait_mbarrier,  // for a phase of an mbarrier to end
  wait_copies,    // cp.async.wait_group, .wait_all: one instruction, because copies take no time here
  wait_wgmma,     // wgmma.wait_group: one instruction
  copy,           // cp.async, TMA and the instructions that commit them, loads from global memory
  load,           // fragments: ldmatrix and other loads from shared memory
  mma,
  arithmetic,  // in floating point: softmax, rescaling, rounding; also shuffles and votes
  store,       // to shared or global memory
  other,       // before the first of these, and after a wait
};

/// "wait: barrier", "copy", …: as in the files.
std::string_view to_string(Phase phase);

/// A phase of a barrier, which warps wait for or arrive at.
struct TraceBarrier {
  bool is_mbarrier = false;
  std::uint32_t id = 0;    // an mbarrier's byte in shared memory; otherwise its number: 16 is the cluster's barrier
  std::int64_t phase = 0;  // the first is 0; -1 is the phase that had ended before the mbarrier was initialised

  bool operator==(const TraceBarrier&) const = default;
};

/// Consecutive instructions of one phase and one source line, or a wait. An instruction without a phase of its own,
/// such as an address computation, belongs to the preceding phase.
///
/// Time is counted in instructions: each warp issues one at every step. A warp that waits for others continues when the
/// last of them has arrived. This is not the time that a GPU would take.
struct TraceInterval {
  int warp = 0;
  Phase phase = Phase::other;
  std::uint64_t begin = 0, end = 0;  // steps
  std::uint64_t instructions = 0;    // warp instructions in it; for a wait, those of one test
  int position = 0;                  // index into CtaTrace::positions
  // For a wait: its barrier, and the warp that arrived last; -1: it did not have to wait, or waited for another CTA.
  std::optional<TraceBarrier> barrier = {};
  int ended_by = -1;
};

/// An operation of a warp at one step on behalf of other warps, or one that it starts.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    arrive,     // arrives at the barrier
    tma_load,   // requests a load of this many bytes from TMA, which `barrier` counts
    tma_store,  // requests a store of this many bytes from TMA
  };
  int warp = 0;
  Kind kind = Kind::arrive;
  std::uint64_t at = 0;  // step
  std::optional<TraceBarrier> barrier = {};
  std::uint32_t shared = 0, bytes = 0;  // for TMA: the address in shared memory, and the size
  int position = 0;
};

/// "arrive", "TMA load", "TMA store": as in the files.
std::string_view to_string(TraceEvent::Kind kind);

/// The wgmmas that a warpgroup has in flight: from the issue of the first until a warp of it has waited for them.
struct TraceWgmmas {
  int first_warp = 0;
  std::uint64_t begin = 0, end = 0;  // steps
  std::uint64_t count = 0;           // number of wgmmas in sequence that come from the same line
  int position = 0;
};

/// An mbarrier of the CTA.
struct TraceMbarrier {
  std::uint32_t address = 0;   // byte of shared memory
  std::uint32_t arrivals = 0;  // number that a phase waits for
  int position = 0;            // where it was initialised
};

struct CtaTrace {
  std::string kernel;  // mangled name
  Dim3 cta{0, 0, 0};   // blockIdx
  int num_warps = 0;
  std::vector<SourcePosition> positions;
  std::vector<TraceInterval> intervals;  // warp by warp, in order of time
  std::vector<TraceEvent> events;        // the same
  std::vector<TraceWgmmas> wgmmas;       // warpgroup by warpgroup, in order of issue
  std::vector<TraceMbarrier> mbarriers;  // in order of address
  std::vector<Role> roles;               // of its warps; empty if the kernel uses neither wgmma nor TMA nor setmaxnreg
};

}  // namespace flash_ladder::emulator
