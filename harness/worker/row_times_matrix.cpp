#include "worker/row_times_matrix.h"

// GCC generates a clone for each target, and the dynamic linker chooses one. Elsewhere there is only one build; on
// arm64 the plain one already uses vector instructions.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FLASH_LADDER_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define FLASH_LADDER_CLONES
#endif

namespace flash_ladder {
namespace {

// Inlined into each clone; otherwise it would be compiled only once, for the least capable processor.
template <typename T>
[[gnu::always_inline]] inline void add(T* __restrict out, const T* __restrict a, const T* __restrict B,
                                       std::int64_t depth, std::int64_t stride) {
  T sums[kRowTimesMatrixWidth];
  for (int j = 0; j < kRowTimesMatrixWidth; ++j) sums[j] = out[j];
  for (std::int64_t k = 0; k < depth; ++k)
    for (int j = 0; j < kRowTimesMatrixWidth; ++j) sums[j] += a[k] * B[k * stride + j];
  for (int j = 0; j < kRowTimesMatrixWidth; ++j) out[j] = sums[j];
}

}  // namespace

FLASH_LADDER_CLONES
void add_row_times_matrix(double* out, const double* a, const double* B, std::int64_t depth, std::int64_t stride) {
  add(out, a, B, depth, stride);
}

FLASH_LADDER_CLONES
void add_row_times_matrix(float* out, const float* a, const float* B, std::int64_t depth, std::int64_t stride) {
  add(out, a, B, depth, stride);
}

}  // namespace flash_ladder
