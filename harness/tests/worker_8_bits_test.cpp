// How the reference adds products of 8-bit factors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/inputs.h"
#include "worker/reference.h"
#include "worker/row_times_matrix.h"
#include "worker/tensors.h"

namespace flash_ladder {
namespace {

// Keys with equal scores: half of them with a large V, the others with one that is just below the 14th bit of the first half's sum.
TEST(Reference, SumsOf8BitFactorsAreThoseOfATensorCore) {
  const auto bound_in = [](Dtype dtype) {
    const AttentionProblem problem{
        .batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 64, .head_dim = 32, .dtype = dtype};
    Inputs inputs = make_inputs(problem, Distribution::zeros, Packing::separate, 0);
    for (std::int64_t row = 0; row < 64; ++row)
      std::fill_n(inputs.buffers[2].data() + inputs.V.row(0, 0, row), 32,
                  element_from_float(dtype, row < 32 ? 64 : 0.234375f));
    const Reference reference = make_reference(inputs, {.seq_len = 1, .tile = 1, .seed = 0});
    EXPECT_DOUBLE_EQ(reference.output[0], 32.1171875);
    return reference.bound[0];
  };
  // The sums are 2048 and 7.5, and 64 keys share them. An ulp at 32 is 1/32.
  EXPECT_DOUBLE_EQ(bound_in(Dtype::e4m3), 2 * 7.5 / 64 + 1.0 / 32);
  EXPECT_DOUBLE_EQ(bound_in(Dtype::fp16), 2 * (32.125 - 32.1171875) + 1.0 / 32);
}

// The sum, for 64 factors a, of the products with the elements of a column of B.
float sum_of_8_bits(const std::vector<float>& a, const std::vector<float>& column) {
  std::vector<float> B(64 * kRowTimesMatrixWidth), sums(kRowTimesMatrixWidth);
  for (std::size_t k = 0; k < 64; ++k) B[k * kRowTimesMatrixWidth + 5] = k < column.size() ? column[k] : 1;
  std::vector<float> all = a;
  all.resize(64);
  add_row_times_matrix_of_8_bits(sums.data(), all.data(), B.data(), 64, kRowTimesMatrixWidth);
  EXPECT_EQ(sums[4], 0);
  return sums[5];
}

TEST(RowTimesMatrixOf8Bits, KeepsFourteenBitsFromTheLargestExponentOn) {
  // Four factors of 32 in the first 32 add up to 128, whose 14th bit is 2^-6. The other 32 are added to it.
  const auto after_128 = [](float small) {
    std::vector<float> a(64);
    std::fill_n(a.begin(), 4, 32.0f);
    std::fill_n(a.begin() + 32, 32, small);
    return sum_of_8_bits(a, {});
  };
  EXPECT_EQ(after_128(0x1p-6f), 128.5f);
  EXPECT_EQ(after_128(0x1p-6f * 1.875f), 128.5f);  // truncated, not rounded
  EXPECT_EQ(after_128(0x1p-7f), 128);
  EXPECT_EQ(after_128(-0x1p-7f), 128);
  // Within 32, the largest is a single 32, whose 14th bit is 2^-8.
  std::vector<float> a(31, 0x1p-7f);
  std::fill_n(a.begin(), 4, 32.0f);
  EXPECT_EQ(sum_of_8_bits(a, {}), 128 + 26 * 0x1p-7f);  // all 27 count, but of the result, too, only 14 bits are kept
  // A product of 2.25 has the exponent 0, like its factors, so 2^-13 is kept.
  EXPECT_EQ(sum_of_8_bits({1.5f, -1.5f, 1}, {1.5f, 1.5f, 0x1p-13f}), 0x1p-13f);
  EXPECT_EQ(sum_of_8_bits({}, {}), 0);
}

}  // namespace
}  // namespace flash_ladder
