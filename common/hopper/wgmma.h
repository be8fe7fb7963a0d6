// wgmma: the matrix instruction of a warpgroup, four warps that start at a warp number divisible by 4. It runs
// asynchronously once issued, and reads its operands from shared memory through descriptors. PTX ISA, "Asynchronous
// Warpgroup Level Matrix Instructions".
//
// A tile of rows of head_dim 128 is stored in shared memory as two halves of 64 columns, [2][rows][64], since the
// 128-byte swizzle works on rows of 128 bytes. In groups of eight rows, 1,024 bytes that start at a multiple of 1,024,
// it puts the 16-byte chunk c of row r at chunk c ^ r % 8. 06 does the same in code, and TMA does it on the way:
//
//             chunk 0   1   2   3   4   5   6   7
//     row 0         0   1   2   3   4   5   6   7
//     row 1         1   0   3   2   5   4   7   6       row 8 is like row 0, 1,024 bytes further on, and so on;
//     row 2         2   3   0   1   6   7   4   5       the other half of head_dim follows after the last row
//     …
//
// A descriptor describes the operand of one wgmma inside such a tile. PTX ISA, "Matrix Descriptor Format":
//
//     bits 0–13    start address / 16
//     bits 16–29   leading dimension offset / 16     the meaning of these two depends
//     bits 32–45   stride dimension offset / 16      on the orientation of the operand
//     bits 49–51   base offset: 0, since groups of rows start at multiples of 1,024
//     bits 62–63   swizzle: 1 is the 128-byte one
//
//     K-major: k runs along a row. Q and K in S = Q Kᵀ, where k is head_dim.
//       stride dimension: from eight rows to the next eight, 1,024 bytes. leading dimension: not used.
//       the next 16 of k: 32 bytes further on; the other half of head_dim: rows · 128 bytes.
//     MN-major: m or n runs along a row. V in O = P V, where k is the key and n is head_dim.
//       stride dimension: from eight keys to the next eight, 1,024 bytes.
//       leading dimension: from 64 columns to the next 64, rows · 128 bytes.
//       the next 16 of k: 16 rows, 2,048 bytes further on.
//
// The tensor core applies the swizzle to the address that it computes, so the 32 bytes may be added to the start.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ptx.h"

namespace flash_ladder {

/// The descriptor of an operand that starts at smem, 128-byte swizzled; both offsets in bytes, multiples of 16.
__device__ inline std::uint64_t matrix_descriptor(const void* smem, int leading_offset, int stride_offset) {
  return static_cast<std::uint64_t>((smem_address(smem) & 0x3FFFF) >> 4) |
         static_cast<std::uint64_t>(leading_offset >> 4) << 16 | static_cast<std::uint64_t>(stride_offset >> 4) << 32 |
         std::uint64_t{1} << 62;
}

/// The same operand, this many bytes further on.
__device__ inline std::uint64_t advance(std::uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

/// Accumulators and fragments belong to the wgmmas that use them from wgmma_fence() to the wait. The compiler does not
/// know this: it regards each asm statement as finished when it is issued. As far as it knows, registers named here,
/// before the fence and after the wait, are read and written, so nothing that uses them crosses this line. Emits no code.
template <int kM, int kN>
__device__ void pin(float (&registers)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j) asm volatile("" : "+f"(registers[i][j])::"memory");
}
template <int kM, int kN>
__device__ void pin(std::uint32_t (&registers)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int j = 0; j < kN; ++j) asm volatile("" : "+r"(registers[i][j])::"memory");
}

/// Orders this warp's use of registers before the wgmmas that follow: required before the first, and whenever a
/// register of an accumulator or of A has been written since. PTX ISA, "wgmma.fence".
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Ends a group: all wgmmas of this warpgroup since the previous one. PTX ISA, "wgmma.commit_group".
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `kPending` groups, the newest, are still in flight; the others have read their operands and
/// written their accumulators. pin() those next. PTX ISA, "wgmma.wait_group".
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The wgmmas: D [64][n] = A [64][16] B [16][n], plus D if `accumulate`. Warp w of the warpgroup has rows 16 w to 16 w + 15.
// A lane holds the same elements of D and A as in mma_m16n8k16 (ptx.h), with one D per eight columns: D[mma_n][…]. So
// two neighbouring D[mma_n] of S become an A of P V, as they do there. PTX ISA, "wgmma.mma_async", "Register Fragments for
// wgmma.mma_async.m64nNk16".
// The registers of D as operands, and their numbers in the text of the instruction.
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

/// Both operands in shared memory, K-major. S = Q Kᵀ for 64 keys.
template <typename Element>
__device__ void wgmma(float (&D)[8][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_64 "%32, %33, p, 1, 1, 0, 0; }"                                  \
               : FLASH_LADDER_D_64                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 128 keys.
template <typename Element>
__device__ void wgmma(float (&D)[16][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                          \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_128 "%64, %65, p, 1, 1, 0, 0; }"                                  \
               : FLASH_LADDER_D_128                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// A in registers, B in shared memory and MN-major. O += P V for 128 columns.
template <typename Element>
__device__ void wgmma(float (&D)[16][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                          \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE \
               " " FLASH_LADDER_NUMBERS_128 "{%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                    \
               : FLASH_LADDER_D_128                                                                       \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
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
