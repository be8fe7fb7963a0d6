// Conversions from e4m3, as which a cache of keys and values may be stored: one sign bit, four exponent bits, three mantissa bits.
// fp16 and bf16 have all of its numbers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>  // the type of the elements

#include <cstdint>

#include "convert.h"

namespace flash_ladder {

/// Converts two e4m3 numbers to 16 bits: the first is in bits 0–7, and then in bits 0–15. PTX ISA, "cvt", .rn.f16x2.e4m3x2,
/// which needs sm_89 or newer, and which rounds nothing. No instruction converts e4m3 to bf16.
template <typename Element>
__device__ std::uint32_t from_e4m3(std::uint16_t pair);
template <>
__device__ inline std::uint32_t from_e4m3<__half>(std::uint16_t pair) {
  std::uint32_t converted;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(converted) : "h"(pair));
  return converted;
}
template <>
__device__ inline std::uint32_t from_e4m3<__nv_bfloat16>(std::uint16_t pair) {
  const std::uint32_t in_fp16 = from_e4m3<__half>(pair);
  const float2 numbers = __half22float2(reinterpret_cast<const __half2&>(in_fp16));
  return pack<__nv_bfloat16>(numbers.x, numbers.y);
}

}  // namespace flash_ladder
