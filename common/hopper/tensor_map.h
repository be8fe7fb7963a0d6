// The description of a tensor for TMA, which the host passes to the kernel as a `const __grid_constant__` parameter.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "attention.h"

namespace flash_ladder {

/// Describes one of Q, K, V and O, [batch][rows][heads][128], to TMA as a tensor of five dimensions,
///
///     [batch][head][part of head_dim][row][kCols columns]     of which a box is [1][1][kParts][box_rows][kCols],
///
/// because the box arrives in shared memory in this order, [kParts][box_rows][kCols], each row of 128 bytes swizzled
/// (hopper/wgmma.h): two parts of 64 columns for 16-bit elements, one of 128 for 8-bit elements. CUDA Driver API, "Tensor
/// Map Object Management", cuTensorMapEncodeTiled. Strides are multiples of 16 bytes; the stride of a dimension of size 1
/// is not used and may be anything here. The function is looked up in the driver by name, so that programs need not be
/// linked with libcuda.
template <typename Element>
cudaError_t encode_tensor_map(CUtensorMap& map, const Tensor& tensor, int batch, int heads, int rows, int box_rows) {
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

  constexpr int kCols = 128 / sizeof(Element), kParts = 128 / kCols;
  const auto stride = [](int size, std::int64_t elements) -> cuuint64_t {
    return size == 1 ? 16 : elements * sizeof(Element);
  };
  const cuuint64_t sizes[] = {kCols, static_cast<cuuint64_t>(rows), kParts, static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[] = {stride(rows, tensor.row_stride), stride(kParts, kCols),
                                stride(heads, tensor.head_stride), stride(batch, tensor.batch_stride)};
  const cuuint32_t box[] = {kCols, static_cast<cuuint32_t>(box_rows), kParts, 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  const CUtensorMapDataType type = sizeof(Element) == 1              ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : std::is_same_v<Element, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode(&map, type, 5, tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace flash_ladder
