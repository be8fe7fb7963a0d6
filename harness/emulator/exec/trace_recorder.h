// Records what the warps of a CTA execute. If a CTA is not traced it has no recorder, and none of this code runs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/exec/barriers.h"
#include "emulator/trace.h"

namespace flash_ladder::emulator {

/// The clocks are those of CtaTrace: they do not depend on the order in which the virtual GPU lets warps run, only on
/// which warp waits for which.
class TraceRecorder {
 public:
  TraceRecorder(const CompiledKernel& kernel, const Dim3& cta, int num_warps);

  /// A warp is about to execute the instruction.
  void execute(int warp, std::int32_t instruction);
  /// The warp continues after an instruction that waits for this barrier, whose last arrival was at `time`; -1: it came
  /// from outside this CTA.
  void go_on(int warp, std::uint64_t time, const TraceBarrier& barrier, int ended_by);
  /// The warp has tested whether a phase of an mbarrier has ended, and it has not. Everything that the warp does until
  /// it tests again counts as waiting.
  void ask_again(int warp);

  std::uint64_t clock(int warp) const { return warps_[static_cast<std::size_t>(warp)].clock; }

  /// Records an event caused by the instruction that a warp executes: `at` and `position` are filled in.
  void note(TraceEvent event, std::int32_t instruction);
  /// A warp has waited for a wgmma that was issued at `begin`.
  void finish_wgmma(int first_warp, std::uint64_t begin, int waiting_warp, std::int32_t instruction);
  void note_mbarrier(std::uint32_t address, std::uint32_t arrivals, std::int32_t instruction);
  /// For a named barrier: how often it has released warps.
  std::int64_t phase_of_barrier(std::size_t barrier) const { return phases_of_named_[barrier]; }
  void end_phase(std::size_t barrier) { ++phases_of_named_[barrier]; }

  /// Returns what was recorded.
  CtaTrace take(std::vector<Role> roles);

 private:
  struct WarpTrace {
    std::uint64_t clock = 0;
    bool asks_again = false;
    std::int32_t instruction = -1;  // the latest instruction
    std::vector<TraceInterval> intervals;
    std::vector<TraceEvent> events;
  };
  int position_of(std::int32_t instruction) const;
  void add(WarpTrace& warp, Phase phase, std::int32_t instruction, std::uint64_t steps, std::uint64_t instructions);

  const CompiledKernel& kernel_;
  CtaTrace trace_;
  std::vector<std::int8_t> phases_;  // by SourceInstruction; -1: has no phase of its own
  std::vector<WarpTrace> warps_;
  std::array<std::int64_t, kNamedBarriers + 1> phases_of_named_{};
};

}  // namespace flash_ladder::emulator
