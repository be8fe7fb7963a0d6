// What atom and red compute.
#pragma once

#include <cstdint>

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

enum class AtomicOperation : std::uint8_t { add, min, max, and_, or_, xor_, exch, cas, inc, dec };

/// The new value; values are the low bits of the 64. PTX ISA, "atom": in global memory, and there alone, an addition in f32 takes
/// subnormal numbers for zero and makes none. `second` is used by cas only.
std::uint64_t apply_atomic(AtomicOperation operation, ptx::Type type, ptx::Space space, std::uint64_t old,
                           std::uint64_t operand, std::uint64_t second);

}  // namespace flash_ladder::emulator
