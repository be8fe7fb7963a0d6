// Operations on mbarriers from Hopper on: they count the bytes that TMA brings, and waiting threads can sleep.
#pragma once

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// Releases the barriers that this thread has initialised to the threads of the cluster, which acquire them through a
/// __syncthreads() or a cluster barrier. It orders nothing but mbarrier_init, and is no proxy fence: TMA uses its
/// barrier through the generic proxy, as the ISA says from 9.3 on. CUTLASS's pipelines execute it after they initialise
/// barriers. PTX ISA, "membar, fence", .mbarrier_init.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// One arrival; the phase does not end before TMA has brought this many bytes as well. PTX ISA, "mbarrier.arrive",
/// .expect_tx.
__device__ inline void mbarrier_arrive_expect_tx(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes)
               : "memory");
}

/// Like mbarrier_test_wait (common/ptx.h), but the thread may sleep for a while before it returns false. PTX ISA,
/// "mbarrier.try_wait", .parity.
__device__ inline bool mbarrier_try_wait(std::uint64_t* barrier, int parity) {
  std::uint32_t ended;
  asm volatile(
      "{ .reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2; selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(smem_address(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

}  // namespace flash_ladder
