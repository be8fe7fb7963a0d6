// Writes down what the warps of a CTA execute. Where nothing is recorded there is no recorder, and nothing of it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/trace.h"

namespace flash_ladder::emulator {

/// The clocks are those of CtaTrace: they know nothing of the order in which the virtual GPU lets warps run, only of who waits
/// for whom.
class TraceRecorder {
 public:
  TraceRecorder(const CompiledKernel& kernel, const Dim3& cta, int num_warps);

  /// A warp is about to execute the instruction.
  void execute(int warp, std::int32_t instruction);
  /// The warp goes on from an instruction that waits, once something has happened at `time`.
  void go_on(int warp, std::uint64_t time);
  /// The warp has asked whether a phase of an mbarrier has ended, and it has not. What it does until it asks again is waiting.
  void ask_again(int warp);

  std::uint64_t clock(int warp) const { return warps_[static_cast<std::size_t>(warp)].clock; }

  /// Hands over what was recorded.
  CtaTrace take();

 private:
  struct WarpTrace {
    std::uint64_t clock = 0;
    bool asks_again = false;
    std::int32_t instruction = -1;  // the latest
    std::vector<TraceInterval> intervals;
  };
  void add(WarpTrace& warp, Phase phase, std::int32_t instruction, std::uint64_t steps, std::uint64_t instructions);

  const CompiledKernel& kernel_;
  CtaTrace trace_;
  std::vector<std::int8_t> phases_;  // by SourceInstruction; -1: none of its own
  std::vector<WarpTrace> warps_;
};

}  // namespace flash_ladder::emulator
