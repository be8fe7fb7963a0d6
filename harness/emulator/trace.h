// What the warps of one CTA did, one after another: phases, with the source lines that they come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator {

/// What a warp does in a run of instructions, or what it waits for.
enum class Phase : std::uint8_t {
  wait_barrier,   // for other warps, at a CTA-wide or named barrier
  wait_mbarrier,  // for a phase of an mbarrier to end
  wait_copies,    // cp.async.wait_group, .wait_all: one instruction, since copies take no time here
  wait_wgmma,     // wgmma.wait_group: one instruction
  copy,           // cp.async, TMA and what commits it, loads from global memory
  load,           // fragments: ldmatrix and other loads from shared memory
  mma,
  arithmetic,  // in floating point: softmax, rescaling, rounding; shuffles and votes
  store,       // to shared or global memory
  other,       // before the first of these, and after a wait
};

/// "wait: barrier", "copy", …: as in the files.
std::string_view to_string(Phase phase);

/// A phase of a barrier: what warps wait for, and what they tell others.
struct TraceBarrier {
  bool is_mbarrier = false;
  std::uint32_t id = 0;    // of an mbarrier its byte in shared memory; else its number: 16 is that of the cluster
  std::int64_t phase = 0;  // the first is 0; -1 has ended before an mbarrier is there

  bool operator==(const TraceBarrier&) const = default;
};

/// Instructions that follow one another and are of one phase and one source line, or a wait. What has no phase of its own, as
/// the computation of addresses, belongs to what comes before it.
///
/// Time is counted in instructions: each warp issues one at every step. A warp that waits for others goes on when the last of
/// them has come. It is no time that a GPU would take.
struct TraceInterval {
  int warp = 0;
  Phase phase = Phase::other;
  std::uint64_t begin = 0, end = 0;  // steps
  std::uint64_t instructions = 0;    // warp instructions in it; of a wait the ones that ask, once
  int position = 0;                  // index into CtaTrace::positions
  // Of a wait: what for, and which warp came last; -1: it had not to wait, or for another CTA.
  std::optional<TraceBarrier> barrier = {};
  int ended_by = -1;
};

/// What a warp does at one step for others, or has others do.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    arrive,     // at the barrier
    tma_load,   // asks TMA for so many bytes, which `barrier` counts
    tma_store,  // asks TMA to store so many
  };
  int warp = 0;
  Kind kind = Kind::arrive;
  std::uint64_t at = 0;  // step
  std::optional<TraceBarrier> barrier = {};
  std::uint32_t shared = 0, bytes = 0;  // of TMA: where in shared memory, how many
  int position = 0;
};

/// "arrive", "TMA load", "TMA store": as in the files.
std::string_view to_string(TraceEvent::Kind kind);

/// wgmmas that a warpgroup has under way: from the first one's issue until a warp of it has waited for them.
struct TraceWgmmas {
  int first_warp = 0;
  std::uint64_t begin = 0, end = 0;  // steps
  std::uint64_t count = 0;           // that follow one another and come from the same line
  int position = 0;
};

/// An mbarrier of the CTA.
struct TraceMbarrier {
  std::uint32_t address = 0;   // byte of shared memory
  std::uint32_t arrivals = 0;  // that a phase waits for
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
  std::vector<Role> roles;               // of its warps; empty: the kernel has neither wgmma nor TMA nor setmaxnreg
};

}  // namespace flash_ladder::emulator
