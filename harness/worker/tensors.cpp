#include "worker/tensors.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "problem/problem.h"

namespace flash_ladder {
namespace {

float fp16_to_float(std::uint16_t bits) { return __half2float(std::bit_cast<__half>(bits)); }
// A bf16 is the upper half of a float.
float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

}  // namespace

std::uint16_t element_from_float(Dtype dtype, float value) {
  return dtype == Dtype::bf16 ? std::bit_cast<std::uint16_t>(__float2bfloat16_rn(value))
                              : std::bit_cast<std::uint16_t>(__float2half_rn(value));
}

float element_to_float(Dtype dtype, std::uint16_t bits) {
  return dtype == Dtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

void elements_to_float(Dtype dtype, const std::uint16_t* bits, std::int64_t count, float* values) {
  if (dtype == Dtype::bf16)
    std::transform(bits, bits + count, values, bf16_to_float);
  else
    std::transform(bits, bits + count, values, fp16_to_float);
}

float round_P(Dtype dtype, float P, std::int64_t row) {
  if (dtype != Dtype::e4m3) return element_to_float(dtype, element_from_float(dtype, P));
  const float largest = std::exp2(7 + static_cast<float>(row % 8) / 8);
  return e4m3_to_float(e4m3_from_float(largest * P)) / largest;
}

std::uint8_t e4m3_from_float(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }

float e4m3_to_float(std::uint8_t bits) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))); }

float e4m3_scale(float largest) {
  constexpr float kMost = 448;
  if (largest == 0) return 1;
  int exponent;
  const float fraction = std::frexp(largest / kMost, &exponent);  // in [1/2, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

double ulp(Dtype dtype, double value) {
  // Bits of the fraction, and the exponent below which numbers are denormal and evenly spaced.
  const int fraction_bits = dtype == Dtype::bf16 ? 7 : 10;
  const int min_exponent = dtype == Dtype::bf16 ? -126 : -14;
  const int exponent = value == 0 ? min_exponent : std::max(std::ilogb(value), min_exponent);
  return std::ldexp(1.0, exponent - fraction_bits);
}

TensorLayout contiguous_layout(std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  return {
      .offset = 0, .batch_stride = rows * heads * head_dim, .row_stride = heads * head_dim, .head_stride = head_dim};
}

TensorLayout output_layout(const AttentionProblem& problem) {
  TensorLayout layout = contiguous_layout(problem.seq_len, problem.heads, value_head_dim(problem));
  if (problem.packed) layout.batch_stride = 0;
  layout.first_rows = first_rows(problem);
  return layout;
}

std::int64_t output_size(const AttentionProblem& problem) {
  return total_rows(problem) * problem.heads * value_head_dim(problem);
}

TensorLayout log_sum_exp_layout(const AttentionProblem& problem) {
  if (problem.packed) return {.row_stride = 1, .head_stride = total_rows(problem), .first_rows = first_rows(problem)};
  return {.batch_stride = problem.heads * problem.seq_len, .row_stride = 1, .head_stride = problem.seq_len};
}

}  // namespace flash_ladder
