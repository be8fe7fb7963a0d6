// The wgmmas of hopper/wgmma.h for other tile sizes, and with Q in registers, which some extensions use. Operands,
// registers and descriptors are the same as there.
#pragma once

#include "hopper/wgmma.h"

namespace flash_ladder {

#define FLASH_LADDER_D(n) "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3])
#define FLASH_LADDER_D_96                                                                                           \
  FLASH_LADDER_D(0), FLASH_LADDER_D(1), FLASH_LADDER_D(2), FLASH_LADDER_D(3), FLASH_LADDER_D(4), FLASH_LADDER_D(5), \
      FLASH_LADDER_D(6), FLASH_LADDER_D(7), FLASH_LADDER_D(8), FLASH_LADDER_D(9), FLASH_LADDER_D(10),               \
      FLASH_LADDER_D(11)
#define FLASH_LADDER_D_176                                                                                \
  FLASH_LADDER_D_96, FLASH_LADDER_D(12), FLASH_LADDER_D(13), FLASH_LADDER_D(14), FLASH_LADDER_D(15),      \
      FLASH_LADDER_D(16), FLASH_LADDER_D(17), FLASH_LADDER_D(18), FLASH_LADDER_D(19), FLASH_LADDER_D(20), \
      FLASH_LADDER_D(21)
#define FLASH_LADDER_NUMBERS_96                                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47}, "
#define FLASH_LADDER_NUMBERS_176                                                                          \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "  \
  "%82, %83, %84, %85, %86, %87}, "

/// Both operands in shared memory, K-major. S = Q Kᵀ for 96 keys.
template <typename Element>
__device__ void wgmma(float (&D)[12][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_96 "%48, %49, p, 1, 1, 0, 0; }"                                  \
               : FLASH_LADDER_D_96                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same with A in registers.
template <typename Element>
__device__ void wgmma(float (&D)[12][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_96 "{%48, %49, %50, %51}, %52, p, 1, 1, 0; }"                    \
               : FLASH_LADDER_D_96                                                                       \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// Both operands in shared memory, K-major. S = Q Kᵀ for 176 keys.
template <typename Element>
__device__ void wgmma(float (&D)[22][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                          \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_176 "%88, %89, p, 1, 1, 0, 0; }"                                  \
               : FLASH_LADDER_D_176                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_96
#undef FLASH_LADDER_D_176
#undef FLASH_LADDER_NUMBERS_96
#undef FLASH_LADDER_NUMBERS_176

}  // namespace flash_ladder
