// The reference of the backward track beside differences of the forward pass, which is computed by the formula, for every field that a
// backward problem may have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "philox.h"
#include "problem/problem.h"
#include "worker/gradients.h"
#include "worker/neighbours.h"

namespace flash_ladder {
namespace {

const AttentionProblem kProblem{.batch = 2, .heads = 2, .seq_len = 6, .seq_len_kv = 70, .head_dim = 40};

Inputs inputs_with_gradients(const AttentionProblem& problem, Distribution distribution = Distribution::normal,
                             Packing packing = Packing::separate) {
  Inputs inputs = make_inputs(problem, distribution, packing, 1);
  inputs.gradients = make_gradient_inputs(inputs, packing, OutputGradient::normal, 1);
  return inputs;
}

// Every row of dQ, dK and dV.
std::array<Reference, 3> all_rows(const Inputs& inputs) { return make_gradient_references(inputs, 1, 1); }

using Matrix = std::vector<std::vector<double>>;

Matrix rows_of(const Inputs& inputs,
               const std::uint16_t* (Inputs::*row)(std::int64_t, std::int64_t, std::int64_t) const, std::int64_t rows,
               std::int64_t batch, std::int64_t head) {
  Matrix matrix;
  std::vector<float> values(row == &Inputs::V_row ? value_head_dim(inputs.problem) : inputs.problem.head_dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    elements_to_float(inputs.problem.dtype, (inputs.*row)(batch, head, i), std::ssize(values), values.data());
    matrix.emplace_back(values.begin(), values.end());
  }
  return matrix;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Whether query i of a batch entry sees key j, as AttentionProblem says it.
bool is_visible(const AttentionProblem& problem, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const std::int64_t own_key = i + num_keys(problem, batch) - num_queries(problem, batch);
  return !(problem.causal && j > own_key) && !(problem.window_left != kNoWindow && j < own_key - problem.window_left) &&
         !(problem.window_right != kNoWindow && j > own_key + problem.window_right);
}

// The score of query i and key j.
double score(const Inputs& inputs, std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j,
             double product) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t own_key = i + num_keys(problem, batch) - num_queries(problem, batch);
  double S = inputs.scale() * product;
  if (problem.softcap > 0) S = problem.softcap * std::tanh(S / problem.softcap);
  if (problem.alibi) S -= double{inputs.alibi_slopes[head]} * static_cast<double>(std::abs(own_key - j));
  return S;
}

// O of one head in float64, by the formula, for any Q, K and V.
Matrix attention(const Inputs& inputs, std::int64_t batch, std::int64_t head, const Matrix& Q, const Matrix& K,
                 const Matrix& V) {
  const AttentionProblem& problem = inputs.problem;
  const int keep = dropout_keep(problem.dropout_p);
  Matrix O;
  for (std::size_t i = 0; i < Q.size(); ++i) {
    std::vector<double> o(value_head_dim(problem)), weights;
    double sum = 0;
    for (std::size_t j = 0; j < K.size(); ++j) {
      const double S = score(inputs, batch, head, i, j, dot(Q[i], K[j]));
      weights.push_back(is_visible(problem, batch, i, j) ? std::exp(S) : 0);
    }
    for (const double weight : weights) sum += weight;
    if (sum > 0 && problem.sinks) sum += std::exp(double{inputs.sinks[head]});
    for (std::size_t j = 0; j < K.size() && sum > 0; ++j) {
      const bool is_dropped =
          !is_kept(problem.dropout_seed, problem.dropout_offset, static_cast<int>(batch * problem.heads + head),
                   static_cast<int>(i), static_cast<int>(j), keep);
      for (std::size_t d = 0; d < o.size() && !is_dropped; ++d) o[d] += weights[j] / sum * 256 / keep * V[j][d];
    }
    O.push_back(o);
  }
  return O;
}

// K and V of a head, and then Q of each head that reads them.
std::vector<Matrix> tensors_of(const Inputs& inputs, std::int64_t batch, std::int64_t kv_head) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t sharing = problem.heads / num_kv_heads(problem), first = kv_head * sharing;
  const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
  std::vector<Matrix> found{rows_of(inputs, &Inputs::K_row, keys, batch, first),
                            rows_of(inputs, &Inputs::V_row, keys, batch, first)};
  for (std::int64_t i = 0; i < sharing; ++i)
    found.push_back(rows_of(inputs, &Inputs::Q_row, queries, batch, first + i));
  return found;
}

// The loss sum(dO ∘ O) of the heads that read one of K and V.
double loss_of(const Inputs& inputs, std::int64_t batch, std::int64_t kv_head, const std::vector<Matrix>& tensors) {
  const GradientInputs& given = *inputs.gradients;
  const std::int64_t sharing = std::ssize(tensors) - 2;
  double sum = 0;
  for (std::int64_t i = 0; i < sharing; ++i) {
    const Matrix O = attention(inputs, batch, kv_head * sharing + i, tensors[2 + i], tensors[0], tensors[1]);
    for (std::int64_t row = 0; row < std::ssize(O); ++row) {
      const std::uint16_t* dO = given.dO.data() + given.dO_layout.row(batch, kv_head * sharing + i, row);
      for (std::size_t d = 0; d < O[row].size(); ++d) sum += O[row][d] * element_to_float(inputs.problem.dtype, dO[d]);
    }
  }
  return sum;
}

// The difference of the loss along a direction is the sum of the gradients along it.
void agree_with_differences(const AttentionProblem& problem, Distribution distribution = Distribution::normal) {
  SCOPED_TRACE(describe(problem) + ", " + to_string(distribution));
  const Inputs inputs = inputs_with_gradients(problem, distribution);
  const auto references = all_rows(inputs);
  const Inputs directions = make_inputs(problem, Distribution::normal, Packing::separate, 99);
  const std::int64_t sharing = problem.heads / num_kv_heads(problem);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t kv_head = 0; kv_head < num_kv_heads(problem); ++kv_head) {
      const auto at = tensors_of(inputs, batch, kv_head), along = tensors_of(directions, batch, kv_head);
      const auto loss = [&](std::size_t tensor, double step) {
        auto moved = at;
        for (std::size_t row = 0; row < moved[tensor].size(); ++row)
          for (std::size_t d = 0; d < moved[tensor][row].size(); ++d)
            moved[tensor][row][d] += step * along[tensor][row][d];
        return loss_of(inputs, batch, kv_head, moved);
      };
      for (std::size_t tensor = 0; tensor < at.size(); ++tensor) {
        const bool is_query = tensor >= 2;
        const Reference& reference = references[is_query ? 0 : tensor + 1];
        const std::int64_t head = is_query ? kv_head * sharing + static_cast<std::int64_t>(tensor) - 2 : kv_head;
        double expected = 0, size = 0;
        for (std::int64_t row = 0; row < std::ssize(at[tensor]); ++row)
          for (std::size_t d = 0; d < at[tensor][row].size(); ++d) {
            const double term = reference.row(batch, head, row)[d] * along[tensor][row][d];
            expected += term;
            size += std::abs(term);
          }
        constexpr double kStep = 1e-4;
        const double difference = (loss(tensor, kStep) - loss(tensor, -kStep)) / (2 * kStep);
        EXPECT_NEAR(difference, expected, 1e-5 * size + 1e-9) << "batch " << batch << ", tensor " << tensor;
      }
    }
}

TEST(Gradients, AgreeWithDifferencesOfTheForwardPassInRandomDirections) {
  for (const Distribution distribution :
       {Distribution::normal, Distribution::ramp, Distribution::q_times_3, Distribution::equal_keys})
    agree_with_differences(kProblem, distribution);
}

TEST(Gradients, AgreeWithDifferencesWhereHeadsShareKAndV) {
  AttentionProblem problem = kProblem;
  problem.heads = 6;
  problem.kv_heads = 2;
  agree_with_differences(problem);
  problem.kv_heads = 1;
  problem.causal = true;
  agree_with_differences(problem);
}

// Also where a query sees no key, where no query sees a key, and where a block of 64 keys or queries is hidden.
TEST(Gradients, AgreeWithDifferencesUnderMasks) {
  AttentionProblem problem = kProblem;
  problem.causal = true;
  agree_with_differences(problem);
  problem.seq_len = 7;
  problem.seq_len_kv = 4;
  agree_with_differences(problem);
  problem.heads = problem.batch = 1;
  problem.seq_len = problem.seq_len_kv = 130;
  agree_with_differences(problem);
  problem.window_left = 3;
  agree_with_differences(problem);
  problem.causal = false;
  problem.window_right = 2;
  for (const auto& [queries, keys] : {std::pair{7, 7}, {2, 9}, {9, 2}}) {
    problem.seq_len = queries;
    problem.seq_len_kv = keys;
    agree_with_differences(problem);
  }
  problem.window_left = kNoWindow;
  agree_with_differences(problem);
}

// Three batch entries with as many keys as queries, more and fewer, one without queries, and one without keys.
AttentionProblem several_lengths() {
  return {.batch = 5,
          .heads = 2,
          .seq_len = 70,
          .seq_len_kv = 71,
          .head_dim = 40,
          .lengths = {9, 2, 70, 0, 3},
          .lengths_kv = {9, 71, 5, 4, 0}};
}

TEST(Gradients, AgreeWithDifferencesForSeveralLengths) {
  for (const bool packed : {false, true}) {
    AttentionProblem problem = several_lengths();
    problem.packed = packed;
    agree_with_differences(problem);
    problem.causal = true;
    problem.kv_heads = 1;
    agree_with_differences(problem);
    problem.causal = false;
    problem.window_left = 3;
    problem.window_right = 1;
    agree_with_differences(problem);
  }
}

TEST(Gradients, OfPaddingAreZeroAndItsInputsAreNotNumbers) {
  const AttentionProblem problem = several_lengths();
  const Inputs inputs = inputs_with_gradients(problem);
  const GradientInputs& given = *inputs.gradients;
  const auto references = all_rows(inputs);
  const auto is_zero = [&](const Reference& reference, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const double* elements = reference.row(batch, head, row);
    return std::all_of(elements, elements + problem.head_dim, [](double x) { return x == 0; });
  };
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      for (std::int64_t row = 0; row < problem.seq_len; ++row) {
        const bool is_padding = row >= problem.lengths[batch], sees_no_key = is_padding || batch == 4;
        const std::int64_t of_L = log_sum_exp_layout(problem).row(batch, head, row);
        EXPECT_EQ(of_L, (batch * problem.heads + head) * problem.seq_len + row);
        EXPECT_EQ(std::isinf(given.log_sum_exp[of_L]) && given.log_sum_exp[of_L] < 0, sees_no_key);
        for (const auto& [buffer, layout] :
             {std::pair{&given.dO, &given.dO_layout}, std::pair{&given.O, &given.O_layout}})
          EXPECT_NE(is_finite(problem.dtype, buffer->data()[layout->row(batch, head, row) + 7]), is_padding);
        EXPECT_EQ(is_zero(references[0], batch, head, row), sees_no_key) << batch << ' ' << row;
      }
      for (std::int64_t row = 0; row < problem.seq_len_kv; ++row)
        for (const std::size_t of_keys : {1, 2})
          EXPECT_EQ(is_zero(references[of_keys], batch, head, row), row >= problem.lengths_kv[batch] || batch == 3);
    }
}

// The numbers of each sequence are those of a batch entry as long: only their places differ.
TEST(Gradients, PackedSequencesHaveThoseOfPaddedOnes) {
  AttentionProblem problem = several_lengths();
  const Inputs padded = inputs_with_gradients(problem);
  problem.packed = true;
  const Inputs packed = inputs_with_gradients(problem);
  const auto expected = all_rows(padded), got = all_rows(packed);
  EXPECT_EQ(std::ssize(packed.gradients->log_sum_exp), 2 * 84);
  EXPECT_EQ(packed.gradients->dO.size(), 84 * 2 * 40);
  EXPECT_EQ(output_size(got[0].problem), 84 * 2 * 40);
  EXPECT_EQ(output_size(got[1].problem), 89 * 2 * 40);
  EXPECT_EQ(output_layout(got[2].problem).row(2, 1, 3), ((9 + 71 + 3) * 2 + 1) * 40);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      for (std::int64_t row = 0; row < problem.lengths[batch]; ++row)
        EXPECT_EQ(packed.gradients->log_sum_exp[log_sum_exp_layout(packed.problem).row(batch, head, row)],
                  padded.gradients->log_sum_exp[log_sum_exp_layout(padded.problem).row(batch, head, row)]);
      for (std::size_t which = 0; which < 3; ++which) {
        const std::int64_t rows = (which == 0 ? problem.lengths : problem.lengths_kv)[batch];
        for (std::int64_t i = 0; i < rows * problem.head_dim; ++i)
          EXPECT_EQ(got[which].row(batch, head, 0)[i], expected[which].row(batch, head, 0)[i]);
      }
    }
}

// With masks, heads that share K and V, and lengths; with large scores, of which most are near the cap, and small ones.
TEST(Gradients, AgreeWithDifferencesForChangesOfTheScores) {
  const auto all_of = [](AttentionProblem problem) {
    for (const double softcap : {0.0, 0.5, 20.0})
      for (const auto& [alibi, sinks] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        problem.softcap = softcap;
        problem.alibi = alibi;
        problem.sinks = sinks;
        agree_with_differences(problem, softcap > 1 ? Distribution::large_logit : Distribution::normal);
      }
  };
  all_of(kProblem);
  AttentionProblem problem = kProblem;
  problem.seq_len = 9;
  problem.seq_len_kv = 7;
  problem.causal = true;
  problem.kv_heads = 1;
  all_of(problem);
  all_of(several_lengths());
}

TEST(Gradients, AgreeWithDifferencesForDropout) {
  AttentionProblem problem = kProblem;
  problem.dropout_seed = 0x123456789abc;
  problem.dropout_offset = 3;
  for (const double p : {1.0 / 256, 0.5, 0.97}) {
    problem.dropout_p = p;
    agree_with_differences(problem);
  }
  problem.causal = true;
  problem.kv_heads = 1;
  problem.dropout_p = 0.25;
  agree_with_differences(problem);
  for (const bool packed : {false, true}) {
    problem = several_lengths();
    problem.packed = packed;
    problem.softcap = 2;
    problem.alibi = problem.sinks = true;
    problem.dropout_p = 0.25;
    agree_with_differences(problem);
  }
}

// Fewer elements in a row of V than in one of Q, and more, also than are computed at once.
TEST(Gradients, AgreeWithDifferencesForOtherSizesOfV) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{40, 24}, {24, 40}, {8, 72}}) {
    AttentionProblem problem = kProblem;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    agree_with_differences(problem);
    problem.dropout_p = 0.5;
    problem.sinks = true;
    agree_with_differences(problem);
    const Inputs inputs = inputs_with_gradients(problem, Distribution::normal, Packing::with_gaps);
    EXPECT_EQ(inputs.gradients->dO_layout.row_stride, head_dim_v);
    EXPECT_EQ(inputs.gradients->O.size(), output_size(problem));
    const auto references = all_rows(inputs);
    EXPECT_EQ(output_size(references[0].problem), 2 * 2 * 6 * head_dim);
    EXPECT_EQ(output_size(references[1].problem), 2 * 2 * 70 * head_dim);
    EXPECT_EQ(output_size(references[2].problem), 2 * 2 * 70 * head_dim_v);
  }
}

TEST(Gradients, DoNotKnowACache) {
  AttentionProblem problem = kProblem;
  problem.page_size = 16;
  EXPECT_THROW(inputs_with_gradients(problem), std::logic_error);
}

// What would come out beside neighbours that are NaN, in place of which the right rows of a spoilt sequence are put.
TEST(Gradients, SpoiltNeighboursAreNotANumberAndCanBeRestored) {
  AttentionProblem problem = several_lengths();
  problem.packed = true;
  Inputs inputs = inputs_with_gradients(problem);
  const auto given = inputs.gradients;
  spoil_every_other(inputs, 1);
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    const bool spoilt = batch == 1;
    const GradientInputs& now = *inputs.gradients;
    EXPECT_NE(is_finite(problem.dtype, now.dO.data()[now.dO_layout.row(batch, 1, 1) + 39]), spoilt);
    EXPECT_NE(is_finite(problem.dtype, now.O.data()[now.O_layout.row(batch, 1, 1) + 39]), spoilt);
    EXPECT_EQ(std::isnan(now.log_sum_exp[log_sum_exp_layout(problem).row(batch, 1, 1)]), spoilt);
    EXPECT_NE(is_finite(problem.dtype, inputs.K_row(batch, 1, 8)[39]), spoilt);
    EXPECT_TRUE(is_finite(problem.dtype, given->dO.data()[given->dO_layout.row(batch, 1, 1) + 39])) << "a copy";
  }
  const AttentionProblem of_keys = problem_of_gradient(problem, 1);
  HostBuffer right(output_size(of_keys)), beside_nan(output_size(of_keys));
  std::fill_n(right.data(), right.size(), std::uint16_t{1});
  std::fill_n(beside_nan.data(), beside_nan.size(), std::uint16_t{2});
  restore_spoilt(of_keys, beside_nan, right, 1);
  EXPECT_EQ(beside_nan.data()[output_layout(of_keys).row(0, 1, 8)], 2);
  EXPECT_EQ(beside_nan.data()[output_layout(of_keys).row(1, 1, 70)], 1);
  EXPECT_EQ(beside_nan.data()[output_layout(of_keys).row(2, 0, 0)], 2);
}

}  // namespace
}  // namespace flash_ladder
