// A wgmma reads and writes registers while its warp continues, and PTX restricts when other code may access them: the
// registers belong to the wgmma from its issue until a wgmma.wait_group that covers its group, and earlier accesses to
// them must be ordered by a wgmma.fence. (PTX ISA, "wgmma.fence", "wgmma.wait_group".) This analysis finds the few
// instructions that may break these rules on some path through the kernel (most kernels have none);
// exec/wgmma_unit.cpp checks them while the kernel runs.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "emulator/decode/bits.h"
#include "emulator/decode/control_flow.h"
#include "emulator/decode/virtual_register.h"

namespace flash_ladder::emulator {
namespace {

// The minimum number of groups committed since a register's last wgmma, over all paths. The largest value: it is not in
// flight.
using Age = std::uint8_t;
constexpr Age kDone = 255, kOldest = 254;

std::string_view opcode(const CompiledKernel& kernel, const Instruction& instruction) {
  return kernel.sources[instruction.source].text;
}

template <typename F>
void for_each_operand(const Instruction& instruction, F f) {
  if (instruction.guard >= 0) f(instruction.guard);
  for (std::size_t k = 0; k < instruction.operands; ++k) f(instruction.r[k]);
}

template <typename F>
void for_each_register(const Wgmma& wgmma, F f) {
  for (const std::int32_t reg : wgmma.d) f(reg);
  for (const std::int32_t reg : wgmma.a) f(reg);
}

class WgmmaRegisters {
 public:
  WgmmaRegisters(CompiledKernel& kernel, std::size_t num_registers)
      : kernel_(kernel), blocks_(basic_blocks(kernel)), number_(num_registers, -1) {
    for (const Wgmma& wgmma : kernel_.wgmmas) {
      for_each_register(wgmma, [&](std::int32_t reg) {
        const auto index = static_cast<std::size_t>(reg);
        if (number_[index] >= 0) return;
        number_[index] = static_cast<int>(numbered_.size());
        numbered_.push_back(index);
      });
    }
  }

  /// Forward analysis: what may be in flight.
  std::vector<InFlight> find_in_flight();
  /// Backward analysis: what a wgmma uses before a fence.
  void find_unfenced();

 private:
  std::vector<std::vector<Age>> ages_at_begin(std::vector<bool>& reached) const;
  std::vector<Bits> used_at_end() const;
  void step(const Instruction& instruction, std::vector<Age>& age) const;
  void step_back(const Instruction& instruction, Bits& used) const;
  Instruction& code(int i) const { return kernel_.code[static_cast<std::size_t>(i)]; }
  int number_of(std::int32_t reg) const { return number_[static_cast<std::size_t>(reg)]; }
  const Wgmma* wgmma_of(const Instruction& instruction) const {
    return instruction.wgmma < 0 ? nullptr : &kernel_.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  }

  CompiledKernel& kernel_;
  const std::vector<Block> blocks_;
  // Only registers used by wgmmas matter: they are renumbered from 0.
  std::vector<int> number_;
  std::vector<std::size_t> numbered_;
};

void WgmmaRegisters::step(const Instruction& instruction, std::vector<Age>& age) const {
  if (const Wgmma* wgmma = wgmma_of(instruction)) {
    for_each_register(*wgmma, [&](std::int32_t reg) { age[static_cast<std::size_t>(number_of(reg))] = 0; });
    return;
  }
  const std::string_view text = opcode(kernel_, instruction);
  if (text.starts_with("wgmma.commit_group")) {
    for (Age& one : age) one = one >= kOldest ? one : static_cast<Age>(one + 1);
  } else if (text.starts_with("wgmma.wait_group")) {
    for (Age& one : age) {
      if (one > instruction.count && one != kDone) one = kDone;
    }
  }
}

// For each block that is reached.
std::vector<std::vector<Age>> WgmmaRegisters::ages_at_begin(std::vector<bool>& reached) const {
  std::vector<std::vector<Age>> ages(blocks_.size(), std::vector<Age>(numbered_.size(), kDone));
  reached[0] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (!reached[b]) continue;
      std::vector<Age> age = ages[b];
      for (int i = blocks_[b].begin; i < blocks_[b].end; ++i) step(code(i), age);
      for (const int next : blocks_[b].successors) {
        const auto to = static_cast<std::size_t>(next);
        changed |= !reached[to];
        reached[to] = true;
        for (std::size_t r = 0; r < age.size(); ++r) {
          if (age[r] >= ages[to][r]) continue;
          ages[to][r] = age[r];
          changed = true;
        }
      }
    }
  }
  return ages;
}

std::vector<InFlight> WgmmaRegisters::find_in_flight() {
  std::vector<bool> reached(blocks_.size(), false);
  std::vector<std::vector<Age>> ages = ages_at_begin(reached);
  std::vector<InFlight> in_flight(number_.size());
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (!reached[b]) continue;
    for (int i = blocks_[b].begin; i < blocks_[b].end; ++i) {
      Instruction& instruction = code(i);
      if (instruction.wgmma < 0) {
        for_each_operand(instruction, [&](std::int32_t reg) {
          const int which = number_of(reg);
          if (which >= 0 && ages[b][static_cast<std::size_t>(which)] != kDone) instruction.probe |= kMayBeInFlight;
        });
      }
      for (std::size_t which = 0; which < numbered_.size(); ++which) {
        if (ages[b][which] == kDone) continue;
        InFlight& range = in_flight[numbered_[which]];
        range.first = range.first < 0 ? i : std::min(range.first, i);
        range.last = std::max(range.last, i);
      }
      step(instruction, ages[b]);
    }
  }
  return in_flight;
}

void WgmmaRegisters::step_back(const Instruction& instruction, Bits& used) const {
  if (const Wgmma* wgmma = wgmma_of(instruction)) {
    for_each_register(*wgmma, [&](std::int32_t reg) { used.set(number_of(reg)); });
  } else if (opcode(kernel_, instruction).starts_with("wgmma.fence")) {
    used = Bits(numbered_.size());
  }
}

std::vector<Bits> WgmmaRegisters::used_at_end() const {
  std::vector<Bits> used(blocks_.size(), Bits(numbered_.size()));
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks_.size(); b-- > 0;) {
      for (const int next : blocks_[b].successors) {
        Bits before = used[static_cast<std::size_t>(next)];
        const Block& successor = blocks_[static_cast<std::size_t>(next)];
        for (int i = successor.end; i-- > successor.begin;) step_back(code(i), before);
        changed |= used[b].merge(before, nullptr);
      }
    }
  }
  return used;
}

void WgmmaRegisters::find_unfenced() {
  std::vector<Bits> used = used_at_end();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    for (int i = blocks_[b].end; i-- > blocks_[b].begin;) {
      Instruction& instruction = code(i);
      if (instruction.wgmma < 0) {
        for_each_operand(instruction, [&](std::int32_t reg) {
          if (number_of(reg) >= 0 && used[b].get(number_of(reg))) instruction.probe |= kIsUnfenced;
        });
      }
      step_back(instruction, used[b]);
    }
  }
}

}  // namespace

std::vector<InFlight> find_wgmma_registers(CompiledKernel& kernel, std::size_t num_registers) {
  if (kernel.wgmmas.empty()) return {};
  WgmmaRegisters registers(kernel, num_registers);
  std::vector<InFlight> in_flight = registers.find_in_flight();
  registers.find_unfenced();
  for (Instruction& instruction : kernel.code) {
    if (instruction.probe != 0 && instruction.action == Action::lane) instruction.action = Action::watched_lane;
  }
  return in_flight;
}

}  // namespace flash_ladder::emulator
