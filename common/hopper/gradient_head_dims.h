// What gradients on Hopper need for other values of head_dim than 128, beside hopper/head_dims.h: parts of 16 columns, and
// further wgmmas.
//
// Each of two warpgroups computes half of the columns of dQ, and a wgmma cannot start in the middle of a part of K. So a half
// consists of whole parts: 64 columns for a head_dim of 128, 32 for one of 64, and 16 for one of 96, where a half has 48. The
// last ones are rows of 32 bytes, for the 32-byte swizzle: of 256 bytes, it puts the 16-byte chunk c of row r at chunk
// c ^ r / 4 % 2.
//
//             chunk 0   1       chunk 2   3       chunk 4   5       chunk 6   7
//     row 0         0   1   row 1   0   1   row 2   0   1   row 3   0   1       four rows are 128 bytes, which is all banks
//     row 4         1   0   row 5   1   0   row 6   1   0   row 7   1   0       once; row 8 is like row 0, 256 bytes further on
#pragma once

#include "hopper/head_dims.h"
#include "hopper/wgmma_transposed.h"

namespace flash_ladder {

/// Columns in a part of a tile of 16-bit elements, if this many, a multiple of 16, must be whole parts.
constexpr int columns_of_parts(int columns) { return columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16; }

/// encode_tensor_map() of hopper/head_dims.h, which see, also for parts of 16 columns. Their width is Traits::kCols.
template <typename Traits>
cudaError_t encode_parts(CUtensorMap& map, const Tensor& tensor, int head_dim, int batch, int heads, int rows,
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

  using Element = typename Traits::Element;
  constexpr int kCols = Traits::kCols;
  static_assert(sizeof(Element) == 2 && Traits::kHeadDim % kCols == 0 && Traits::kHeadDimV % kCols == 0);
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
  constexpr CUtensorMapSwizzle kSwizzle = kCols == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                          : kCols == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                        : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult result = encode(&map, type, 5, tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 kSwizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// The descriptor of an operand in parts of kCols columns, [parts][rows][kCols]. The stride dimension is eight rows. The leading
/// dimension is a part; only MN-major operands use it. In bits 62–63, 1 is the 128-byte swizzle, 2 that of 64 bytes, and 3 that
/// of 32.
template <int kCols>
__device__ std::uint64_t descriptor_of_parts(const void* smem, int rows) {
  constexpr std::uint64_t kSwizzle = kCols == 64 ? 1 : kCols == 32 ? 2 : 3;
  return matrix_descriptor(smem, rows * kCols * 2, 8 * kCols * 2) + ((kSwizzle - 1) << 62);
}

/// The same K-major operand, this many times 16 columns further on.
template <int kCols>
__device__ std::uint64_t advance_columns(std::uint64_t descriptor, int mma_k, int rows) {
  constexpr int kSteps = kCols / 16;  // in a part
  return advance(descriptor, mma_k / kSteps * rows * kCols * 2 + mma_k % kSteps * 32);
}

#define FLASH_LADDER_D(n)                                                                                              \
  "+f"(D[n][0]), "+f"(D[n][1]), "+f"(D[n][2]), "+f"(D[n][3]), "+f"(D[n + 1][0]), "+f"(D[n + 1][1]), "+f"(D[n + 1][2]), \
      "+f"(D[n + 1][3])
#define FLASH_LADDER_D_32 FLASH_LADDER_D(0), FLASH_LADDER_D(2)
#define FLASH_LADDER_D_48 FLASH_LADDER_D_32, FLASH_LADDER_D(4)
#define FLASH_LADDER_NUMBERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASH_LADDER_NUMBERS_48 FLASH_LADDER_NUMBERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"

/// Both operands in shared memory, MN-major. 32 of the columns of dQ = dS K.
template <typename Element>
__device__ void wgmma_transposed(float (&D)[4][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_32 "}, %16, %17, p, 1, 1, 1, 1; }"                              \
               : FLASH_LADDER_D_32                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

/// The same for 48 columns.
template <typename Element>
__device__ void wgmma_transposed(float (&D)[6][4], std::uint64_t A, std::uint64_t B, bool accumulate) {
#define FLASH_LADDER_WGMMA(TYPE)                                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE \
               " {" FLASH_LADDER_NUMBERS_48 "}, %24, %25, p, 1, 1, 1, 1; }"                              \
               : FLASH_LADDER_D_48                                                                       \
               : "l"(A), "l"(B), "r"(static_cast<int>(accumulate)))
  if constexpr (std::is_same_v<Element, __half>)
    FLASH_LADDER_WGMMA("f16.f16");
  else
    FLASH_LADDER_WGMMA("bf16.bf16");
#undef FLASH_LADDER_WGMMA
}

#undef FLASH_LADDER_D
#undef FLASH_LADDER_D_32
#undef FLASH_LADDER_D_48
#undef FLASH_LADDER_NUMBERS_32
#undef FLASH_LADDER_NUMBERS_48

}  // namespace flash_ladder
