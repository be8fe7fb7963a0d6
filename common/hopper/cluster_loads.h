// Loads from the shared memory of other CTAs of the cluster (distributed shared memory).
#pragma once

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// The two or four numbers at this address, a multiple of 8 or 16, in the shared memory of the CTA with this rank in the cluster.
/// That CTA must have written them before a cluster_sync() (hopper/cluster.h), and must not end before another one.
/// PTX ISA, "mapa" and "ld", .shared::cluster.
__device__ inline float2 load_at(const float2* smem, int rank) {
  float2 loaded;
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [there]; }"
      : "=f"(loaded.x), "=f"(loaded.y)
      : "r"(smem_address(smem)), "r"(rank)
      : "memory");
  return loaded;
}
__device__ inline float4 load_at(const float4* smem, int rank) {
  float4 loaded;
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(loaded.x), "=f"(loaded.y), "=f"(loaded.z), "=f"(loaded.w)
      : "r"(smem_address(smem)), "r"(rank)
      : "memory");
  return loaded;
}

}  // namespace flash_ladder
