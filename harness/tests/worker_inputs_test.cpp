#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>
#include <span>
#include <utility>

#include "worker/adversarial.h"
#include "worker/inputs.h"

namespace flash_ladder {
namespace {

const AttentionProblem kProblem{.batch = 2, .heads = 3, .seq_len = 128, .seq_len_kv = 192};

AttentionProblem with_dtype(AttentionProblem problem, Dtype dtype) {
  problem.dtype = dtype;
  return problem;
}

// Calls f(tensor, row pointer) for every row of Q (0), K (1) and V (2).
template <typename F>
void for_each_row(const Inputs& inputs, F f) {
  const AttentionProblem& problem = inputs.problem;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      for (std::int64_t row = 0; row < problem.seq_len; ++row) f(0, inputs.Q_row(batch, head, row));
      for (std::int64_t row = 0; row < problem.seq_len_kv; ++row) f(1, inputs.K_row(batch, head, row));
      for (std::int64_t row = 0; row < problem.seq_len_kv; ++row) f(2, inputs.V_row(batch, head, row));
    }
}

std::vector<std::uint16_t> all_bits(const Inputs& inputs) {
  std::vector<std::uint16_t> bits;
  for_each_row(inputs,
               [&](int, const std::uint16_t* row) { bits.insert(bits.end(), row, row + inputs.problem.head_dim); });
  return bits;
}

// The scores of one query: [seq_len_kv].
std::vector<double> scores(const Inputs& inputs, std::int64_t batch, std::int64_t head, std::int64_t query) {
  const std::int64_t head_dim = inputs.problem.head_dim;
  std::vector<double> S;
  for (std::int64_t key = 0; key < inputs.problem.seq_len_kv; ++key) {
    double sum = 0;
    for (std::int64_t d = 0; d < head_dim; ++d)
      sum += double{element_to_float(inputs.problem.dtype, inputs.Q_row(batch, head, query)[d])} *
             element_to_float(inputs.problem.dtype, inputs.K_row(batch, head, key)[d]);
    S.push_back(sum * softmax_scale(head_dim));
  }
  return S;
}

struct Statistics {
  double mean = 0, deviation = 0;
};

Statistics statistics(const Inputs& inputs, int tensor) {
  double count = 0, sum = 0, squares = 0;
  for_each_row(inputs, [&](int which, const std::uint16_t* row) {
    if (which != tensor) return;
    for (std::int64_t d = 0; d < inputs.problem.head_dim; ++d) {
      const double x = element_to_float(inputs.problem.dtype, row[d]);
      ++count, sum += x, squares += x * x;
    }
  });
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean)};
}

class EveryDistribution : public testing::TestWithParam<Distribution> {};

TEST_P(EveryDistribution, DoesNotDependOnTheNumberOfThreads) {
  const auto one = make_inputs(kProblem, GetParam(), Packing::separate, 7, {}, 1);
  const auto five = make_inputs(kProblem, GetParam(), Packing::separate, 7, {}, 5);
  EXPECT_EQ(all_bits(one), all_bits(five));
}

TEST_P(EveryDistribution, DoesNotDependOnThePacking) {
  AttentionProblem square = kProblem;
  square.seq_len = square.seq_len_kv;
  const auto separate = make_inputs(square, GetParam(), Packing::separate, 7);
  const auto packed = make_inputs(square, GetParam(), Packing::packed_qkv, 7);
  ASSERT_EQ(packed.buffers.size(), 1u);
  EXPECT_EQ(packed.buffers[0].size(), 3 * separate.buffers[0].size());
  EXPECT_EQ(all_bits(separate), all_bits(packed));
  EXPECT_EQ(all_bits(separate), all_bits(make_inputs(square, GetParam(), Packing::with_gaps, 7)));
}

TEST_P(EveryDistribution, DependsOnTheSeed) {
  const auto a = make_inputs(kProblem, GetParam(), Packing::separate, 7);
  const auto b = make_inputs(kProblem, GetParam(), Packing::separate, 8);
  EXPECT_NE(all_bits(a), all_bits(b));
}

TEST_P(EveryDistribution, IsFinite) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    AttentionProblem problem = kProblem;
    problem.dtype = dtype;
    const auto bits = all_bits(make_inputs(problem, GetParam(), Packing::separate, 7));
    EXPECT_TRUE(std::all_of(bits.begin(), bits.end(), [&](std::uint16_t x) { return is_finite(dtype, x); }));
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, EveryDistribution,
                         testing::Values(Distribution::normal, Distribution::offset_mean, Distribution::large_logit,
                                         Distribution::ramp, Distribution::q_times_3, Distribution::q_times_6,
                                         Distribution::sink, Distribution::rising, Distribution::falling,
                                         Distribution::steps, Distribution::equal_keys, Distribution::diagonal,
                                         Distribution::four_sinks, Distribution::broad, Distribution::trained),
                         [](const auto& info) {
                           std::string name = to_string(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// PTX ISA, "Alternate floating-point data formats": S.EEEE.MMM, bias 7, no infinity, 0x7f is a NaN.
TEST(E4m3, IsRoundedToTheNearestAndEndsAt448) {
  EXPECT_EQ(e4m3_to_float(0x38), 1);
  EXPECT_EQ(e4m3_to_float(0xb8), -1);
  EXPECT_EQ(e4m3_to_float(0x7e), 448);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_EQ(e4m3_to_float(e4m3_from_float(17)), 16);  // between 16 and 18, the even one
  EXPECT_EQ(e4m3_to_float(e4m3_from_float(19)), 20);
  EXPECT_EQ(e4m3_to_float(e4m3_from_float(-1000)), -448);
  EXPECT_EQ(e4m3_to_float(e4m3_from_float(0x1p-11f)), 0);
  for (int bits = 0; bits < 256; ++bits)
    if (bits % 128 != 127) {
      EXPECT_EQ(e4m3_from_float(e4m3_to_float(static_cast<std::uint8_t>(bits))), bits);
    }
}

TEST(E4m3, AScaleBringsTheLargestTo448AtMost) {
  EXPECT_EQ(e4m3_scale(448), 1);
  EXPECT_EQ(e4m3_scale(449), 2);
  EXPECT_EQ(e4m3_scale(224), 0.5f);
  EXPECT_EQ(e4m3_scale(5), 0x1p-6f);
  EXPECT_EQ(e4m3_scale(0), 1);
}

TEST(E4m3, PIsRoundedAtEightPlacesOfAnOctave) {
  EXPECT_EQ(round_P(Dtype::e4m3, 1, 0), 1);
  EXPECT_EQ(round_P(Dtype::e4m3, 0.96f, 8), 0.9375f);  // 122.9, between 120 and 128
  EXPECT_EQ(round_P(Dtype::e4m3, 0x1p-16f, 0), 0x1p-16f);
  EXPECT_EQ(round_P(Dtype::e4m3, 0x1p-18f, 0), 0);
  constexpr float kHalfAnOctave = 181.01934f;
  EXPECT_FLOAT_EQ(round_P(Dtype::e4m3, 1, 4), 176 / kHalfAnOctave);  // between 176 and 192
  EXPECT_FLOAT_EQ(round_P(Dtype::e4m3, 0.5f, 12), 88 / kHalfAnOctave);
  EXPECT_EQ(round_P(Dtype::fp16, 0x1p-19f, 3), 0x1p-19f);
}

TEST(Inputs, E4m3HasAScaleForEachHeadAndTheNumbersThatItCanHave) {
  const AttentionProblem problem{
      .batch = 2, .heads = 4, .seq_len = 48, .seq_len_kv = 48, .head_dim = 128, .dtype = Dtype::e4m3, .kv_heads = 2};
  const Inputs inputs = make_inputs(problem, Distribution::large_logit, Packing::packed_qkv, 3);
  ASSERT_EQ(inputs.scales.size(), 3 * 2 * 4);
  EXPECT_EQ(inputs.scales[0], 0.25f);  // Q is 16 z, and the largest z of a head about 4
  EXPECT_EQ(inputs.scales[2 * 4], 0x1p-6f);
  std::atomic<std::int64_t> rows = 0;
  for_each_scaled_row(inputs, 0, [&](std::int64_t begin, std::int64_t end, float scale) {
    ++rows;
    EXPECT_EQ(end - begin, problem.head_dim);
    for (std::int64_t i = begin; i < end; ++i) {
      const float value = element_to_float(Dtype::e4m3, inputs.buffers[0].data()[i]);
      EXPECT_EQ(e4m3_to_float(e4m3_from_float(value / scale)) * scale, value);
    }
  });
  EXPECT_EQ(rows, problem.batch * problem.seq_len * (4 + 2 + 2));
}

TEST(Inputs, HeadsOfAGroupReadTheSameRowsOfKAndV) {
  AttentionProblem grouped = kProblem;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  const auto inputs = make_inputs(grouped, Distribution::normal, Packing::separate, 7);
  EXPECT_EQ(inputs.buffers[1].size(), 2 * 192 * 2 * 128);
  EXPECT_EQ(inputs.K_row(1, 3, 5), inputs.K_row(1, 5, 5));
  EXPECT_EQ(inputs.V_row(1, 0, 5), inputs.V_row(1, 2, 5));
  EXPECT_NE(inputs.V_row(1, 2, 5), inputs.V_row(1, 3, 5));
  EXPECT_NE(inputs.Q_row(1, 0, 5), inputs.Q_row(1, 1, 5));

  grouped.seq_len = grouped.seq_len_kv;
  const auto separate = make_inputs(grouped, Distribution::normal, Packing::separate, 7);
  const auto packed = make_inputs(grouped, Distribution::normal, Packing::packed_qkv, 7);
  EXPECT_EQ(packed.buffers[0].size(), 2 * 192 * (6 + 2 + 2) * 128);
  EXPECT_EQ(all_bits(separate), all_bits(packed));
}

TEST(Inputs, GapsAreNanAndNoTwoTensorsHaveAStrideInCommon) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::e4m3}) {
    const auto problem = with_dtype(kProblem, dtype);
    const auto inputs = make_inputs(problem, Distribution::normal, Packing::with_gaps, 7);
    std::set<std::int64_t> strides;
    for (const TensorLayout& layout : {inputs.Q, inputs.K, inputs.V, output_layout(problem)})
      for (const std::int64_t stride : {layout.batch_stride, layout.row_stride, layout.head_stride}) {
        EXPECT_TRUE(strides.insert(stride).second) << stride;
        EXPECT_EQ(stride % 16, 0) << "TMA and loads of 16 bytes";
      }
    std::int64_t numbers = 0;
    for (const HostBuffer& buffer : inputs.buffers)
      numbers += std::count_if(buffer.data(), buffer.data() + buffer.size(),
                               [&](std::uint16_t x) { return !std::isnan(element_to_float(dtype, x)); });
    EXPECT_EQ(numbers, std::ssize(all_bits(inputs)));
  }
}

TEST(Inputs, WhatALengthLeavesOutIsNan) {
  AttentionProblem problem = kProblem;
  problem.lengths = {128, 3};
  problem.lengths_kv = {0, 191};
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    problem.dtype = dtype;
    const auto inputs = make_inputs(problem, Distribution::ramp, Packing::separate, 7);
    const auto is_nan = [&](const std::uint16_t* row) {
      return std::all_of(row, row + problem.head_dim,
                         [&](std::uint16_t x) { return std::isnan(element_to_float(dtype, x)); });
    };
    const auto whole = make_inputs(with_dtype(kProblem, dtype), Distribution::ramp, Packing::separate, 7);
    EXPECT_TRUE(is_nan(inputs.Q_row(1, 2, 3)));
    EXPECT_TRUE(is_nan(inputs.K_row(0, 0, 0)));
    EXPECT_TRUE(is_nan(inputs.V_row(1, 0, 191)));
    EXPECT_TRUE(std::equal(inputs.Q_row(1, 2, 2), inputs.Q_row(1, 2, 2) + 128, whole.Q_row(1, 2, 2)));
    EXPECT_TRUE(std::equal(inputs.V_row(1, 0, 190), inputs.V_row(1, 0, 190) + 128, whole.V_row(1, 0, 190)));
  }
}

TEST(Inputs, PagesHaveTheSameRowsInAnotherOrder) {
  AttentionProblem problem{
      .batch = 3, .heads = 4, .seq_len = 1, .seq_len_kv = 200, .kv_heads = 2, .lengths_kv = {200, 0, 33}};
  const Inputs contiguous = make_inputs(problem, Distribution::normal, Packing::separate, 7);
  problem.page_size = 32;
  for (const Packing packing : {Packing::separate, Packing::with_gaps}) {
    const Inputs paged = make_inputs(problem, Distribution::normal, packing, 7);
    const PageTable& table = *paged.K.table;
    EXPECT_EQ(table.width, 7);
    ASSERT_EQ(table.pages.size(), 21u);
    EXPECT_EQ(table.num_pages, 7 + 2 + 1) << "and one that nobody uses";
    std::set<int> used;
    for (std::int64_t batch = 0; batch < 3; ++batch)
      for (std::int64_t page = 0; page < table.width; ++page) {
        const int number = table.pages[batch * table.width + page];
        if (page * 32 >= problem.lengths_kv[batch])
          EXPECT_TRUE(number < 0 || number >= table.num_pages) << "a kernel must not use it";
        else
          EXPECT_TRUE(number >= 0 && number < table.num_pages && used.insert(number).second) << number;
      }
    EXPECT_FALSE(std::ranges::is_sorted(table.pages.begin(), table.pages.begin() + 7)) << "in another order";
    std::int64_t numbers = 0;  // that are not NaN
    for (const std::uint16_t bits : std::span(paged.buffers[1].data(), paged.buffers[1].size()))
      numbers += is_finite(Dtype::fp16, bits);
    EXPECT_EQ(numbers, 233 * 2 * 128) << "everything else is NaN";
    for (std::int64_t batch = 0; batch < 3; ++batch)
      for (std::int64_t head = 0; head < 4; ++head)
        for (std::int64_t row = 0; row < problem.lengths_kv[batch]; ++row) {
          EXPECT_TRUE(std::equal(paged.K_row(batch, head, row), paged.K_row(batch, head, row) + 128,
                                 contiguous.K_row(batch, head, row)));
          EXPECT_TRUE(std::equal(paged.V_row(batch, head, row), paged.V_row(batch, head, row) + 128,
                                 contiguous.V_row(batch, head, row)));
        }
  }
}

TEST(Inputs, NoTwoRowsAreAlike) {
  std::vector<std::vector<std::uint16_t>> rows;
  for_each_row(make_inputs(kProblem, Distribution::normal, Packing::separate, 7),
               [&](int, const std::uint16_t* row) { rows.emplace_back(row, row + kProblem.head_dim); });
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end());
}

TEST(Inputs, NormalHasMeanZeroAndDeviationOne) {
  const auto inputs = make_inputs(kProblem, Distribution::normal, Packing::separate, 7);
  for (const int tensor : {0, 1, 2}) {  // at least 98,304 elements each, whose mean deviates by 0.003
    EXPECT_NEAR(statistics(inputs, tensor).mean, 0, 0.015);
    EXPECT_NEAR(statistics(inputs, tensor).deviation, 1, 0.015);
  }
}

TEST(Inputs, OffsetMeanHasItsMeans) {
  const auto inputs = make_inputs(kProblem, Distribution::offset_mean, Packing::separate, 7);
  EXPECT_NEAR(statistics(inputs, 0).mean, 0.5, 0.015);
  EXPECT_NEAR(statistics(inputs, 1).mean, 0.5, 0.015);
  EXPECT_NEAR(statistics(inputs, 2).mean, 1, 0.015);
}

TEST(Inputs, LargeLogitHasLargeScores) {
  const auto inputs = make_inputs(kProblem, Distribution::large_logit, Packing::separate, 7);
  for (std::int64_t query = 0; query < kProblem.seq_len; query += 17) {
    const auto S = scores(inputs, 1, 2, query);
    const auto [min, max] = std::minmax_element(S.begin(), S.end());
    EXPECT_GT(*max - *min, 40);  // exp(-40) is 0 in fp16
  }
}

TEST(Inputs, RampRaisesTheMaximumOfEveryRowInEveryTile) {
  const auto inputs = make_inputs(kProblem, Distribution::ramp, Packing::separate, 7);
  constexpr std::int64_t kTile = 16;
  for (std::int64_t batch = 0; batch < kProblem.batch; ++batch)
    for (std::int64_t head = 0; head < kProblem.heads; ++head)
      for (std::int64_t query = 0; query < kProblem.seq_len; ++query) {
        const auto S = scores(inputs, batch, head, query);
        double running_max = *std::max_element(S.begin(), S.begin() + kTile);
        EXPECT_LT(running_max, 0);  // otherwise a maximum that starts at 0 would go unnoticed
        for (std::int64_t first = kTile; first < kProblem.seq_len_kv; first += kTile) {
          const double tile_max = *std::max_element(S.begin() + first, S.begin() + first + kTile);
          ASSERT_GT(tile_max, running_max)
              << "batch " << batch << " head " << head << " query " << query << " key " << first;
          running_max = tile_max;
        }
      }
}

// Recordings use these distributions, so their elements must be the same as when the recordings were made.
TEST(Inputs, TheFirstDistributionsAreBitForBitWhatTheyWere) {
  const std::pair<Distribution, std::uint64_t> kKnown[] = {{Distribution::normal, 0x436cde62c6784945},
                                                           {Distribution::offset_mean, 0x6796453eed478704},
                                                           {Distribution::large_logit, 0xfc49201faa2d98f1},
                                                           {Distribution::ramp, 0x7726485f176b05a8}};
  for (const auto& [distribution, known] : kKnown) {
    std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a, over elements
    const Inputs inputs = make_inputs(kProblem, distribution, Packing::separate, 7);
    for (const HostBuffer& buffer : inputs.buffers)
      for (std::int64_t i = 0; i < buffer.size(); ++i) sum = (sum ^ buffer.data()[i]) * 0x100000001b3;
    EXPECT_EQ(sum, known) << to_string(distribution);
  }
}

// The softmax of the scores of one query.
std::vector<double> weights(const Inputs& inputs, std::int64_t batch, std::int64_t head, std::int64_t query) {
  std::vector<double> P = scores(inputs, batch, head, query);
  const double largest = *std::max_element(P.begin(), P.end());
  double sum = 0;
  for (double& p : P) sum += p = std::exp(p - largest);
  for (double& p : P) p /= sum;
  return P;
}

// The mean of f(query) over all queries of one head.
template <typename F>
double mean_over_queries(const Inputs& inputs, F f) {
  double sum = 0;
  for (std::int64_t query = 0; query < inputs.problem.seq_len; ++query) sum += f(query);
  return sum / inputs.problem.seq_len;
}

std::vector<double> mean_row(const Inputs& inputs, bool of_Q, std::int64_t first, std::int64_t end) {
  std::vector<double> mean(inputs.problem.head_dim);
  for (std::int64_t row = first; row < end; ++row)
    for (std::size_t d = 0; d < mean.size(); ++d)
      mean[d] += element_to_float(inputs.problem.dtype, (of_Q ? inputs.Q_row(1, 2, row) : inputs.K_row(1, 2, row))[d]) /
                 (end - first);
  return mean;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

const AttentionProblem kLong{.batch = 2, .heads = 3, .seq_len = 512, .seq_len_kv = 512};

TEST(Data, QTimesNHasThatDeviation) {
  EXPECT_NEAR(statistics(make_inputs(kProblem, Distribution::q_times_3, Packing::separate, 7), 0).deviation, 3, 0.05);
  EXPECT_NEAR(statistics(make_inputs(kProblem, Distribution::q_times_6, Packing::separate, 7), 0).deviation, 6, 0.1);
  EXPECT_NEAR(statistics(make_inputs(kProblem, Distribution::q_times_6, Packing::separate, 7), 1).deviation, 1, 0.02);
}

TEST(Data, SinkHasAKeyOfFourW) {
  const Inputs inputs = make_inputs(kLong, Distribution::sink, Packing::separate, 7);
  std::vector<double> w = mean_row(inputs, false, 0, 1);
  for (double& x : w) x /= 4;
  EXPECT_NEAR(std::sqrt(dot(w, w) / 128), 1, 0.2);
  // The mean of z over this many rows is less than 0.05 per element.
  EXPECT_NEAR(dot(mean_row(inputs, true, 0, 512), w) / dot(w, w), 1, 0.02);
  EXPECT_NEAR(dot(mean_row(inputs, false, 1, 512), w) / dot(w, w), -0.5, 0.02);
  EXPECT_GT(weights(inputs, 1, 2, 100)[0], 0.999);
}

// The direction u is that of Q's mean; the component of K along it is measured over runs of keys.
double along_u(const Inputs& inputs, std::int64_t first, std::int64_t end) {
  std::vector<double> u = mean_row(inputs, true, 0, inputs.problem.seq_len);
  const double length = std::sqrt(dot(u, u));
  for (double& x : u) x /= length;
  return dot(mean_row(inputs, false, first, end), u);
}

TEST(Data, RisingFallingAndStepsMoveKAlongOneDirection) {
  // The mean of z over 64 keys is 1/8 along any direction.
  const Inputs rising = make_inputs(kLong, Distribution::rising, Packing::separate, 7),
               falling = make_inputs(kLong, Distribution::falling, Packing::separate, 7),
               steps = make_inputs(kLong, Distribution::steps, Packing::separate, 7);
  const auto length = [](const Inputs& inputs) {
    const auto mean = mean_row(inputs, true, 0, 512);
    return std::sqrt(dot(mean, mean) - 128.0 / 512);
  };
  EXPECT_NEAR(length(rising), 8, 0.3);
  EXPECT_NEAR(length(falling), 8, 0.3);
  EXPECT_NEAR(length(steps), 16, 0.3);
  for (std::int64_t first = 0; first < 512; first += 64) {
    const double middle = (first + 31.5) / 511;
    EXPECT_NEAR(along_u(rising, first, first + 64), 16 * middle, 0.6);
    EXPECT_NEAR(along_u(falling, first, first + 64), 16 * (1 - middle), 0.6);
    EXPECT_NEAR(along_u(steps, first, first + 64), first / 64, 0.6);
  }
}

TEST(Data, ZerosAreZerosAndEqualKeysAreEqual) {
  const auto bits = all_bits(make_inputs(kProblem, Distribution::zeros, Packing::separate, 7));
  EXPECT_EQ(std::count(bits.begin(), bits.end(), 0), std::ssize(bits));
  const Inputs inputs = make_inputs(kProblem, Distribution::equal_keys, Packing::separate, 7);
  for (std::int64_t key = 1; key < kProblem.seq_len_kv; ++key)
    ASSERT_TRUE(std::equal(inputs.K_row(1, 2, 0), inputs.K_row(1, 2, 0) + 128, inputs.K_row(1, 2, key)));
  EXPECT_FALSE(std::equal(inputs.K_row(1, 2, 0), inputs.K_row(1, 2, 0) + 128, inputs.K_row(1, 1, 0)));
  EXPECT_NEAR(statistics(inputs, 2).deviation, 1, 0.02);
}

std::int64_t heaviest_key(const Inputs& inputs, std::int64_t head, std::int64_t query) {
  const auto P = weights(inputs, 1, head, query);
  return std::max_element(P.begin(), P.end()) - P.begin();
}

TEST(Data, DiagonalHeadsLookAtTheKeyOfTheirPlace) {
  AttentionProblem problem = kLong;
  problem.seq_len = 256;  // the last query is aligned with the last key
  const Inputs inputs = make_inputs(problem, Distribution::diagonal, Packing::separate, 7);
  EXPECT_GT(mean_over_queries(inputs, [&](auto query) { return heaviest_key(inputs, 2, query) == query + 256; }), 0.8);
  EXPECT_GT(mean_over_queries(inputs,
                              [&](auto query) {
                                const auto P = weights(inputs, 1, 2, query);
                                double near = 0;
                                for (std::int64_t key = query + 252; key < std::min<std::int64_t>(query + 261, 512);
                                     ++key)
                                  near += P[key];
                                return near;
                              }),
            0.9);
}

double weight_of_first_four(const Inputs& inputs, std::int64_t head, std::int64_t query) {
  const auto P = weights(inputs, 1, head, query);
  return P[0] + P[1] + P[2] + P[3];
}

TEST(Data, FourSinksHaveALargeShareAndNoneIsAll) {
  const Inputs inputs = make_inputs(kLong, Distribution::four_sinks, Packing::separate, 7);
  const double share = mean_over_queries(inputs, [&](auto query) { return weight_of_first_four(inputs, 2, query); });
  EXPECT_GT(share, 0.7);
  EXPECT_LT(mean_over_queries(inputs, [&](auto query) { return weights(inputs, 1, 2, query)[0]; }), 0.7);
}

double largest_weight(const Inputs& inputs, std::int64_t head, std::int64_t query) {
  const auto P = weights(inputs, 1, head, query);
  return *std::max_element(P.begin(), P.end());
}

TEST(Data, BroadHeadsGiveNoKeyMuch) {
  const Inputs inputs = make_inputs(kLong, Distribution::broad, Packing::separate, 7);
  EXPECT_LT(mean_over_queries(inputs, [&](auto query) { return largest_weight(inputs, 2, query); }), 3.0 / 512);
}

TEST(Data, TrainedHasHeadsOfAllThreeKinds) {
  const Inputs inputs = make_inputs(kLong, Distribution::trained, Packing::separate, 7);
  EXPECT_GT(mean_over_queries(inputs, [&](auto query) { return heaviest_key(inputs, 0, query) == query; }), 0.8);
  EXPECT_GT(mean_over_queries(inputs, [&](auto query) { return weight_of_first_four(inputs, 1, query); }), 0.7);
  EXPECT_LT(mean_over_queries(inputs, [&](auto query) { return largest_weight(inputs, 2, query); }), 3.0 / 512);
}

// The first head is the example of docs/numerics.md; 60 heads include the designed ones and drawn ones.
TEST(Data, AdversarialScoresAndValuesAreThoseOfTheDesign) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::e4m3}) {
    const AttentionProblem problem{.batch = 1, .heads = 60, .seq_len = 2, .seq_len_kv = 96, .dtype = dtype};
    const Inputs inputs = make_inputs(problem, Distribution::adversarial, Packing::separate, 7);
    for (std::int64_t head = 0; head < 60; ++head) {
      const auto keys = adversarial_keys(head, 96, dtype, 7);
      const auto S = scores(inputs, 0, head, 1);
      for (std::int64_t key = 0; key < 96; ++key) {
        const double log2_weight = S[key] * std::numbers::log2e;
        // For e4m3 the smallest elements of a row are below its range.
        EXPECT_NEAR(log2_weight, keys[key].log2_weight,
                    std::abs(keys[key].log2_weight) * 1e-6 + (dtype == Dtype::e4m3 ? 0.01 : 1e-6))
            << head << ' ' << key;
        EXPECT_EQ(element_to_float(dtype, inputs.V_row(0, head, key)[5]), keys[key].value);
      }
    }
  }
  const auto keys = adversarial_keys(0, 512, Dtype::fp16, 0);
  EXPECT_EQ(
      std::ranges::count_if(keys, [](const DesignedKey& key) { return key.log2_weight == -5.9 && key.value == 0; }), 4);
  EXPECT_EQ(
      std::ranges::count_if(keys, [](const DesignedKey& key) { return key.log2_weight == -26 && key.value == 1; }),
      508);
}

// In versions with 16 or 32 rows per warp, some warps have zero queries in one half of their rows, and some in the other.
TEST(Data, AdversarialQueriesAreZeroInSomeHalvesOfAnMma) {
  const AttentionProblem problem{.batch = 1, .heads = 14, .seq_len = 128, .seq_len_kv = 96, .dtype = Dtype::fp16};
  const Inputs inputs = make_inputs(problem, Distribution::adversarial, Packing::separate, 7);
  for (std::int64_t head = 0; head < 14; ++head) {
    const bool all_equal = head == 9 || head == 10;
    for (const std::int64_t rows : {16, 32}) {
      std::set<std::pair<bool, bool>> halves;  // whether any row of the warp's first and second halves is not zero
      for (std::int64_t first = 0; first < 128; first += rows) {
        bool difficult[2] = {};
        for (std::int64_t row = first; row < first + rows; ++row)
          difficult[row / 8 % 2] |= element_to_float(Dtype::fp16, inputs.Q_row(0, head, row)[0]) != 0;
        halves.emplace(difficult[0], difficult[1]);
      }
      EXPECT_TRUE(halves.contains({true, true}));
      EXPECT_EQ(halves.contains({true, false}), all_equal) << head;
      EXPECT_EQ(halves.contains({false, true}), all_equal) << head;
    }
  }
}

// If all values have small weights, no weight of a drawn row is 2^-25 of its maximum, which is a tie in fp16.
TEST(Data, DrawnWeightsThatCountAreNoTies) {
  std::int64_t rows_of_small_weights = 0;
  for (std::int64_t head = kDesignedHeads; head < 2000; ++head) {
    const auto keys = adversarial_keys(head, 384, Dtype::fp16, 3);
    double largest = -INFINITY, largest_with_value = -INFINITY;
    for (const DesignedKey& key : keys) {
      largest = std::max(largest, key.log2_weight);
      if (key.value != 0) largest_with_value = std::max(largest_with_value, key.log2_weight);
    }
    if (largest_with_value - largest > -20) continue;
    ++rows_of_small_weights;
    for (const DesignedKey& key : keys) ASSERT_NE(key.log2_weight - largest, -25) << head;
  }
  EXPECT_GT(rows_of_small_weights, 500);
}

// Two heads of Q in one group share their vectors, which are K's.
TEST(Data, DirectionsBelongToTheHeadsOfK) {
  AttentionProblem grouped = kLong;
  grouped.heads = 4;
  grouped.kv_heads = 2;
  const Inputs inputs = make_inputs(grouped, Distribution::four_sinks, Packing::separate, 7);
  for (std::int64_t head = 0; head < 4; ++head)
    EXPECT_GT(mean_over_queries(inputs, [&](auto query) { return weight_of_first_four(inputs, head, query); }), 0.7);
}

TEST(Elements, RoundToNearestEven) {
  EXPECT_EQ(element_from_float(Dtype::fp16, 1.0f), 0x3c00);
  EXPECT_EQ(element_from_float(Dtype::fp16, 1 + 0x1p-11f), 0x3c00);      // a tie goes to the even neighbour, down
  EXPECT_EQ(element_from_float(Dtype::fp16, 1 + 3 * 0x1p-11f), 0x3c02);  // and up
  EXPECT_EQ(element_from_float(Dtype::bf16, 1.0f), 0x3f80);
  EXPECT_EQ(element_from_float(Dtype::bf16, 1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(element_from_float(Dtype::bf16, 1 + 3 * 0x1p-8f), 0x3f82);
}

TEST(Elements, EveryFiniteElementSurvivesTheWayToFloatAndBack) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (int bits = 0; bits < 0x10000; ++bits) {
      if (is_finite(dtype, bits))
        ASSERT_EQ(element_from_float(dtype, element_to_float(dtype, bits)), bits);
      else
        ASSERT_FALSE(std::isfinite(element_to_float(dtype, bits)));
    }
}

TEST(Elements, UlpIsTheDistanceToTheNextElement) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (int bits = 0; is_finite(dtype, bits + 1); ++bits) {
      const double x = element_to_float(dtype, bits), next = element_to_float(dtype, bits + 1);
      ASSERT_EQ(ulp(dtype, x), next - x) << x;
      ASSERT_EQ(ulp(dtype, -x), next - x) << x;
    }
}

TEST(ParallelFor, DoesEachPieceOnceAndReportsTheEnd) {
  std::vector<int> counts(1000);
  std::int64_t last_done = -1;
  parallel_for(
      1000, [&](std::int64_t i) { ++counts[i]; }, [&](std::int64_t done, std::int64_t) { last_done = done; }, 4);
  EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
  EXPECT_EQ(last_done, 1000);
}

TEST(ParallelFor, ThrowsWhatTheWorkThrows) {
  const auto work = [](std::int64_t i) {
    if (i == 500) throw std::runtime_error("piece 500");
  };
  EXPECT_THROW(parallel_for(1000, work, {}, 4), std::runtime_error);
}

}  // namespace
}  // namespace flash_ladder
