// Copies by TMA of plain bytes, without a tensor map. PTX ISA, "Data Movement and Conversion Instructions: Bulk copy".
#pragma once

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// Starts copying bytes from global to shared memory; the addresses and the number are multiples of 16. When they have arrived,
/// the barrier counts them. One thread calls this. PTX ISA, "cp.async.bulk", .shared::cluster.global
/// .mbarrier::complete_tx::bytes.
__device__ inline void bulk_load(void* smem, const void* gmem, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(smem)),
               "l"(gmem), "r"(bytes), "r"(smem_address(barrier))
               : "memory");
}

}  // namespace flash_ladder
