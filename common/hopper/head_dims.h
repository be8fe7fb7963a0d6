// What Hopper's kernels need for other values of head_dim than 128: tensor maps, descriptors, and the wgmmas of hopper/wgmma.h
// for other sizes.
//
// A tile is stored in parts of as many columns as the swizzle spans, [parts][rows][columns]. If head_dim is a multiple of 64,
// these are 64 columns, as in hopper/wgmma.h. 96 is not; its three parts have 32 columns, rows of 64 bytes, for the 64-byte
// swizzle: of 512 bytes, it puts the 16-byte chunk c of row r at chunk c ^ r / 2 % 4.
//
//             chunk 0   1   2   3       chunk 4   5   6   7
//     row 0         0   1   2   3         row 1   0   1   2   3       two rows are 128 bytes, which is all banks once;
//     row 2         1   0   3   2         row 3   1   0   3   2       row 8 is like row 0, 512 bytes further on
//     row 4         2   3   0   1         row 5   2   3   0   1
//     row 6         3   2   1   0         row 7   3   2   1   0
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "attention.h"
#include "hopper/wgmma.h"

namespace flash_ladder {

/// Columns in a part of a tile of 16-bit elements.
constexpr int part_columns(int head_dim) { return head_dim % 64 == 0 ? 64 : 32; }

/// Describes one of Q, K, V and O, [batch][rows][heads][head_dim], to TMA, as hopper/tensor_map.h does for a head_dim of 128:
/// as [batch][head][part][row][column of the part], of which a box is [1][1][all parts][box_rows][all columns]. CUDA Driver
/// API, "Tensor Map Object Management", cuTensorMapEncodeTiled.
template <typename Element, int kCols>
cudaError_t encode_tensor_map(CUtensorMap& map, const Tensor& tensor, int head_dim, int batch, int heads, int rows,
                              int box_rows) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else  // the version of the runtime that this is compiled with
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;

  static_assert(sizeof(Element) == 2);
  const int parts = head_dim / kCols;
  const auto stride = [](int size, std::int64_t elements) -> cuuint64_t {
    return size == 1 ? 16 : elements * sizeof(Element);
  };
  const cuuint64_t sizes[] = {kCols, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(parts),
                              static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[] = {stride(rows, tensor.row_stride), stride(parts, kCols),
                                stride(heads, tensor.head_stride), stride(batch, tensor.batch_stride)};
  const cuuint32_t box[] = {kCols, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(parts), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  const CUtensorMapDataType type =
      std::is_same_v<Element, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = encode(&map, type, 5, tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 kCols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// The descriptor of an operand in parts of kCols columns. The stride dimension is eight rows, and the leading dimension, only
/// for MN-major operands, is a part, in bytes. In bits 62–63, 1 is the 128-byte swizzle, and 2 is that of 64 bytes.
template <int kCols>
__device__ std::uint64_t part_descriptor(const void* smem, int leading_offset) {
  return matrix_descriptor(smem, leading_offset, 8 * kCols * 2) + (kCols == 64 ? 0 : std::uint64_t{1} << 62);
}

#define FLASH_LADDER_D(n)                                                                                              \
  "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3]), "+f"(D[n + 1][0]), "+f"(D[n + 1][1]), "+f"(D[n + 1][2]), \
      "+f"(D[n + 1][3])
#define FLASH_LADDER_D_64 FLASH_LADDER_D(0), FLASH_LADDER_D(2), FLASH_LADDER_D(4), FLASH_LADDER_D(6)
#define FLASH_LADDER_D_80 FLASH_LADDER_D_64, FLASH_LADDER_D(8)
#define FLASH_LADDER_D_96 FLASH_LADDER_D_80, FLASH_LADDER_D(10)
#define FLASH_LADDER_D_192                                                                           \
  FLASH_LADDER_D_96, FLASH_LADDER_D(12), FLASH_LADDER_D(14), FLASH_LADDER_D(16), FLASH_LADDER_D(18), \
      FLASH_LADDER_D(20), FLASH_LADDER_D(22)
#define FLASH_LADDER_D_256 \
  FLASH_LADDER_D_192, FLASH_LADDER_D(24), FLASH_LADDER_D(26), FLASH_LADDER_D(28), FLASH_LADDER_D(30)
#define FLASH_LADDER_NUMBERS_64                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19" \
  ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASH_LADDER_NUMBERS_80 FLASH_LADDER_NUMBERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLASH_LADDER_NUMBERS_96 FLASH_LADDER_NUMBERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASH_LADDER_NUMBERS_192                                                                         \
  FLASH_LADDER_NUMBERS_96                                                                                \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67" \
  ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASH_LADDER_NUMBERS_256                                                                                         \
  FLASH_LADDER_NUMBERS_192                                                                                               \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115" \
  ", %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/// Both operands in shared memory, K-major. S = Q Kᵀ for 80 keys.
template <typename Element>
__device__ void wgmma(float (&D)[10][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_80 "}, %40, %41, p, 1, 1, 0, 0; }"                              \
               : FLASH_LADDER_D_80                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 96 keys.
template <typename Element>
__device__ void wgmma(float (&D)[12][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_96 "}, %48, %49, p, 1, 1, 0, 0; }"                              \
               : FLASH_LADDER_D_96                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// A in registers, B in shared memory and MN-major. O += P V for 64 columns.
template <typename Element>
__device__ void wgmma(float (&D)[8][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"                \
               : FLASH_LADDER_D_64                                                                       \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 96 columns.
template <typename Element>
__device__ void wgmma(float (&D)[12][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_96 "}, {%48, %49, %50, %51}, %52, p, 1, 1, 1; }"                \
               : FLASH_LADDER_D_96                                                                       \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 192 columns.
template <typename Element>
__device__ void wgmma(float (&D)[24][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                           \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %101, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_192 "}, {%96, %97, %98, %99}, %100, p, 1, 1, 1; }"                \
               : FLASH_LADDER_D_192                                                                        \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 256 columns.
template <typename Element>
__device__ void wgmma(float (&D)[32][4], const std::uint32_t (&A)[4], std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                           \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_256 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1; }"            \
               : FLASH_LADDER_D_256                                                                        \
               : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_64
#undef FLASH_LADDER_D_80
#undef FLASH_LADDER_D_96
#undef FLASH_LADDER_D_192
#undef FLASH_LADDER_D_256
#undef FLASH_LADDER_NUMBERS_64
#undef FLASH_LADDER_NUMBERS_80
#undef FLASH_LADDER_NUMBERS_96
#undef FLASH_LADDER_NUMBERS_192
#undef FLASH_LADDER_NUMBERS_256

}  // namespace flash_ladder
