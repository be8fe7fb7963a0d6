// Uninitialised registers, tracked lane by lane, for the few instructions that may read one
// (decode/undefined_reads.cpp). Reading such a register is not an error in itself: values computed from it are
// undefined, too, and a finding results only if such a value matters, because it decides a branch, is an address, or is
// stored (Seward and Nethercote, "Using Valgrind to detect undefined value errors with bit-precision", USENIX 2005;
// here a register's lane is defined or not as a whole).
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// Whether the instruction may read or write a register that is tracked.
inline bool watches(const Warp& warp, const Instruction& instruction) {
  return instruction.watched >= 0 && !warp.undefined.empty();
}
/// The undefined lanes within the mask of the instruction's operands from `first` up to but not including `last`.
UndefinedLanes undefined_sources(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::size_t first,
                                 std::size_t last, std::uint32_t mask);
/// Marks the instruction's result `k` as undefined in some lanes of the mask, and as defined in the others.
void set_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::size_t k, std::uint32_t mask,
                   const UndefinedLanes& to);
/// Before the instruction is executed: reports undefined values that matter, and records which results will be undefined.
void follow_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask);
/// `use`: "branched on", as the end of "a read of a register that nothing has written, and it is …".
void report_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, const UndefinedLanes& found,
                      const char* use);

}  // namespace flash_ladder::emulator
