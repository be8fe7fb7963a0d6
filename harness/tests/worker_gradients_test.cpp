// The reference of the backward track, and what its versions are checked with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/versions.h"
#include "problem/kind.h"
#include "problem/problem.h"
#include "rules/support.h"
#include "worker/check_sets.h"
#include "worker/checker.h"
#include "worker/gradients.h"
#include "worker/neighbours.h"
#include "worker/timing.h"

namespace flash_ladder {
namespace {

using testing::HasSubstr;

const Version kVersion{.track = Track::backward,
                       .number = 1,
                       .name = "naive",
                       .source = "kernels/backward/B01_naive.cu",
                       .kind = ProblemKind::backward,
                       .configurations = {{.name = "16x16",
                                           .dtype = Dtype::fp16,
                                           .block_q = 16,
                                           .block_kv = 16,
                                           .head_dim = 128,
                                           .head_dim_v = 128,
                                           .num_warps = 8,
                                           .stages = 1,
                                           .step_kv = 16,
                                           .smem_bytes = 0,
                                           .traits = "",
                                           .workspace_bytes = no_workspace,
                                           .launch = {}}}};
const AttentionProblem kProblem{.batch = 2, .heads = 2, .seq_len = 6, .seq_len_kv = 70, .head_dim = 40};

Inputs inputs_with_gradients(const AttentionProblem& problem, Distribution distribution = Distribution::normal,
                             Packing packing = Packing::separate,
                             OutputGradient output_gradient = OutputGradient::normal) {
  Inputs inputs = make_inputs(problem, distribution, packing, 1);
  inputs.gradients = make_gradient_inputs(inputs, packing, output_gradient, 1);
  return inputs;
}

// Every row of dQ, dK and dV.
std::array<Reference, 3> all_rows(const Inputs& inputs) { return make_gradient_references(inputs, 1, 1); }

using Matrix = std::vector<std::vector<double>>;

Matrix rows_of(const Inputs& inputs,
               const std::uint16_t* (Inputs::*row)(std::int64_t, std::int64_t, std::int64_t) const, std::int64_t rows,
               std::int64_t batch, std::int64_t head) {
  Matrix matrix;
  std::vector<float> values(inputs.problem.head_dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    elements_to_float(inputs.problem.dtype, (inputs.*row)(batch, head, i), inputs.problem.head_dim, values.data());
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

// O of one head in float64, by the formula, for any Q, K and V.
Matrix attention(const Inputs& inputs, std::int64_t batch, const Matrix& Q, const Matrix& K, const Matrix& V) {
  Matrix O;
  for (std::size_t i = 0; i < Q.size(); ++i) {
    std::vector<double> o(inputs.problem.head_dim), weights;
    double sum = 0;
    for (std::size_t j = 0; j < K.size(); ++j)
      weights.push_back(is_visible(inputs.problem, batch, i, j) ? std::exp(inputs.scale() * dot(Q[i], K[j])) : 0);
    for (const double weight : weights) sum += weight;
    if (sum > 0)
      for (std::size_t j = 0; j < K.size(); ++j)
        for (std::size_t d = 0; d < o.size(); ++d) o[d] += weights[j] / sum * V[j][d];
    O.push_back(o);
  }
  return O;
}

TEST(Gradients, OneQueryAndTwoKeysByHand) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 2, .head_dim = 4};
  Inputs inputs = make_inputs(problem, Distribution::zeros, Packing::separate, 0);
  const auto set = [&](HostBuffer& buffer, std::int64_t at, float value) {
    buffer.data()[at] = element_from_float(problem.dtype, value);
  };
  set(inputs.buffers[1], 0, 2);  // K = (2, 0, 0, 0) and 0; Q = 0, so that both keys have weight 1/2
  set(inputs.buffers[2], 0, 1);  // V = (1, 0, 0, 0)
  set(inputs.buffers[2], 5, 3);  //     (0, 3, 0, 0)
  inputs.gradients = make_gradient_inputs(inputs, Packing::separate, OutputGradient::normal, 0);
  GradientInputs given = {.dO = HostBuffer(4),
                          .O = HostBuffer(4),
                          .dO_layout = inputs.gradients->dO_layout,
                          .O_layout = inputs.gradients->O_layout,
                          .log_sum_exp = inputs.gradients->log_sum_exp,
                          .exact_log_sum_exp = inputs.gradients->exact_log_sum_exp,
                          .exact_D = {0.5}};  // O = (0.5, 1.5, 0, 0), dO = (1, 0, 0, 0)
  for (int d = 0; d < 4; ++d) {
    set(given.dO, d, d == 0 ? 1.0f : 0.0f);
    given.O.data()[d] = inputs.gradients->O.data()[d];
  }
  EXPECT_DOUBLE_EQ(given.exact_log_sum_exp[0], std::log(2.0));
  EXPECT_EQ(element_to_float(problem.dtype, given.O.data()[1]), 1.5f);
  inputs.gradients = std::make_shared<GradientInputs>(std::move(given));
  const auto [dQ, dK, dV] = all_rows(inputs);
  // dP = (1, 0), dS = 1/2 · (1 - 1/2, 0 - 1/2) = (1/4, -1/4); the scale is 1/2.
  EXPECT_THAT(dQ.output, testing::ElementsAre(0.25, 0, 0, 0));
  EXPECT_THAT(dK.output, testing::ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(dV.output, testing::ElementsAre(0.5, 0, 0, 0, 0.5, 0, 0, 0));
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
    const Matrix O = attention(inputs, batch, tensors[2 + i], tensors[0], tensors[1]);
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

// What an exact kernel would store.
HostBuffer rounded(const Reference& reference) {
  HostBuffer buffer(std::ssize(reference.output));
  const TensorLayout layout = output_layout(reference.problem);
  for (std::int64_t batch = 0; batch < reference.problem.batch; ++batch)
    for (std::int64_t head = 0; head < reference.problem.heads; ++head)
      for (std::int64_t row = 0; row < reference.problem.seq_len; ++row)
        for (std::int64_t d = 0; d < reference.problem.head_dim; ++d)
          buffer.data()[layout.row(batch, head, row) + d] =
              element_from_float(reference.problem.dtype, static_cast<float>(reference.row(batch, head, row)[d]));
  return buffer;
}

TEST(Gradients, ExactOnesAreRightAndTwoBoundsAwayAreWrong) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const OutputGradient output_gradient :
         {OutputGradient::normal, OutputGradient::large, OutputGradient::small}) {
      AttentionProblem problem = kProblem;
      problem.dtype = dtype;
      const auto references =
          all_rows(inputs_with_gradients(problem, Distribution::normal, Packing::separate, output_gradient));
      for (const Reference& reference : references) {
        HostBuffer gradient = rounded(reference);
        EXPECT_TRUE(check_gradient(reference, gradient, 16).correct());
        const double moved = reference.row(0, 0, 1)[2] + 2 * reference.bound[0];
        gradient.data()[output_layout(reference.problem).row(0, 0, 1) + 2] =
            element_from_float(dtype, static_cast<float>(moved));
        EXPECT_THAT(check_gradient(reference, gradient, 16).reason, HasSubstr("batch 0, head 0, row 1, column 2"));
      }
    }
}

// The bound must be narrower than the gradients, or it would let everything pass.
TEST(Gradients, TheBoundIsSmallBesideTheGradients) {
  for (const OutputGradient output_gradient : {OutputGradient::normal, OutputGradient::large}) {
    const auto references =
        all_rows(inputs_with_gradients(kProblem, Distribution::normal, Packing::separate, output_gradient));
    for (const Reference& reference : references) {
      double largest = 0;
      for (const double x : reference.output) largest = std::max(largest, std::abs(x));
      for (const double bound : reference.bound) EXPECT_LT(bound, largest / 100);
    }
  }
}

TEST(Gradients, SelectedRowsHaveTheSameGradients) {
  const Inputs inputs = inputs_with_gradients({.batch = 1, .heads = 2, .seq_len = 64, .seq_len_kv = 96});
  const auto all = all_rows(inputs), some = make_gradient_references(inputs, 16, 5);
  for (std::size_t tensor = 0; tensor < 3; ++tensor)
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t index = 0; index < some[tensor].rows.count(); ++index) {
        const std::int64_t row = some[tensor].rows.row(0, head, index);
        for (std::int64_t d = 0; d < 128; ++d)
          EXPECT_DOUBLE_EQ(some[tensor].row(0, head, index)[d], all[tensor].row(0, head, row)[d]);
      }
}

TEST(Gradients, MemoryCountsThemAndTheirInputs) {
  const AttentionProblem problem{.batch = 16, .heads = 16, .seq_len = 4096, .seq_len_kv = 4096};
  constexpr std::int64_t kTensor = std::int64_t{16} * 16 * 4096 * 128 * 2;
  DeviceInfo device;
  device.l2_bytes = 1 << 20;
  device.memory_free_bytes = 9 * kTensor;
  EXPECT_EQ(why_no_memory(kVersion, kVersion.configurations[0], problem, device), std::nullopt);
  device.memory_free_bytes = 8 * kTensor;  // for Q, K, V, O and their gradients, but not for L
  EXPECT_THAT(why_no_memory(kVersion, kVersion.configurations[0], problem, device).value_or(""),
              HasSubstr("of GPU memory for this problem"));
}

TEST(Gradients, TheCacheGivesBackWhatWasComputed) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "gradients_cache";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  const AttentionProblem problem{.batch = 1, .heads = 2, .seq_len = 64, .seq_len_kv = 96};
  Inputs computed = make_inputs(problem, Distribution::normal, Packing::separate, 1),
         read = make_inputs(problem, Distribution::normal, Packing::separate, 1);
  for (Inputs* inputs : {&computed, &read})
    inputs->gradients =
        make_gradient_inputs(*inputs, Packing::separate, OutputGradient::normal, 1, directory / "inputs");
  const GradientInputs &a = *computed.gradients, &b = *read.gradients;
  EXPECT_EQ(std::memcmp(a.O.data(), b.O.data(), a.O.bytes()), 0);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
  EXPECT_EQ(a.exact_log_sum_exp, b.exact_log_sum_exp);
  EXPECT_EQ(a.exact_D, b.exact_D);

  // What is in the file counts, so it was read: as a file of other inputs is.
  const auto first = make_gradient_references(computed, 16, 5, directory / "references");
  read.buffers[read.V_buffer].data()[0] ^= 0x8000;
  const auto second = make_gradient_references(read, 16, 5, directory / "references"),
             third = make_gradient_references(read, 16, 5);
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    EXPECT_EQ(first[tensor].output, second[tensor].output);
    EXPECT_EQ(first[tensor].bound, second[tensor].bound);
  }
  EXPECT_NE(first[0].output, third[0].output);
  std::filesystem::remove_all(directory);
}

TEST(Gradients, InputsWithGapsGiveDOStridesOfItsOwn) {
  const Inputs packed = inputs_with_gradients(kProblem),
               apart = inputs_with_gradients(kProblem, Distribution::normal, Packing::with_gaps);
  const GradientInputs &a = *packed.gradients, &b = *apart.gradients;
  EXPECT_EQ(a.dO_layout.row_stride, kProblem.heads * kProblem.head_dim);
  EXPECT_EQ(b.dO_layout.row_stride, kProblem.head_dim);
  EXPECT_EQ(a.dO.data()[a.dO_layout.row(1, 1, 3) + 7], b.dO.data()[b.dO_layout.row(1, 1, 3) + 7]);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
}

TEST(Gradients, ChangedInputsAreFound) {
  const Inputs inputs = inputs_with_gradients(kProblem);
  const GradientInputs& given = *inputs.gradients;
  const auto buffers = [&] {
    std::vector<HostBuffer> all;
    all.emplace_back(given.dO.size());
    all.emplace_back(given.O.size());
    all.emplace_back(std::ssize(given.log_sum_exp) * 2);
    std::memcpy(all[0].data(), given.dO.data(), all[0].bytes());
    std::memcpy(all[1].data(), given.O.data(), all[1].bytes());
    std::memcpy(all[2].data(), given.log_sum_exp.data(), all[2].bytes());
    return all;
  };
  EXPECT_EQ(find_changed_input(given, buffers()), std::nullopt);
  const char* const names[] = {"dO", "O", "L"};
  for (int i = 0; i < 3; ++i) {
    auto changed = buffers();
    changed[i].data()[1] ^= 1;
    EXPECT_EQ(find_changed_input(given, changed), std::string("changed its input ") + names[i]);
  }
}

TEST(Backward, IsCheckedWithGradientsOfAllSizesAndWithEqualKeys) {
  std::set<OutputGradient> sizes;
  std::set<Distribution> distributions;
  for (const CheckSet& set :
       check_sets(kVersion, kVersion.configurations.front(), {.seq_len = 16, .seq_len_kv = 16}, {})) {
    EXPECT_EQ(why_unsupported(kVersion, kVersion.configurations.front(), set.problem), std::nullopt) << set.name;
    sizes.insert(set.output_gradient);
    distributions.insert(set.distribution);
  }
  EXPECT_EQ(sizes.size(), 3);
  for (const Distribution hostile : {Distribution::large_logit, Distribution::q_times_6, Distribution::sink,
                                     Distribution::equal_keys, Distribution::adversarial})
    EXPECT_TRUE(distributions.contains(hostile)) << to_string(hostile);
}

TEST(Backward, IsCheckedWithLengthsAndPackedSequencesIfItSolvesThem) {
  Version version = kVersion;
  version.solves = {.causal = true, .any_length = true, .kv_heads = true, .lengths = true, .packed = true};
  bool padded = false, packed = false, apart = false, no_keys = false, no_queries = false;
  for (const CheckSet& set :
       check_sets(version, version.configurations.front(), {.seq_len = 16, .seq_len_kv = 16}, {})) {
    const AttentionProblem& problem = set.problem;
    EXPECT_EQ(why_unsupported(version, version.configurations.front(), problem), std::nullopt) << set.name;
    if (problem.lengths.empty()) continue;
    padded |= !problem.packed;
    packed |= problem.packed;
    apart |= !problem.packed && set.packing == Packing::with_gaps && problem.kv_heads != 0;
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
      const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
      no_keys |= queries > 0 && keys == 0;
      no_queries |= queries == 0 && keys > 0;
    }
  }
  EXPECT_TRUE(padded && packed && apart && no_keys && no_queries);
}

TEST(Backward, CountsTwoAndAHalfTimesTheWork) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1024, .seq_len_kv = 512};
  EXPECT_EQ(kind_of(kVersion).work, 2.5);
  EXPECT_DOUBLE_EQ(tflops(problem, 2, kind_of(kVersion).work), 2.5 * tflops(problem, 2));
  EXPECT_EQ(kind_of(Version()).work, 1);
}

}  // namespace
}  // namespace flash_ladder
