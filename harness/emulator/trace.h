// What the warps of one CTA did, one after another: phases, with the source lines that they come from.
#pragma once

#include <cstdint>
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
};

struct CtaTrace {
  std::string kernel;  // mangled name
  Dim3 cta{0, 0, 0};   // blockIdx
  int num_warps = 0;
  std::vector<SourcePosition> positions;
  std::vector<TraceInterval> intervals;  // warp by warp, in order of time
};

}  // namespace flash_ladder::emulator
