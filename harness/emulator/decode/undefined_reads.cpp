// Finds the registers that a kernel may read before they are written. Programs read such registers by mistake (`float
// sum;`). Compilers generate such reads correctly where the value does not matter: in a lane that does not use it, or
// in a comparison whose result is discarded. This analysis only finds the places to check, and most kernels have none;
// exec/definedness.cpp checks these places while the kernel runs, lane by lane.

#include <algorithm>
#include <cstddef>
#include <map>

#include "emulator/decode/bits.h"
#include "emulator/decode/control_flow.h"
#include "emulator/decode/virtual_register.h"

namespace flash_ladder::emulator {
namespace {

template <typename F>
void for_each_read(const Instruction& instruction, F f) {
  if (instruction.guard >= 0) f(instruction.guard);
  for (std::size_t k = instruction.writes; k < instruction.operands; ++k) f(instruction.r[k]);
}

// Sets Instruction::hands_on of loads whose results are used only in selections: compilers load a variable that may be
// uninitialised, and choose afterwards.
void find_loads_of_choices(CompiledKernel& kernel, std::size_t num_registers) {
  Bits written_otherwise(num_registers), read_otherwise(num_registers), chosen(num_registers);
  const auto may_be_local = [](const Instruction& instruction) {
    return instruction.role == MemoryRole::load &&
           (instruction.space == ptx::Space::local || instruction.space == ptx::Space::generic);
  };
  for (const Instruction& instruction : kernel.code) {
    const bool selects =
        instruction.lane_operation != nullptr && instruction.lane_operation->undefined_rule == UndefinedRule::selp;
    if (instruction.guard >= 0) read_otherwise.set(instruction.guard);
    for (std::size_t k = 0; k < instruction.operands; ++k) {
      if (k < instruction.writes) {
        if (!may_be_local(instruction)) written_otherwise.set(instruction.r[k]);
      } else {
        (selects && k < instruction.writes + 2u ? chosen : read_otherwise).set(instruction.r[k]);
      }
    }
  }
  for (Instruction& instruction : kernel.code) {
    if (!may_be_local(instruction)) continue;
    instruction.hands_on = std::all_of(instruction.r.begin(), instruction.r.begin() + instruction.writes, [&](int reg) {
      return chosen.get(reg) && !written_otherwise.get(reg) && !read_otherwise.get(reg);
    });
  }
}

// The registers that may be undefined after an instruction: never written, or computed from undefined ones.
void step(const CompiledKernel& kernel, const Instruction& instruction, Bits& undefined) {
  if (instruction.wgmma >= 0) {
    for (const std::int32_t reg : kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)].d) undefined.clear(reg);
  }
  bool any = false;
  for_each_read(instruction, [&](int reg) { any |= undefined.get(reg); });
  const bool hands_on = instruction.action == Action::lane || instruction.own_sources != 0;
  for (std::size_t k = 0; k < instruction.writes; ++k) {
    if ((any && hands_on) || instruction.hands_on) {
      undefined.set(instruction.r[k]);
    } else if (instruction.guard < 0) {
      undefined.clear(instruction.r[k]);
    }
  }
}

}  // namespace

void find_undefined_reads(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers) {
  find_loads_of_choices(kernel, registers.size());
  const std::vector<Block> blocks = basic_blocks(kernel);
  const auto code = [&](int i) -> Instruction& { return kernel.code[static_cast<std::size_t>(i)]; };
  std::vector<Bits> undefined(blocks.size(), Bits(registers.size()));  // at the beginning of each block
  for (std::size_t i = 0; i < registers.size(); ++i) {
    if (!registers[i].uniform) undefined[0].set(static_cast<int>(i));
  }
  std::vector<std::size_t> work = {0};
  std::vector<bool> waits(blocks.size(), false);
  while (!work.empty()) {
    const std::size_t block = work.back();
    work.pop_back();
    waits[block] = false;
    Bits state = undefined[block];
    for (int i = blocks[block].begin; i < blocks[block].end; ++i) step(kernel, code(i), state);
    for (const int next : blocks[block].successors) {
      const auto to = static_cast<std::size_t>(next);
      if (undefined[to].merge(state, nullptr) && !waits[to]) {
        waits[to] = true;
        work.push_back(to);
      }
    }
  }

  std::map<int, std::int32_t> watched;  // registers that are read while they may be undefined → their numbers
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    for (int i = blocks[block].begin; i < blocks[block].end; ++i) {
      const auto watch = [&](int reg) {
        if (undefined[block].get(reg)) watched.try_emplace(reg, static_cast<std::int32_t>(watched.size()));
      };
      for_each_read(code(i), watch);
      if (code(i).wgmma >= 0) {
        const Wgmma& wgmma = kernel.wgmmas[static_cast<std::size_t>(code(i).wgmma)];
        // An uninitialised accumulator may be added to. One of its registers stands for all.
        watch(wgmma.d[0]);
        for (const std::int32_t reg : wgmma.a) watch(reg);
      }
      step(kernel, code(i), undefined[block]);
    }
  }
  if (watched.empty()) return;
  kernel.num_watched = watched.size();
  const auto number = [&](int reg) {
    const auto found = watched.find(reg);
    return found == watched.end() ? -1 : found->second;
  };
  for (Wgmma& wgmma : kernel.wgmmas) {
    for (const std::int32_t reg : wgmma.d)
      if (number(reg) >= 0) wgmma.watched_d.push_back(number(reg));
    for (const std::int32_t reg : wgmma.a)
      if (number(reg) >= 0) wgmma.watched_a.push_back(number(reg));
  }
  for (Instruction& instruction : kernel.code) {
    WatchedOperands operands;
    bool any = false;
    if (instruction.guard >= 0) any |= (operands.guard = number(instruction.guard)) >= 0;
    for (std::size_t k = 0; k < instruction.operands; ++k) any |= (operands.r[k] = number(instruction.r[k])) >= 0;
    if (!any) continue;
    instruction.watched = static_cast<std::int32_t>(kernel.watched.size());
    kernel.watched.push_back(operands);
    if (instruction.action == Action::lane) instruction.action = Action::watched_lane;
  }
}

}  // namespace flash_ladder::emulator
