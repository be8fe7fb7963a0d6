// The wgmmas of hopper/wgmma.h with both operands in shared memory and MN-major, which the backward pass needs: dQ = dS K,
// where k is the key, which is the row of a tile that holds dSᵀ, and of K.
//
//     A, MN-major: m runs along a row. The descriptor is that of an MN-major B. A has 64 m, one row of 128 bytes, so there
//     is no next 64, and the leading dimension is not used.
//
// Operands, registers and descriptors are otherwise the same as there.
#pragma once

#include "hopper/wgmma.h"

namespace flash_ladder {

#define FLASH_LADDER_D(n) "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3])
#define FLASH_LADDER_D_64                                                                                           \
  FLASH_LADDER_D(0), FLASH_LADDER_D(1), FLASH_LADDER_D(2), FLASH_LADDER_D(3), FLASH_LADDER_D(4), FLASH_LADDER_D(5), \
      FLASH_LADDER_D(6), FLASH_LADDER_D(7)
#define FLASH_LADDER_D_128                                                                                             \
  FLASH_LADDER_D_64, FLASH_LADDER_D(8), FLASH_LADDER_D(9), FLASH_LADDER_D(10), FLASH_LADDER_D(11), FLASH_LADDER_D(12), \
      FLASH_LADDER_D(13), FLASH_LADDER_D(14), FLASH_LADDER_D(15)
#define FLASH_LADDER_NUMBERS_64                                                                                \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define FLASH_LADDER_NUMBERS_128                                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "  \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "

/// Both operands in shared memory, MN-major. 64 of the columns of dQ = dS K.
template <typename Element>
__device__ void wgmma_transposed(float (&D)[8][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_64 "%32, %33, p, 1, 1, 1, 1; }"                                  \
               : FLASH_LADDER_D_64                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for all 128 columns.
template <typename Element>
__device__ void wgmma_transposed(float (&D)[16][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                          \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_128 "%64, %65, p, 1, 1, 1, 1; }"                                  \
               : FLASH_LADDER_D_128                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_64
#undef FLASH_LADDER_D_128
#undef FLASH_LADDER_NUMBERS_64
#undef FLASH_LADDER_NUMBERS_128

}  // namespace flash_ladder
