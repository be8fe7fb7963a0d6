// How a load or a store is used, as far as that decides whether it may race: see memory/strength.h.

#include <cstddef>
#include <set>

#include "emulator/decode/instruction.h"
#include "emulator/decode/virtual_register.h"
#include "emulator/memory/strength.h"

namespace flash_ladder::emulator {
namespace {

template <typename F>
bool any_source(const Instruction& instruction, F f) {
  if (instruction.guard >= 0 && f(instruction.guard)) return true;
  for (std::size_t k = instruction.writes; k < instruction.operands; ++k) {
    if (f(instruction.r[k])) return true;
  }
  return false;
}

// The registers that depend on what instruction `from` reads from memory, within [begin, end) of the code, after
// `rounds` iterations.
std::set<std::int32_t> dependents(const CompiledKernel& kernel, std::size_t from, std::size_t begin, std::size_t end,
                                  bool round) {
  std::set<std::int32_t> found;
  const Instruction& load = kernel.code[from];
  for (std::size_t k = 0; k < load.writes; ++k) found.insert(load.r[k]);
  for (std::size_t size = 0; size != found.size() && (size == 0 || round);) {
    size = found.size();
    for (std::size_t i = begin; i < end; ++i) {
      const Instruction& instruction = kernel.code[i];
      if (!any_source(instruction, [&](std::int32_t reg) { return found.contains(reg); })) continue;
      for (std::size_t k = 0; k < instruction.writes; ++k) found.insert(instruction.r[k]);
    }
  }
  return found;
}

// A loop around the load continues until it reads a different value.
bool is_polled(const CompiledKernel& kernel, std::size_t load) {
  for (std::size_t end = load + 1; end <= kernel.code.size(); ++end) {
    const Instruction& back = kernel.code[end - 1];
    if (back.action != Action::branch || back.target < 0 || static_cast<std::size_t>(back.target) > load) continue;
    const auto begin = static_cast<std::size_t>(back.target);
    const std::set<std::int32_t> registers = dependents(kernel, load, begin, end, true);
    for (std::size_t i = begin; i < end; ++i) {
      const Instruction& branch = kernel.code[i];
      const bool leaves = branch.action == Action::branch || branch.action == Action::exit;
      if (leaves && branch.guard >= 0 && registers.contains(branch.guard)) return true;
    }
  }
  return false;
}

bool is_plain_load(const Instruction& instruction) {
  return instruction.role == MemoryRole::load && instruction.strength == kWeak && instruction.execute != nullptr;
}

}  // namespace

void find_access_patterns(CompiledKernel& kernel) {
  // `++*p` with a volatile p.
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    Instruction& load = kernel.code[i];
    if (load.role != MemoryRole::load || load.strength != kVolatile) continue;
    for (std::size_t k = i + 1; k < kernel.code.size(); ++k) {
      Instruction& store = kernel.code[k];
      if (store.action == Action::branch || store.action == Action::exit) break;
      if (store.role != MemoryRole::store || store.instruction_class == InstructionClass::atomic) continue;
      const bool same_place =
          store.space == load.space && store.offset == load.offset && store.r[0] == load.r[load.writes];
      if (!same_place) continue;
      const std::set<std::int32_t> registers = dependents(kernel, i, i + 1, k, false);
      if (store.strength == kVolatile && registers.contains(store.r[1])) load.strength = store.strength = kUpdate;
      break;
    }
  }
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    Instruction& load = kernel.code[i];
    if (load.role == MemoryRole::load && load.strength == kVolatile && is_polled(kernel, i)) load.strength = kPolling;
  }
  // The values that can reach the operand with which atom.cas compares. All other atomic operations have the same
  // register twice.
  std::set<std::int32_t> compared;
  for (const Instruction& instruction : kernel.code) {
    if (instruction.instruction_class == InstructionClass::atomic && instruction.r[2] != instruction.r[3])
      compared.insert(instruction.r[2]);
  }
  if (compared.empty()) return;
  for (std::size_t size = 0; size != compared.size();) {
    size = compared.size();
    for (const Instruction& instruction : kernel.code) {
      const bool moves = instruction.instruction_class == InstructionClass::move ||
                         instruction.instruction_class == InstructionClass::convert;
      if (!moves || instruction.writes == 0 || !compared.contains(instruction.r[0])) continue;
      for (std::size_t k = instruction.writes; k < instruction.operands; ++k) compared.insert(instruction.r[k]);
    }
  }
  for (Instruction& instruction : kernel.code) {
    if (is_plain_load(instruction) && compared.contains(instruction.r[0])) instruction.strength = kFirstGuess;
  }
}

}  // namespace flash_ladder::emulator
