// What the rings have beside the ladder's own instructions.
#pragma once

#include <cstdint>

#include "../../../common/ptx.h"

using namespace flash_ladder;

// Waits for the end of the barrier's phase of this parity: the loop is PTX, where the kernels have one of C++.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(smem_address(barrier)),
      "r"(parity)
      : "memory");
}
