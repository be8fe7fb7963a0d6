#include "worker/row_times_matrix.h"

#include <algorithm>
#include <bit>
#include <cstdint>

// GCC generates a clone for each level of x86-64 (v3 has AVX2 and fused multiply-adds, v4 has AVX-512), and the dynamic linker
// chooses one by what the processor can do. The name of a processor instead of a level would only be chosen on that processor.
// Elsewhere there is only one build; on arm64 the plain one already uses vector instructions.
#if defined(__x86_64__) && defined(__linux__) && __GNUC__ >= 12 && !defined(__clang__)
#define FLASH_LADDER_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FLASH_LADDER_CLONES
#endif

namespace flash_ladder {
namespace {

// Inlined into each clone; otherwise it would be compiled only once, for the least capable processor.
template <int kRows, typename T>
[[gnu::always_inline]] inline void add(T* __restrict out, std::int64_t out_stride, const T* __restrict a,
                                       std::int64_t a_stride, const T* __restrict B, std::int64_t depth,
                                       std::int64_t stride) {
  T sums[kRows][kRowTimesMatrixWidth];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRowTimesMatrixWidth; ++j) sums[i][j] = out[i * out_stride + j];
  for (std::int64_t k = 0; k < depth; ++k)
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kRowTimesMatrixWidth; ++j) sums[i][j] += a[i * a_stride + k] * B[k * stride + j];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRowTimesMatrixWidth; ++j) out[i * out_stride + j] = sums[i][j];
}

// The exponent of a float as it is stored, 127 more than that of its value; 0 for 0.
[[gnu::always_inline]] inline std::int32_t exponent_of(float x) {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) >> 23 & 0xff);
}
[[gnu::always_inline]] inline float power_of_two(std::int32_t exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace

FLASH_LADDER_CLONES
void add_row_times_matrix(double* out, const double* a, const double* B, std::int64_t depth, std::int64_t stride) {
  add<1>(out, 0, a, 0, B, depth, stride);
}

FLASH_LADDER_CLONES
void add_row_times_matrix(float* out, const float* a, const float* B, std::int64_t depth, std::int64_t stride) {
  add<1>(out, 0, a, 0, B, depth, stride);
}

FLASH_LADDER_CLONES
void add_rows_times_matrix(double* out, std::int64_t out_stride, const double* a, std::int64_t a_stride,
                           const double* B, std::int64_t depth, std::int64_t stride) {
  add<kRowsTimesMatrixHeight>(out, out_stride, a, a_stride, B, depth, stride);
}

FLASH_LADDER_CLONES
void add_rows_times_matrix(float* out, std::int64_t out_stride, const float* a, std::int64_t a_stride, const float* B,
                           std::int64_t depth, std::int64_t stride) {
  add<kRowsTimesMatrixHeight>(out, out_stride, a, a_stride, B, depth, stride);
}

FLASH_LADDER_CLONES
void add_row_times_matrix_of_8_bits(float* out, const float* a, const float* B, std::int64_t depth,
                                    std::int64_t stride) {
  constexpr int kWidth = kRowTimesMatrixWidth, kProducts = 32, kKeptBits = 14;
  constexpr std::int32_t kLeast = -100;  // of an exponent: below those of all products of numbers from 2^-50 on
  for (std::int64_t first = 0; first < depth; first += kProducts) {
    std::int32_t exponent[kWidth], sum[kWidth];
    for (int j = 0; j < kWidth; ++j) exponent[j] = std::max(exponent_of(out[j]) - 127, kLeast);
    for (std::int64_t k = first; k < first + kProducts; ++k)
      for (int j = 0; j < kWidth; ++j)
        exponent[j] = std::max(exponent[j], exponent_of(a[k]) + exponent_of(B[k * stride + j]) - 2 * 127);
    float per_unit[kWidth];
    for (int j = 0; j < kWidth; ++j) {
      per_unit[j] = power_of_two(kKeptBits - 1 - exponent[j]);
      sum[j] = static_cast<std::int32_t>(out[j] * per_unit[j]);
    }
    for (std::int64_t k = first; k < first + kProducts; ++k)
      for (int j = 0; j < kWidth; ++j) sum[j] += static_cast<std::int32_t>(a[k] * B[k * stride + j] * per_unit[j]);
    for (int j = 0; j < kWidth; ++j) {
      const float all = static_cast<float>(sum[j]) * power_of_two(exponent[j] - kKeptBits + 1);
      out[j] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(all) & ~((1u << (24 - kKeptBits)) - 1));
    }
  }
}

}  // namespace flash_ladder
