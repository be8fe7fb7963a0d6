// Registers between decoding and allocation: as many as the PTX names, plus the decoder's own.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"

namespace flash_ladder::emulator {

struct VirtualRegister {
  Slot slot = Slot::b32;
  bool uniform = false;  // a constant or a special register: has its own place, filled before the kernel starts
  bool special = false;
  ptx::SpecialRegister special_register{};
  std::uint64_t value = 0;
};

/// Gives each register a place in the warp's register file and puts its offset into the instructions, which hold indices into
/// `registers` until then. Registers that are never alive at the same time share a place: compilers name a new one for each
/// value, and thousands of them would not stay in the cache.
void allocate_registers(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// From which to which instruction a wgmma may read or write a register; `last` < 0: never.
struct InFlight {
  int first = -1, last = -1;
};

/// Sets Instruction::probe of those that touch registers of a wgmma that may be under way, or that no wgmma.fence follows before
/// the wgmma. Returns when each register may be in use: it needs its place until then. Empty in a kernel without wgmma.
std::vector<InFlight> find_wgmma_registers(CompiledKernel& kernel, std::size_t num_registers);

/// Sets Instruction::watched of those that read, or write, what may be read before it is written. The instructions still hold
/// indices into `registers`.
void find_undefined_reads(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// Sets Instruction::strength of loads and stores by what they are for. The instructions still hold indices into `registers`.
void find_access_patterns(CompiledKernel& kernel);

/// Sets SourceInstruction::charged_to. The instructions still hold indices into `registers`.
void charge_moved_code(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// Sets Instruction::reconverge of every branch: its immediate post-dominator.
void find_reconvergence_points(CompiledKernel& kernel);

}  // namespace flash_ladder::emulator
