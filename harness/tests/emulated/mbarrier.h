// The instructions that the rings use besides the ladder's own.
#pragma once

#include <cstdint>

#include "../../../common/ptx.h"

using namespace flash_ladder;

// Waits for the end of the barrier's phase with this parity: the loop is in PTX, whereas the kernels have one in C++.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(smem_address(barrier)),
      "r"(parity)
      : "memory");
}
