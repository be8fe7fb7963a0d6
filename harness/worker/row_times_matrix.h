// The inner loop of the reference: a row times a matrix, in double and in float.
#pragma once

#include <cstdint>

namespace flash_ladder {

/// Columns of the matrix per call: as many sums as fit in the vector registers.
constexpr int kRowTimesMatrixWidth = 32;

/// out[j] += sum over k of a[k] · B[k · stride + j], for j < kRowTimesMatrixWidth and k < depth, in order of k.
/// Compiled several times; the version that suits the processor is chosen when the program starts.
void add_row_times_matrix(double* out, const double* a, const double* B, std::int64_t depth, std::int64_t stride);
void add_row_times_matrix(float* out, const float* a, const float* B, std::int64_t depth, std::int64_t stride);

}  // namespace flash_ladder
