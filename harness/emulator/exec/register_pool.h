// setmaxnreg: a warp releases registers, or takes those that other warps of the CTA have released, and waits for them.
// PTX ISA, "setmaxnreg".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

class CtaExecutor;

class RegisterPool {
 public:
  /// `registers_per_thread`: at the launch; 0: as many as ptxas would allocate.
  RegisterPool(CtaExecutor& cta, std::size_t num_warps, int registers_per_thread);

  /// A CTA begins.
  void start();
  void set(Warp& warp, const Instruction& instruction, bool increase);

  /// Per thread.
  int at_launch() const { return registers_per_thread_; }
  int held_by(std::size_t warp) const { return registers_[warp]; }
  /// What a warp waits for here, as the end of "warp 1 waits …"; empty if it does not wait.
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;

 private:
  CtaExecutor& cta_;
  const int registers_per_thread_;
  std::vector<int> registers_;                                 // per thread, by warp
  std::int64_t pool_ = 0;                                      // registers that were given back
  std::vector<std::pair<int, std::int32_t>> wants_registers_;  // waiting warps, and the instruction at which each waits
};

}  // namespace flash_ladder::emulator
