// Asynchronous stores into the shared memory of other CTAs of the cluster (distributed shared memory). The receiver waits at an
// mbarrier for the bytes, so that no barrier of all threads of the cluster is between a store and the loads.
#pragma once

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// Arrives at the barrier of the cluster, and orders nothing but what fence_mbarrier_init (hopper/mbarrier.h) has released. Each
/// thread has to follow it by a cluster_wait(). PTX ISA, "barrier.cluster", .arrive.relaxed.
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

/// Waits until all threads of the cluster have arrived: all its CTAs have begun, and their barriers are initialised.
/// PTX ISA, "barrier.cluster", .wait.acquire.
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/// Stores two or four numbers at this address, a multiple of 8 or 16, in the shared memory of the CTA with this rank, and then signals
/// 8 or 16 bytes to the barrier at this address there. That CTA has to announce them (mbarrier_arrive_expect_tx), and must not end
/// before they have arrived; this one may. PTX ISA, "mapa" and "st.async".
__device__ inline void store_async_at(float2* smem, float2 x, std::uint64_t* barrier, int rank) {
  asm volatile(
      "{ .reg .b32 there, signal; mapa.shared::cluster.u32 there, %0, %4; mapa.shared::cluster.u32 signal, %3, %4; "
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%1, %2}, [signal]; }" ::"r"(
          smem_address(smem)),
      "f"(x.x), "f"(x.y), "r"(smem_address(barrier)), "r"(rank)
      : "memory");
}
__device__ inline void store_async_at(float4* smem, float4 x, std::uint64_t* barrier, int rank) {
  asm volatile(
      "{ .reg .b32 there, signal; mapa.shared::cluster.u32 there, %0, %6; mapa.shared::cluster.u32 signal, %5, %6; "
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, [signal]; }" ::"r"(
          smem_address(smem)),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(smem_address(barrier)), "r"(rank)
      : "memory");
}

/// Like mbarrier_try_wait (hopper/mbarrier.h), if the bytes come from other CTAs of the cluster. PTX ISA, "mbarrier.try_wait",
/// .acquire.cluster.
__device__ inline bool mbarrier_try_wait_in_cluster(std::uint64_t* barrier, int parity) {
  std::uint32_t ended;
  asm volatile(
      "{ .reg .pred ended; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2; "
      "selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(smem_address(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

}  // namespace flash_ladder
