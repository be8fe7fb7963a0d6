// The wgmmas that gradients on Hopper need if two warpgroups own the same keys, because head_dim is more than 128. Operands,
// registers and descriptors are the same as in hopper/wgmma.h.
#pragma once

#include "hopper/gradient_head_dims.h"
#include "hopper/warpgroup.h"

namespace flash_ladder {

#define FLASH_LADDER_D(n)                                                                                              \
  "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3]), "+f"(D[n + 1][0]), "+f"(D[n + 1][1]), "+f"(D[n + 1][2]), \
      "+f"(D[n + 1][3])
#define FLASH_LADDER_D_32 FLASH_LADDER_D(0), FLASH_LADDER_D(2)
#define FLASH_LADDER_D_96 FLASH_LADDER_D_32, FLASH_LADDER_D(4), FLASH_LADDER_D(6), FLASH_LADDER_D(8), FLASH_LADDER_D(10)
#define FLASH_LADDER_NUMBERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASH_LADDER_NUMBERS_96                                                                \
  FLASH_LADDER_NUMBERS_32                                                                      \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33" \
  ", %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

/// Both operands in shared memory, K-major. S = Q Kᵀ for 32 keys, and Sᵀ for 32 queries.
template <typename Element>
__device__ void wgmma(float (&D)[4][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_32 "}, %16, %17, p, 1, 1, 0, 0; }"                              \
               : FLASH_LADDER_D_32                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// Both operands in shared memory, MN-major. 96 of the columns of dQ = dS K.
template <typename Element>
__device__ void wgmma_transposed(float (&D)[12][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_96 "}, %48, %49, p, 1, 1, 1, 1; }"                              \
               : FLASH_LADDER_D_96                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// stmatrix_x4 (hopper/warpgroup.h) and ldmatrix_x4 (ptx.h) of a whole fragment A.
__device__ inline void stmatrix_x4(void* smem, const std::uint32_t (&A)[4]) {
  stmatrix_x4(smem, A[0], A[1], A[2], A[3]);
}
__device__ inline void ldmatrix_x4(std::uint32_t (&A)[4], const void* smem) {
  ldmatrix_x4(A[0], A[1], A[2], A[3], smem);
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_32
#undef FLASH_LADDER_D_96
#undef FLASH_LADDER_NUMBERS_32
#undef FLASH_LADDER_NUMBERS_96

}  // namespace flash_ladder
