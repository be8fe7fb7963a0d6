#include "worker/row_times_matrix.h"

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

}  // namespace flash_ladder
