// Operations of the CTAs of a cluster, which run at the same time and may write into each other's shared memory. A
// kernel has clusters if it is declared with __cluster_dims__. PTX ISA, "Cluster of Cooperative Thread Arrays".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// The CTA's number in its cluster. PTX ISA, "Special Registers", %cluster_ctarank.
__device__ inline int cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

/// A __syncthreads() for the threads of all CTAs of the cluster; it does not wait for threads that have returned. PTX
/// ISA, "barrier.cluster".
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

/// One arrival at the barrier at this address in the shared memory of another CTA of the cluster, or of this one. It signals to
/// the other CTA that this thread has finished reading; it does not make this thread's writes visible there. Its scope is the CTA,
/// as in CUTLASS (ClusterBarrier::arrive): strictly by the memory model, it counts in the other CTA but orders nothing there. With
/// .cluster, the arrival waits until all writes have reached L2. PTX ISA, "mapa" and "mbarrier.arrive", .shared::cluster.
__device__ inline void mbarrier_arrive_at(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::
          "r"(smem_address(barrier)),
      "r"(rank)
      : "memory");
}

/// tma_load (hopper/tma.h) for several CTAs at once: the box arrives at this address in the shared memory of each CTA
/// whose bit in `ranks` is set, and signals the barrier at this address there. It is read once. PTX ISA,
/// "cp.async.bulk.tensor", .multicast::cluster.
__device__ inline void tma_load_multicast(void* smem, const CUtensorMap& map, int row, int head, int batch,
                                          std::uint64_t* barrier, std::uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(smem_address(smem)),
      "l"(&map), "r"(smem_address(barrier)), "r"(0), "r"(row), "r"(head), "r"(batch), "h"(ranks)
      : "memory");
}

}  // namespace flash_ladder
