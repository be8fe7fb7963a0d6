// The computations of atom and red.
#pragma once

#include <cstdint>

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

enum class AtomicOperation : std::uint8_t { add, min, max, and_, or_, xor_, exch, cas, inc, dec };

/// Returns the new value; values are the low bits of the 64. PTX ISA, "atom": in global memory only, an addition in f32
/// flushes subnormal inputs and results to zero. `second` is used only by cas.
std::uint64_t apply_atomic(AtomicOperation operation, ptx::Type type, ptx::Space space, std::uint64_t old,
                           std::uint64_t operand, std::uint64_t second);

}  // namespace flash_ladder::emulator
