// What kernels need for 8-bit floating point, e4m3: one sign bit, four exponent bits, three mantissa bits, up to 448;
// no infinity. A wgmma of such numbers takes 32 values of k, and B only K-major. PTX ISA, "Alternate Floating-Point
// Data Formats" and "Asynchronous Warpgroup Level Matrix Instructions"; the rest is in hopper/wgmma.h.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "hopper/wgmma.h"

namespace flash_ladder {

/// Rounds four floats to nearest even and packs them into one register, the first in bits 0–7; values beyond 448 become
/// 448. PTX ISA, "cvt", .rn.satfinite.e4m3x2.f32.
__device__ inline std::uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  std::uint32_t packed;
  asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
      "mov.b32 %0, {low, high}; }"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}

/// The descriptor of a K-major operand with rows of 64 or 128 bytes and a swizzle of the same width: for 64 bytes it puts the 16-byte
/// chunk c of row r at chunk c ^ r / 2 % 4. Eight rows start at a multiple of their size. PTX ISA, "Matrix Descriptor Format".
template <int kRowBytes>
__device__ std::uint64_t row_descriptor(const void* smem) {
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2, kStride = 8 * kRowBytes;
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  return static_cast<std::uint64_t>((smem_address(smem) & 0x3FFFF) >> 4) | (kStride >> 4) << 32 | kSwizzle << 62;
}

/// Copies `from` to `to`, with instructions that are opaque to the compiler. Otherwise it would give both the same
/// registers, find registers of wgmmas written while these run, and make one wgmma wait for the other (C7513).
template <int kM, int kN>
__device__ void copy_registers(std::uint32_t (&to)[kM][kN], const std::uint32_t (&from)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j) asm volatile("mov.b32 %0, %1;" : "=r"(to[i][j]) : "r"(from[i][j]));
}

// The wgmmas: D [64][n] = A [64][32] B [32][n], plus D if `accumulate`. D is laid out as for 16-bit numbers. A is in registers:
// A[0] holds columns 4 · (lane_id % 4) + 0…3 of row lane_id / 4; A[1] those of the row 8 further on; A[2] and A[3] columns +
// 16. B is in shared memory. PTX ISA, "wgmma.mma_async", .e4m3, and "Register Fragments for wgmma.mma_async.m64nNk32".
#define FLASH_LADDER_D(n) "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3])
#define FLASH_LADDER_D_64                                                                                           \
  FLASH_LADDER_D(0), FLASH_LADDER_D(1), FLASH_LADDER_D(2), FLASH_LADDER_D(3), FLASH_LADDER_D(4), FLASH_LADDER_D(5), \
      FLASH_LADDER_D(6), FLASH_LADDER_D(7)
#define FLASH_LADDER_D_128                                                                                             \
  FLASH_LADDER_D_64, FLASH_LADDER_D(8), FLASH_LADDER_D(9), FLASH_LADDER_D(10), FLASH_LADDER_D(11), FLASH_LADDER_D(12), \
      FLASH_LADDER_D(13), FLASH_LADDER_D(14), FLASH_LADDER_D(15)
#define FLASH_LADDER_NUMBERS_64                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASH_LADDER_NUMBERS_128                                                                                     \
  FLASH_LADDER_NUMBERS_64                                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// S = Q Kᵀ for 64 keys.
__device__ inline void wgmma_e4m3(float (&D)[8][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"  //
               FLASH_LADDER_NUMBERS_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1; }"
               : FLASH_LADDER_D_64
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)));
}

/// O += P V for 128 columns of V, and eight more.
__device__ inline void wgmma_e4m3(float (&D)[17][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %73, 0; wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {"  //
               FLASH_LADDER_NUMBERS_128 ", %64, %65, %66, %67}, {%68, %69, %70, %71}, %72, p, 1, 1; }"
               : FLASH_LADDER_D_128, FLASH_LADDER_D(16)
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)));
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_64
#undef FLASH_LADDER_D_128
#undef FLASH_LADDER_NUMBERS_64
#undef FLASH_LADDER_NUMBERS_128

}  // namespace flash_ladder
