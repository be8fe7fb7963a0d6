// Registers between decoding and allocation: all that the PTX declares, plus the decoder's own.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"

namespace flash_ladder::emulator {

struct VirtualRegister {
  Slot slot = Slot::b32;
  bool uniform = false;  // a constant or a special register: has a place of its own, filled before the kernel starts
  bool special = false;
  ptx::SpecialRegister special_register{};
  std::uint64_t value = 0;
};

/// Gives each register a place in the warp's register file and puts its offset into the instructions, which contain
/// indices into `registers` until then. Registers that are never live at the same time share a place, because compilers
/// use a new one for each value, and thousands of them would not stay in the cache.
void allocate_registers(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// The range of instructions in which a wgmma may read or write a register; `last` < 0: never.
struct InFlight {
  int first = -1, last = -1;
};

/// Sets Instruction::probe of instructions that access registers of a wgmma that may be in flight, or registers that a
/// wgmma uses without a wgmma.fence in between. Returns when each register may be in use, because it needs its place
/// until then. Empty for a kernel without wgmma.
std::vector<InFlight> find_wgmma_registers(CompiledKernel& kernel, std::size_t num_registers);

/// Sets Instruction::watched of instructions that read, or write, a register that may be read before it is written. The
/// instructions still contain indices into `registers`.
void find_undefined_reads(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// Sets Instruction::strength of loads and stores from how they are used. The instructions still contain indices into
/// `registers`.
void find_access_patterns(CompiledKernel& kernel);

/// Sets SourceInstruction::charged_to. The instructions still contain indices into `registers`.
void charge_moved_code(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers);

/// Sets Instruction::reconverge of every branch: its immediate post-dominator.
void find_reconvergence_points(CompiledKernel& kernel);

}  // namespace flash_ladder::emulator
