#include "emulator/exec/register_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/exec/cta_executor.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {
namespace {

// The number of registers that ptxas allocates to each thread of a kernel with setmaxnreg: as many as the register file
// allows for a block of this size.
int most_registers(std::size_t num_warps) {
  constexpr int kRegisterFile = sm_limits(kHopperSm)->registers;
  return std::min(kMaxRegistersPerThread, kRegisterFile / static_cast<int>(num_warps * kWarpSize) / 8 * 8);
}

}  // namespace

RegisterPool::RegisterPool(CtaExecutor& cta, std::size_t num_warps, int registers_per_thread)
    : cta_(cta),
      registers_per_thread_(registers_per_thread != 0 ? registers_per_thread : most_registers(num_warps)),
      registers_(num_warps) {}

void RegisterPool::start() {
  std::fill(registers_.begin(), registers_.end(), registers_per_thread_);
  pool_ = 0;
  wants_registers_.clear();
}

void RegisterPool::set(Warp& warp, const Instruction& instruction, bool increase) {
  const auto count = static_cast<int>(instruction.count);
  int& own = registers_[static_cast<std::size_t>(warp.index)];
  if (increase ? count < own : count > own) {
    cta_.find(FindingKind::invalid_operation, &warp, &instruction, -1, std::nullopt,
              fmt::format("setmaxnreg.{} to {} registers per thread, but the warp has {}", increase ? "inc" : "dec",
                          count, own));
    return;
  }
  const auto needed = [&](int which, std::int32_t at) {
    return std::int64_t{kWarpSize} * (static_cast<int>(cta_.code()[static_cast<std::size_t>(at)].count) -
                                      registers_[static_cast<std::size_t>(which)]);
  };
  if (increase) {
    wants_registers_.emplace_back(warp.index, cta_.index_of(instruction));
    warp.status = WarpStatus::waiting;
  } else {
    pool_ += std::int64_t{kWarpSize} * (own - count);
    own = count;
  }
  // First come, first served.
  while (!wants_registers_.empty()) {
    const auto [which, at] = wants_registers_.front();
    const std::int64_t registers = needed(which, at);
    if (registers > pool_) break;
    pool_ -= registers;
    registers_[static_cast<std::size_t>(which)] += static_cast<int>(registers / kWarpSize);
    cta_.warps()[static_cast<std::size_t>(which)].status = WarpStatus::ready;
    wants_registers_.erase(wants_registers_.begin());
    cta_.note_progress();
  }
}

std::string RegisterPool::describe_wait(const Warp& warp, std::int32_t& at) const {
  for (const auto& [which, instruction] : wants_registers_) {
    if (which != warp.index) continue;
    at = instruction;
    return fmt::format(
        "for {} registers per thread instead of {}: the block was launched with {}, and of those that warps have "
        "released, {} per thread of a warp are left",
        cta_.code()[static_cast<std::size_t>(instruction)].count, registers_[static_cast<std::size_t>(which)],
        registers_per_thread_, pool_ / kWarpSize);
  }
  return {};
}

}  // namespace flash_ladder::emulator
