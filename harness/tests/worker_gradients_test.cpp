// The reference of the backward track, and what its versions are checked with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1024, .seq_len_kv = 512};
  const Products& products = kind_of(kVersion).products;
  EXPECT_DOUBLE_EQ(tflops(problem, 2, products), 2.5 * tflops(problem, 2));
  EXPECT_DOUBLE_EQ(tflops(problem, 2, kind_of(Version()).products), tflops(problem, 2));
  // S, dQ and dK have 192 products for each score, dP and dV 128.
  problem.head_dim = 192;
  problem.head_dim_v = 128;
  EXPECT_DOUBLE_EQ(floating_point_operations(problem, products), 2.0 * 1024 * 512 * (3 * 192 + 2 * 128));
}

}  // namespace
}  // namespace flash_ladder
