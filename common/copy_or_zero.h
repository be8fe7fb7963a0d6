// A copy to shared memory that may have no source; in a header of its own, so that versions without it do not change.
#pragma once

#include "ptx.h"

namespace flash_ladder {

/// cp_async_16 if the source exists. Otherwise it reads nothing, and the 16 bytes in shared memory become zero: of the 16
/// bytes to write, src-size says how many are read. PTX ISA, "cp.async".
__device__ inline void cp_async_16_or_zero(void* smem, const void* gmem, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(smem)), "l"(gmem),
               "r"(exists ? 16 : 0)
               : "memory");
}

}  // namespace flash_ladder
