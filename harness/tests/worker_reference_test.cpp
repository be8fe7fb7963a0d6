#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "philox.h"
#include "problem/problem.h"
#include "worker/reference.h"
#include "worker/reference_cache.h"

namespace flash_ladder {
namespace {

// Inputs with elements computed by a function of (tensor 0 to 2, batch, head, row, column).
template <typename F>
Inputs inputs_from(const AttentionProblem& problem, F element) {
  Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 0);
  const TensorLayout* layouts[] = {&inputs.Q, &inputs.K, &inputs.V};
  for (int tensor = 0; tensor < 3; ++tensor)
    for (std::int64_t batch = 0; batch < problem.batch; ++batch)
      for (std::int64_t head = 0; head < (tensor == 0 ? problem.heads : num_kv_heads(problem)); ++head)
        for (std::int64_t row = 0; row < (tensor == 0 ? num_queries(problem, batch) : num_keys(problem, batch)); ++row)
          for (std::int64_t d = 0; d < (tensor == 2 ? value_head_dim(problem) : problem.head_dim); ++d)
            inputs.buffers[tensor].data()[layouts[tensor]->row(batch, head, row) + d] =
                element_from_float(problem.dtype, element(tensor, batch, head, row, d));
  return inputs;
}

RowSelection every_row(const AttentionProblem& problem) { return {.seq_len = problem.seq_len, .tile = 1, .seed = 0}; }

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(Reference, OneQueryAndTwoKeysByHand) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 2, .head_dim = 2};
  const float values[3][2][2] = {{{2, 0}, {}},      // the query
                                 {{1, 0}, {0, 0}},  // keys: scores 2 / sqrt(2) and 0
                                 {{1, 0}, {0, 4}}};
  const Inputs inputs = inputs_from(
      problem, [&](int tensor, auto, auto, std::int64_t row, std::int64_t d) { return values[tensor][row][d]; });
  const Reference reference = make_reference(inputs, every_row(problem));
  // P = 1 and exp(-sqrt(2)) = 0.2431167, divided by their sum.
  EXPECT_NEAR(reference.output[0], 0.8044297, 1e-7);
  EXPECT_NEAR(reference.output[1], 4 * 0.1955703, 4e-7);
  EXPECT_NEAR(reference.log_sum_exp[0], 1.4142136 + 0.2176216, 1e-7);  // m + log of that sum
}

// Keys with scores of 2 / sqrt(2) and 0 for every query, as above; V is (1, 0) and (0, 4).
std::vector<double> causal_by_hand(std::int64_t seq_len) {
  const AttentionProblem problem{
      .batch = 1, .heads = 1, .seq_len = seq_len, .seq_len_kv = 2, .head_dim = 2, .causal = true};
  const float K[2][2] = {{1, 0}, {0, 0}}, V[2][2] = {{1, 0}, {0, 4}};
  const Inputs inputs = inputs_from(problem, [&](int tensor, auto, auto, std::int64_t row, std::int64_t d) {
    return tensor == 0 ? (d == 0 ? 2.0f : 0.0f) : tensor == 1 ? K[row][d] : V[row][d];
  });
  return make_reference(inputs, every_row(problem)).output;
}

TEST(Reference, CausalByHand) {
  // As many queries as keys: the first sees one key, whatever its score.
  const auto square = causal_by_hand(2);
  EXPECT_EQ(square[0], 1);
  EXPECT_EQ(square[1], 0);
  EXPECT_NEAR(square[2], 0.8044297, 1e-7);
  EXPECT_NEAR(square[3], 4 * 0.1955703, 4e-7);
  // Fewer queries: the only one sees both keys.
  const auto fewer = causal_by_hand(1);
  EXPECT_NEAR(fewer[0], 0.8044297, 1e-7);
  EXPECT_NEAR(fewer[1], 4 * 0.1955703, 4e-7);
  // More queries: the first two see no key, and are 0.
  const auto more = causal_by_hand(4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(more[i], 0) << i;
  EXPECT_EQ(more[4], 1);
  EXPECT_EQ(more[5], 0);
  EXPECT_NEAR(more[6], 0.8044297, 1e-7);
  EXPECT_NEAR(more[7], 4 * 0.1955703, 4e-7);
}

// With Q = 0 all keys that a query sees have equal weights, and V is the number of the key: the mean of 0 … n - 1 is
// (n - 1) / 2. Keys are processed 64 at a time, and none of these lengths is a multiple.
TEST(Reference, LengthsThatAreNoMultiplesByHand) {
  for (const std::int64_t seq_len_kv : {1, 3, 63, 65, 129}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << seq_len_kv << " keys" << (causal ? ", causal" : ""));
      const AttentionProblem problem{
          .batch = 1, .heads = 1, .seq_len = 67, .seq_len_kv = seq_len_kv, .head_dim = 1, .causal = causal};
      const Inputs inputs = inputs_from(problem, [](int tensor, auto, auto, std::int64_t row, auto) {
        return tensor == 2 ? static_cast<float>(row) : 0.0f;
      });
      const Reference reference = make_reference(inputs, every_row(problem));
      for (std::int64_t query = 0; query < problem.seq_len; ++query) {
        const std::int64_t seen = causal ? query + 1 + seq_len_kv - problem.seq_len : seq_len_kv;
        EXPECT_NEAR(reference.output[query], seen > 0 ? (seen - 1) / 2.0 : 0.0, 1e-12) << query;
        if (seen > 0)
          EXPECT_NEAR(reference.log_sum_exp[query], std::log(seen), 1e-12) << query;
        else
          EXPECT_EQ(reference.log_sum_exp[query], -std::numeric_limits<double>::infinity()) << query;
      }
      EXPECT_TRUE(std::isfinite(reference.bound[0]));
      EXPECT_LT(reference.bound[0], 0.2);  // one ulp of fp16 at 64 is 1 / 16
    }
  }
}

// Four heads of Q, two of K and V. With Q = 0 a row is the mean of V: that of head h's rows, which are 10 h + 1 and 10
// h + 3.
TEST(Reference, GroupedHeadsByHand) {
  const AttentionProblem problem{.batch = 1, .heads = 4, .seq_len = 1, .seq_len_kv = 2, .head_dim = 1, .kv_heads = 2};
  const Inputs inputs = inputs_from(problem, [](int tensor, auto, std::int64_t head, std::int64_t row, auto) {
    return tensor == 2 ? static_cast<float>(10 * head + 1 + 2 * row) : 0.0f;
  });
  EXPECT_EQ(make_reference(inputs, every_row(problem)).output, (std::vector<double>{2, 2, 12, 12}));
}

// As above, keys have equal weights, and V is the number of the key.
TEST(Reference, WindowsByHand) {
  const auto rows = [](std::int64_t seq_len, std::int64_t seq_len_kv, std::int64_t left, std::int64_t right,
                       bool causal) {
    const AttentionProblem problem{.batch = 1,
                                   .heads = 1,
                                   .seq_len = seq_len,
                                   .seq_len_kv = seq_len_kv,
                                   .head_dim = 1,
                                   .causal = causal,
                                   .window_left = left,
                                   .window_right = right};
    const Inputs inputs = inputs_from(problem, [](int tensor, auto, auto, std::int64_t row, auto) {
      return tensor == 2 ? static_cast<float>(row) : 0.0f;
    });
    return make_reference(inputs, every_row(problem)).output;
  };
  using Rows = std::vector<double>;
  EXPECT_EQ(rows(4, 4, 1, 1, false), (Rows{0.5, 1, 2, 2.5}));
  EXPECT_EQ(rows(4, 4, 1, 1, true), (Rows{0, 0.5, 1.5, 2.5}));
  EXPECT_EQ(rows(4, 4, 0, 0, false), (Rows{0, 1, 2, 3}));
  EXPECT_EQ(rows(2, 5, 1, 1, false), (Rows{3, 3.5}));             // keys 2 to 4, and 3 and 4
  EXPECT_EQ(rows(5, 2, 1, 1, false), (Rows{0, 0, 0, 0.5, 0.5}));  // no key, no key, key 0, both, both
  EXPECT_EQ(rows(4, 4, 0, 1, false), (Rows{0.5, 1.5, 2.5, 3}));
  EXPECT_EQ(rows(4, 4, kNoWindow, 1, false), (Rows{0.5, 1, 1.5, 1.5}));
  EXPECT_EQ(rows(4, 4, 1, kNoWindow, false), (Rows{1.5, 1.5, 2, 2.5}));
}

// Two sequences in a batch, one with 3 queries and 2 keys, one with 1 query and 3 keys. Padding, which is NaN, is not read.
TEST(Reference, SequencesOfTheirOwnLengthsByHand) {
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(causal ? "causal" : "not causal");
    const AttentionProblem problem{.batch = 2,
                                   .heads = 1,
                                   .seq_len = 4,
                                   .seq_len_kv = 3,
                                   .head_dim = 1,
                                   .causal = causal,
                                   .lengths = {3, 1},
                                   .lengths_kv = {2, 3}};
    const Inputs inputs = inputs_from(problem, [](int tensor, std::int64_t batch, auto, std::int64_t row, auto) {
      return tensor == 2 ? static_cast<float>(10 * batch + row) : 0.0f;
    });
    EXPECT_TRUE(std::isnan(element_to_float(problem.dtype, *inputs.V_row(0, 0, 2))));
    const Reference reference = make_reference(inputs, every_row(problem));
    const std::vector<double> whole{0.5, 0.5, 0.5, 0, 11, 0, 0, 0}, masked{0, 0, 0.5, 0, 11, 0, 0, 0};
    EXPECT_EQ(reference.output, causal ? masked : whole);
    for (const double bound : reference.bound) EXPECT_TRUE(std::isfinite(bound));
  }
  const AttentionProblem nothing{
      .batch = 2, .heads = 1, .seq_len = 2, .seq_len_kv = 2, .head_dim = 1, .lengths = {0, 2}, .lengths_kv = {2, 0}};
  const Inputs inputs = make_inputs(nothing, Distribution::normal, Packing::separate, 1);
  EXPECT_EQ(make_reference(inputs, every_row(nothing)).output, (std::vector<double>{0, 0, 0, 0}));
}

// Two sequences, of 2 and 1 queries and of 1 and 3 keys: with Q = 0 a row is the mean of its sequence's V.
TEST(Reference, PackedSequencesByHand) {
  const AttentionProblem problem{.batch = 2,
                                 .heads = 1,
                                 .seq_len = 2,
                                 .seq_len_kv = 3,
                                 .head_dim = 1,
                                 .lengths = {2, 1},
                                 .lengths_kv = {1, 3},
                                 .packed = true};
  const Inputs inputs = inputs_from(problem, [](int tensor, std::int64_t batch, auto, std::int64_t row, auto) {
    return tensor == 2 ? static_cast<float>(10 * batch + row + 1) : 0.0f;
  });
  EXPECT_EQ(inputs.V_row(0, 0, 1), inputs.V_row(1, 0, 0)) << "one after the other";
  const Reference reference = make_reference(inputs, every_row(problem));
  EXPECT_EQ(reference.output, (std::vector<double>{1, 1, 12, 0}));
}

// One query that is aligned with the last of three keys. V is the number of the key.
TEST(Reference, ChangesOfTheScoresByHand) {
  AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 3, .head_dim = 1};
  const auto attend = [&](float q, float slope, float sink) {
    Inputs inputs = inputs_from(problem, [&](int tensor, auto, auto, std::int64_t row, auto) {
      return tensor == 0 ? q : tensor == 1 ? static_cast<float>(row) : static_cast<float>(row + 1);
    });
    inputs.alibi_slopes = {slope};
    inputs.sinks = {sink};
    return attend_rows(inputs, 0, 0, std::vector<std::int64_t>{0});
  };
  problem.alibi = true;  // weights 1/4, 1/2 and 1 of 7/4
  const AttendedRows near = attend(0, std::log(2.0f), 0);
  EXPECT_NEAR(near.exact[0], (1 * 0.25 + 2 * 0.5 + 3) / 1.75, 1e-6);
  EXPECT_NEAR(near.exact_log_sum_exp[0], std::log(1.75), 1e-6);
  problem.alibi = false;
  problem.sinks = true;  // three keys with weight 1, and a sink with weight 5
  const AttendedRows sunk = attend(0, 0, std::log(5.0f));
  EXPECT_NEAR(sunk.exact[0], 6.0 / 8, 1e-6);
  EXPECT_NEAR(sunk.exact_log_sum_exp[0], std::log(8.0), 1e-6);
  problem.sinks = false;
  problem.softcap = 2;  // scores 0, 1000 and 2000 become 0, 2 and 2
  const AttendedRows capped = attend(1000, 0, 0);
  EXPECT_NEAR(capped.exact_log_sum_exp[0], std::log(1 + 2 * std::exp(2.0)), 1e-12);
}

// Four keys of weight 1/4, of which the mask drops some; V is the power of two of the key. The mask is that of the second head.
TEST(Reference, DropoutByHand) {
  AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 1, .seq_len_kv = 4, .head_dim = 1};
  problem.dropout_p = 0.5;
  problem.dropout_seed = 11;
  const Inputs inputs = inputs_from(problem, [](int tensor, auto, auto, std::int64_t row, auto) {
    return tensor == 2 ? static_cast<float>(1 << row) : 0.0f;
  });
  double expected = 0;
  int kept = 0;
  for (int key = 0; key < 4; ++key)
    if (is_kept(11, 0, 1, 0, key, 128)) {
      expected += (1 << key) / 4.0 * 2;
      ++kept;
    }
  ASSERT_TRUE(kept > 0 && kept < 4) << "another seed";
  const AttendedRows rows = attend_rows(inputs, 0, 1, std::vector<std::int64_t>{0});
  EXPECT_NEAR(rows.exact[0], expected, 1e-6);
  EXPECT_NEAR(rows.base[0], expected, 1e-6);
  EXPECT_NEAR(rows.exact_log_sum_exp[0], std::log(4.0), 1e-6) << "of all weights";
}

TEST(Reference, ScoresBeyondTheRangeOfExpDoNotOverflow) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 2, .head_dim = 2};
  const float values[3][2][2] = {{{100, 0}, {}}, {{100, 0}, {-100, 0}}, {{1, 2}, {3, 4}}};  // scores of ±7071
  const Inputs inputs = inputs_from(
      problem, [&](int tensor, auto, auto, std::int64_t row, std::int64_t d) { return values[tensor][row][d]; });
  const Reference reference = make_reference(inputs, every_row(problem));
  EXPECT_EQ(reference.output[0], 1);
  EXPECT_EQ(reference.output[1], 2);
}

// Attention implemented literally, in double.
std::vector<double> naive_attention(const Inputs& inputs) {
  const auto& [batch_size, heads, max_seq_len, max_seq_len_kv, head_dim, dtype, head_dim_v, causal, kv_heads,
               window_left, window_right, lengths, lengths_kv, packed, page_size, append, rotary_dim,
               rotary_interleaved, fp8_cache, softcap, alibi, sinks, dropout_p, dropout_seed, dropout_offset] =
      inputs.problem;
  const Dtype type = dtype;
  const std::int64_t columns = head_dim_v == 0 ? head_dim : head_dim_v, dims = rotary_dim;
  const bool interleaved = rotary_interleaved;
  // Element d of a row that is rotated by the angles of row `position`.
  const auto rotated = [type, dims, interleaved](const std::uint16_t* row, std::int64_t d, std::int64_t position) {
    const auto element = [&](std::int64_t i) { return double{element_to_float(type, row[i])}; };
    if (d >= dims) return element(d);
    const std::int64_t pair = interleaved ? d / 2 : d % (dims / 2);
    const bool is_second = interleaved ? d % 2 == 1 : d >= dims / 2;
    const double angle = position * std::pow(10000.0, -2.0 * pair / dims);
    const auto rounded = [&](double x) { return double{element_to_float(type, element_from_float(type, x))}; };
    const double other = element(interleaved ? d ^ 1 : (d + dims / 2) % dims);
    return element(d) * rounded(std::cos(angle)) + (is_second ? 1 : -1) * other * rounded(std::sin(angle));
  };
  std::vector<double> O;
  for (std::int64_t batch = 0; batch < batch_size; ++batch)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t query = 0; query < max_seq_len; ++query) {
        const std::int64_t seq_len = lengths.empty() ? max_seq_len : lengths[batch];
        const std::int64_t seq_len_kv = lengths_kv.empty() ? max_seq_len_kv : lengths_kv[batch];
        if (query >= seq_len) {  // a packed sequence has no such row, and the reference 0
          O.insert(O.end(), columns, 0.0);
          continue;
        }
        std::vector<double> P(seq_len_kv);
        for (std::int64_t key = 0; key < seq_len_kv; ++key) {
          double score = 0;
          for (std::int64_t d = 0; d < head_dim; ++d)
            score += rotated(inputs.Q_row(batch, head, query), d, seq_len_kv - 1) *
                     (key == seq_len_kv - 1 ? rotated(inputs.K_row(batch, head, key), d, key)
                                            : element_to_float(dtype, inputs.K_row(batch, head, key)[d]));
          const std::int64_t distance = key - (query + seq_len_kv - seq_len);
          const bool seen = (!causal || distance <= 0) && (window_left < 0 || -distance <= window_left) &&
                            (window_right < 0 || distance <= window_right);
          score /= std::sqrt(static_cast<double>(head_dim));
          if (softcap > 0) score = softcap * std::tanh(score / softcap);
          if (alibi) score -= double{inputs.alibi_slopes[head]} * std::abs(distance);
          P[key] = seen ? std::exp(score) : 0;
        }
        double sum = std::accumulate(P.begin(), P.end(), 0.0);
        if (sinks && sum > 0) sum += std::exp(double{inputs.sinks[head]});
        const int keep = dropout_keep(dropout_p);
        for (std::int64_t key = 0; key < seq_len_kv && keep < 256; ++key)
          P[key] *= is_kept(dropout_seed, dropout_offset, batch * heads + head, query, key, keep) ? 256.0 / keep : 0;
        for (std::int64_t d = 0; d < columns; ++d) {
          double weighted = 0;
          for (std::int64_t key = 0; key < seq_len_kv; ++key)
            weighted += P[key] * element_to_float(dtype, inputs.V_row(batch, head, key)[d]);
          O.push_back(sum > 0 ? weighted / sum : 0);
        }
      }
  return O;
}

TEST(Reference, AgreesWithThreeNestedLoops) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const std::int64_t seq_len_kv : {1, 31, 64, 97})
      for (const std::int64_t head_dim : {24, 128})
        for (const bool causal : {false, true}) {
          const AttentionProblem problem{.batch = 2,
                                         .heads = 3,
                                         .seq_len = 70,
                                         .seq_len_kv = seq_len_kv,
                                         .head_dim = head_dim,
                                         .dtype = dtype,
                                         .causal = causal};
          const Inputs inputs = make_inputs(problem, Distribution::offset_mean, Packing::separate, 3);
          // The scale is a float, which differs by 6e-8 from the one in the naive loop.
          EXPECT_LT(largest_difference(make_reference(inputs, every_row(problem)).output, naive_attention(inputs)),
                    1e-6);
        }
  const AttentionProblem all{.batch = 3,
                             .heads = 6,
                             .seq_len = 70,
                             .seq_len_kv = 97,
                             .head_dim = 24,
                             .causal = true,
                             .kv_heads = 2,
                             .window_left = 20,
                             .window_right = 9,
                             .lengths = {70, 33, 1},
                             .lengths_kv = {65, 20, 97}};
  for (int which = 0; which < 16; ++which) {
    AttentionProblem problem = all;
    problem.causal = which % 2 == 1;
    problem.packed = which / 2 % 2 == 1;
    if (which >= 4) problem.softcap = which < 8 ? 0 : 1.5;
    problem.alibi = problem.sinks = which % 8 >= 4;
    if (which % 4 < 2) problem.dropout_p = 0.3;
    problem.dropout_seed = which;
    problem.head_dim_v = which % 3 * 16;  // 0 is that of Q and K, and the others are less and more
    const Inputs inputs = make_inputs(problem, Distribution::offset_mean, Packing::separate, 3);
    EXPECT_LT(largest_difference(make_reference(inputs, every_row(problem)).output, naive_attention(inputs)), 1e-6);
  }
}

TEST(Reference, RotatesQueriesAndTheNewKeyByItsPosition) {
  AttentionProblem problem{.batch = 3, .heads = 6, .seq_len = 3, .seq_len_kv = 97, .head_dim = 40, .kv_heads = 2};
  problem.lengths_kv = {65, 1, 97};
  problem.append = true;
  std::vector<double> not_rotated;
  for (const auto& [rotary_dim, interleaved] :
       {std::pair{0, false}, {16, false}, {16, true}, {32, false}, {32, true}}) {
    problem.rotary_dim = rotary_dim;
    problem.rotary_interleaved = interleaved;
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
      problem.dtype = dtype;
      const Inputs inputs = make_inputs(problem, Distribution::offset_mean, Packing::separate, 3);
      const std::vector<double> output = make_reference(inputs, every_row(problem)).output;
      EXPECT_LT(largest_difference(output, naive_attention(inputs)), 1e-6) << describe(problem);
      if (rotary_dim == 0) not_rotated = output;
    }
    if (rotary_dim != 0) {
      const Inputs inputs = make_inputs(problem, Distribution::offset_mean, Packing::separate, 3);
      EXPECT_GT(largest_difference(make_reference(inputs, every_row(problem)).output, not_rotated), 1e-3);
    }
  }
}

TEST(Reference, ReadsPackedInputs) {
  AttentionProblem problem{.batch = 2, .heads = 3, .seq_len = 64, .seq_len_kv = 64};
  for (const std::int64_t head_dim_v : {0, 48, 192}) {
    problem.head_dim_v = head_dim_v;
    const auto separate =
        make_reference(make_inputs(problem, Distribution::normal, Packing::separate, 3), every_row(problem));
    const auto packed =
        make_reference(make_inputs(problem, Distribution::normal, Packing::packed_qkv, 3), every_row(problem));
    EXPECT_EQ(separate.output, packed.output);
    EXPECT_EQ(separate.bound, packed.bound);
  }
}

TEST(Reference, DoesNotDependOnTheNumberOfThreads) {
  const AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 200, .seq_len_kv = 96};
  const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 3);
  const auto one = make_reference(inputs, every_row(problem), {}, 1),
             five = make_reference(inputs, every_row(problem), {}, 5);
  EXPECT_EQ(one.output, five.output);
  EXPECT_EQ(one.bound, five.bound);
}

TEST(Reference, AConstantAddedToAllScoresOfARowChangesNothing) {
  const AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 16, .seq_len_kv = 80};
  // Multiples of 1/8, which the type represents exactly even after the shift.
  const auto element = [](float shift) {
    return [shift](int tensor, auto, std::int64_t head, std::int64_t row, std::int64_t d) {
      const float x = static_cast<float>((row * 7 + d * 5 + head * 3 + tensor) % 17) / 8 - 1;
      return tensor == 1 ? x + shift : x;  // the same vector added to every key adds the same to every score of a row
    };
  };
  const auto plain = make_reference(inputs_from(problem, element(0)), every_row(problem));
  const auto shifted = make_reference(inputs_from(problem, element(2)), every_row(problem));
  EXPECT_LT(largest_difference(plain.output, shifted.output), 1e-12);
}

TEST(Reference, TheOrderOfTheKeysDoesNotMatter) {
  const AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 16, .seq_len_kv = 80};
  const auto element = [&](bool reversed) {
    return [&, reversed](int tensor, auto, std::int64_t head, std::int64_t row, std::int64_t d) {
      if (reversed && tensor > 0) row = problem.seq_len_kv - 1 - row;
      return static_cast<float>((row * 7 + d * 5 + head * 3 + tensor) % 17) / 8 - 1;
    };
  };
  const auto forward = make_reference(inputs_from(problem, element(false)), every_row(problem));
  const auto backward = make_reference(inputs_from(problem, element(true)), every_row(problem));
  EXPECT_LT(largest_difference(forward.output, backward.output), 1e-12);
}

TEST(Reference, EqualValuesAreTheirOwnMean) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 8, .seq_len_kv = 70};
  const auto reference =
      make_reference(inputs_from(problem,
                                 [](int tensor, auto, auto, std::int64_t row, std::int64_t d) {
                                   return tensor == 2 ? 1.5f : static_cast<float>((row * 7 + d) % 13) / 4;
                                 }),
                     every_row(problem));
  for (const double x : reference.output) EXPECT_NEAR(x, 1.5, 1e-12);
}

TEST(Reference, BaseIsAsCloseAsItsRounding) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const Distribution distribution :
         {Distribution::normal, Distribution::offset_mean, Distribution::large_logit, Distribution::ramp}) {
      const AttentionProblem problem{.batch = 2, .heads = 3, .seq_len = 128, .seq_len_kv = 192, .dtype = dtype};
      const Inputs inputs = make_inputs(problem, distribution, Packing::separate, 3);
      const Reference reference = make_reference(inputs, every_row(problem));
      for (std::int64_t batch = 0; batch < problem.batch; ++batch)
        for (std::int64_t head = 0; head < problem.heads; ++head) {
          const double* output = reference.row(batch, head, 0);
          double largest = 0;
          for (std::int64_t i = 0; i < problem.seq_len * problem.head_dim; ++i)
            largest = std::max(largest, std::abs(output[i]));
          // At least one ulp; at most twice the rounding of the output and of P, the latter weighted by values up to 5,
          // and one ulp.
          const double one_ulp = ulp(dtype, largest);
          EXPECT_GE(reference.bound[batch * problem.heads + head], one_ulp);
          EXPECT_LE(reference.bound[batch * problem.heads + head], 2 * one_ulp + 2 * 5 * ulp(dtype, 0.5) + one_ulp)
              << to_string(distribution);
        }
    }
}

TEST(Reference, BoundIsTwiceTheErrorOfBaseAndOneUlp) {
  AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 96, .seq_len_kv = 128, .dtype = Dtype::bf16};
  for (const double softcap : {0.0, 50.0}) {
    problem.softcap = softcap;
    const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 3);
    const Reference reference = make_reference(inputs, every_row(problem));
    std::vector<std::int64_t> rows(problem.seq_len);
    std::iota(rows.begin(), rows.end(), 0);
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const AttendedRows attended = attend_rows(inputs, 0, head, rows);
      double error = 0, largest = 0;
      for (std::size_t i = 0; i < attended.exact.size(); ++i) {
        error = std::max(error, std::abs(attended.base[i] - attended.exact[i]));
        largest = std::max(largest, std::abs(attended.exact[i]));
      }
      EXPECT_EQ(reference.bound[head], 2 * error + ulp(Dtype::bf16, largest));
      double log_error = 0, log = 1;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        log_error = std::max(log_error, std::abs(attended.base_log_sum_exp[i] - attended.exact_log_sum_exp[i]));
        log = std::max(log, std::abs(attended.exact_log_sum_exp[i]));
      }
      EXPECT_EQ(reference.log_sum_exp_bound[head], 2 * log_error + std::ldexp(log, -18) + std::ldexp(softcap, -22));
      EXPECT_LT(reference.log_sum_exp_bound[head], 1e-4) << "a key of 128 with a thousandth of the mean weight";
    }
  }
}

TEST(RowSelection, HasOneRowInEveryTileOfEveryHead) {
  const RowSelection rows{.seq_len = 1000, .tile = 64, .seed = 5};
  ASSERT_EQ(rows.count(), 16);
  std::vector<std::int64_t> offsets;
  for (std::int64_t head = 0; head < 4; ++head)
    for (std::int64_t index = 0; index < rows.count(); ++index) {
      const std::int64_t row = rows.row(1, head, index);
      EXPECT_GE(row, index * 64);
      EXPECT_LT(row, std::min<std::int64_t>(1000, (index + 1) * 64));
      offsets.push_back(row % 64);
    }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  EXPECT_GT(offsets.size(), 30u);  // of 64 draws from 64
}

TEST(RowSelection, WithTilesOfOneIsEveryRow) {
  const RowSelection rows{.seq_len = 100, .tile = 1, .seed = 5};
  ASSERT_EQ(rows.count(), 100);
  for (std::int64_t index = 0; index < 100; ++index) EXPECT_EQ(rows.row(0, 0, index), index);
}

TEST(Reference, SelectedRowsAreThoseOfTheWhole) {
  const AttentionProblem problem{.batch = 2, .heads = 2, .seq_len = 256, .seq_len_kv = 64};
  const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 3);
  const RowSelection rows{.seq_len = 256, .tile = 64, .seed = 5};
  const Reference some = make_reference(inputs, rows), all = make_reference(inputs, every_row(problem));
  for (std::int64_t batch = 0; batch < 2; ++batch)
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t index = 0; index < rows.count(); ++index)
        EXPECT_TRUE(std::equal(some.row(batch, head, index), some.row(batch, head, index) + 128,
                               all.row(batch, head, rows.row(batch, head, index))));
}

class ReferenceCache : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    file_ = directory_ / reference_file_name("reference", problem_, Distribution::normal, rows_, 3);
    reference_ = make_reference(make_inputs(problem_, Distribution::normal, Packing::separate, 3), rows_);
    write_reference(file_, reference_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string bytes() const {
    std::ifstream stream(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void replace(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }

  const AttentionProblem problem_{.batch = 1, .heads = 2, .seq_len = 64, .seq_len_kv = 64};
  const RowSelection rows_{.seq_len = 64, .tile = 16, .seed = 3};
  std::filesystem::path directory_, file_;
  Reference reference_;
};

TEST_F(ReferenceCache, GivesBackWhatWasWritten) {
  const auto read = read_reference(file_, problem_, rows_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->output, reference_.output);
  EXPECT_EQ(read->bound, reference_.bound);
  EXPECT_EQ(read->log_sum_exp, reference_.log_sum_exp);
  EXPECT_EQ(read->log_sum_exp_bound, reference_.log_sum_exp_bound);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);  // no temporary file is left
}

TEST_F(ReferenceCache, DoesNotReadATruncatedFile) {
  replace(bytes().substr(0, bytes().size() / 2));
  EXPECT_FALSE(read_reference(file_, problem_, rows_));
}

TEST_F(ReferenceCache, DoesNotReadAFileWithOneBitChanged) {
  const std::string good = bytes();
  for (const std::size_t position : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[position] ^= 0x10;
    replace(bad);
    EXPECT_FALSE(read_reference(file_, problem_, rows_)) << position;
  }
  replace(good);
  EXPECT_TRUE(read_reference(file_, problem_, rows_));
}

TEST_F(ReferenceCache, DoesNotReadWhatIsNotThere) {
  EXPECT_FALSE(read_reference(directory_ / "other", problem_, rows_));
}

TEST_F(ReferenceCache, AnUnwritableDirectoryIsNoException) {
  EXPECT_FALSE(write_reference(directory_ / "none" / "file", reference_));
}

TEST_F(ReferenceCache, NamesDifferInAllThatMatters) {
  const auto name = [](const AttentionProblem& problem, Distribution distribution, std::int64_t tile,
                       std::uint64_t seed) {
    return reference_file_name("reference", problem, distribution,
                               {.seq_len = problem.seq_len, .tile = tile, .seed = seed}, seed);
  };
  AttentionProblem bf16 = problem_, longer = problem_;
  bf16.dtype = Dtype::bf16;
  longer.seq_len_kv = 128;
  const std::string names[] = {name(problem_, Distribution::normal, 16, 3), name(problem_, Distribution::ramp, 16, 3),
                               name(problem_, Distribution::normal, 64, 3), name(problem_, Distribution::normal, 16, 4),
                               name(bf16, Distribution::normal, 16, 3),     name(longer, Distribution::normal, 16, 3)};
  for (const std::string& a : names) EXPECT_EQ(std::count(std::begin(names), std::end(names), a), 1) << a;
}

}  // namespace
}  // namespace flash_ladder
