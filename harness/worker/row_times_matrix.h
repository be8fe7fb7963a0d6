// The inner loop of the reference: rows times a matrix, in double and in float.
#pragma once

#include <cstdint>

namespace flash_ladder {

/// Columns of the matrix per call: as many sums as fit in the vector registers.
constexpr int kRowTimesMatrixWidth = 32;

/// out[j] += sum over k of a[k] · B[k · stride + j], for j < kRowTimesMatrixWidth and k < depth, in order of k.
/// Compiled several times; the version that suits the processor is chosen when the program starts.
void add_row_times_matrix(double* out, const double* a, const double* B, std::int64_t depth, std::int64_t stride);
void add_row_times_matrix(float* out, const float* a, const float* B, std::int64_t depth, std::int64_t stride);

/// Rows per call of the next function. They share what is loaded of B, so that the multiplications take longer than the loads.
constexpr int kRowsTimesMatrixHeight = 4;

/// The same for kRowsTimesMatrixHeight rows: row i of a begins at a[i · a_stride], that of out at out[i · out_stride].
/// Adds in the same order, so the sums are the same to the last bit.
void add_rows_times_matrix(double* out, std::int64_t out_stride, const double* a, std::int64_t a_stride,
                           const double* B, std::int64_t depth, std::int64_t stride);
void add_rows_times_matrix(float* out, std::int64_t out_stride, const float* a, std::int64_t a_stride, const float* B,
                           std::int64_t depth, std::int64_t stride);

/// The same as a tensor core of Hopper adds products of 8-bit factors, 32 at a time: of the sum so far and of every product, it
/// keeps the 14 bits that begin with the largest exponent of them all, and 14 bits of the new sum (harness/emulator/exec/
/// wgmma_product.cpp). A product's exponent is the sum of its factors'. All numbers are finite, and depth is a multiple of 32.
void add_row_times_matrix_of_8_bits(float* out, const float* a, const float* B, std::int64_t depth,
                                    std::int64_t stride);

}  // namespace flash_ladder
