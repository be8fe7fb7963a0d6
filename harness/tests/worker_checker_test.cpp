// Faults that occur in kernels, planted in otherwise correct outputs: the checker must find each one and say where it is.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "worker/checker.h"

namespace flash_ladder {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kBlockQ = 64, kBlockKV = 64;
constexpr std::uint16_t kNan = 0x7fff;  // CUDA's own NaN, in both types

// The possible errors in attend_like_a_kernel(). A fault affects one query tile of one head, or all of them.
struct Fault {
  std::int64_t batch = -1, head = -1, q_block = -1;  // -1: all
  bool skip_second_tile = false;
  bool no_rescale = false;
  float scale_factor = 1;

  bool concerns(std::int64_t b, std::int64_t h, std::int64_t q) const {
    return (batch == -1 || batch == b) && (head == -1 || head == h) && (q_block == -1 || q_block == q);
  }
};

// How a message names an element.
std::string place(int batch, int head, int row, int column) {
  return fmt::format("batch {}, head {}, row {}, column {}", batch, head, row, column);
}

// FlashAttention's loop as the kernels execute it: fp32, tile by tile with a running maximum, P rounded to the input type.
HostBuffer attend_like_a_kernel(const Inputs& inputs, const Fault& fault = {}) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t head_dim = problem.head_dim;
  const TensorLayout layout = output_layout(problem);
  HostBuffer output(output_size(problem));
  parallel_for(problem.batch * problem.heads, [&](std::int64_t i) {
    const std::int64_t batch = i / problem.heads, head = i % problem.heads;
    std::vector<float> K(problem.seq_len_kv * head_dim), V(K.size()), q(head_dim);
    for (std::int64_t key = 0; key < problem.seq_len_kv; ++key) {
      elements_to_float(problem.dtype, inputs.K_row(batch, head, key), head_dim, &K[key * head_dim]);
      elements_to_float(problem.dtype, inputs.V_row(batch, head, key), head_dim, &V[key * head_dim]);
    }
    for (std::int64_t row = 0; row < problem.seq_len; ++row) {
      const bool faulty = fault.concerns(batch, head, row / kBlockQ);
      const float scale = softmax_scale(head_dim) * (faulty ? fault.scale_factor : 1);
      elements_to_float(problem.dtype, inputs.Q_row(batch, head, row), head_dim, q.data());
      float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
      std::vector<float> O(head_dim);
      for (std::int64_t first = 0; first < problem.seq_len_kv; first += kBlockKV) {
        if (faulty && fault.skip_second_tile && first == kBlockKV) continue;
        float S[kBlockKV] = {}, new_max = row_max;
        for (std::int64_t key = 0; key < kBlockKV; ++key) {
          for (std::int64_t d = 0; d < head_dim; ++d) S[key] += q[d] * K[(first + key) * head_dim + d];
          S[key] *= scale;
          new_max = std::max(new_max, S[key]);
        }
        const float rescale = faulty && fault.no_rescale ? 1 : std::exp(row_max - new_max);
        row_max = new_max;
        row_sum *= rescale;
        for (float& x : O) x *= rescale;
        for (std::int64_t key = 0; key < kBlockKV; ++key) {
          const float p = std::exp(S[key] - new_max);
          const float rounded = element_to_float(problem.dtype, element_from_float(problem.dtype, p));
          row_sum += p;
          for (std::int64_t d = 0; d < head_dim; ++d) O[d] += rounded * V[(first + key) * head_dim + d];
        }
      }
      for (std::int64_t d = 0; d < head_dim; ++d)
        output.data()[layout.row(batch, head, row) + d] = element_from_float(problem.dtype, O[d] / row_sum);
    }
  });
  return output;
}

// The reference, rounded to the type.
HostBuffer rounded(const Reference& reference) {
  const AttentionProblem& problem = reference.problem;
  HostBuffer output(output_size(problem));
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t row = 0; row < problem.seq_len; ++row)
        for (std::int64_t d = 0; d < problem.head_dim; ++d)
          output.data()[output_layout(problem).row(batch, head, row) + d] =
              element_from_float(problem.dtype, static_cast<float>(reference.row(batch, head, row)[d]));
  return output;
}

HostBuffer copy(const HostBuffer& from) {
  HostBuffer to(from.size());
  std::copy_n(from.data(), from.size(), to.data());
  return to;
}

struct Case {
  Dtype dtype;
  Distribution distribution;
};

class Checker : public testing::TestWithParam<Case> {
 protected:
  Checker()
      : problem_{.batch = 2, .heads = 3, .seq_len = 2 * kBlockQ, .seq_len_kv = 3 * kBlockKV, .dtype = GetParam().dtype},
        inputs_(make_inputs(problem_, GetParam().distribution, Packing::separate, 11)),
        reference_(make_reference(inputs_, {.seq_len = problem_.seq_len, .tile = 1, .seed = 11})),
        output_(rounded(reference_)) {}

  Verdict verdict() const { return check_output(inputs_, reference_, output_, kBlockQ); }
  std::uint16_t& element(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
    return output_.data()[output_layout(problem_).row(batch, head, row) + column];
  }
  std::uint16_t* row(std::int64_t batch, std::int64_t head, std::int64_t row) { return &element(batch, head, row, 0); }

  // The fault was found, and its first element is this one.
  static void expect_first(const Verdict& verdict, std::int64_t batch, std::int64_t head, std::int64_t row,
                           std::int64_t column) {
    EXPECT_FALSE(verdict.correct());
    ASSERT_FALSE(verdict.mismatches.empty());
    const Mismatch& first = verdict.mismatches.front();
    EXPECT_EQ(first.batch, batch);
    EXPECT_EQ(first.head, head);
    EXPECT_EQ(first.row, row);
    EXPECT_EQ(first.column, column);
    EXPECT_THAT(verdict.reason, HasSubstr("batch " + std::to_string(batch) + ", head " + std::to_string(head) +
                                          ", row " + std::to_string(row) + ", column " + std::to_string(column)));
  }

  // The map's line for each head: "X." if only the first of the two query tiles is wrong.
  static void expect_map(const Verdict& verdict, const std::vector<std::string>& heads) {
    std::string expected = "X wrong, . right; 64 queries per column\n";
    for (std::size_t i = 0; i < heads.size(); ++i)
      expected += "batch  " + std::to_string(i / 3) + " head  " + std::to_string(i % 3) + "  " + heads[i] + "\n";
    EXPECT_EQ(verdict.tile_map, expected);
  }

  AttentionProblem problem_;
  Inputs inputs_;
  Reference reference_;
  HostBuffer output_;
};

INSTANTIATE_TEST_SUITE_P(
    Planted, Checker,
    testing::Values(Case{Dtype::fp16, Distribution::normal}, Case{Dtype::fp16, Distribution::offset_mean},
                    Case{Dtype::fp16, Distribution::large_logit}, Case{Dtype::fp16, Distribution::ramp},
                    Case{Dtype::bf16, Distribution::normal}, Case{Dtype::bf16, Distribution::offset_mean},
                    Case{Dtype::bf16, Distribution::large_logit}, Case{Dtype::bf16, Distribution::ramp}),
    [](const auto& info) {
      std::string name = to_string(info.param.dtype) + "_" + to_string(info.param.distribution);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST_P(Checker, PassesTheRoundedReference) {
  const Verdict verdict = this->verdict();
  EXPECT_TRUE(verdict.correct()) << verdict.reason;
  EXPECT_LE(verdict.relative_error, 0.5);  // half an ulp, when bounds are at least one
  EXPECT_TRUE(verdict.mismatches.empty());
  EXPECT_EQ(verdict.tile_map, "");
}

TEST_P(Checker, PassesWhatARightKernelComputes) {
  output_ = attend_like_a_kernel(inputs_);
  const Verdict verdict = this->verdict();
  EXPECT_TRUE(verdict.correct()) << verdict.reason;
  EXPECT_GT(verdict.max_abs_error, 0);
  EXPECT_LE(verdict.relative_error, 1);
}

TEST_P(Checker, PassesJustInsideTheBoundAndFailsJustOutside) {
  // The element closest to the reference ± the bound, just inside and just outside.
  const double expected = reference_.row(1, 2, 70)[3], bound = reference_.bound[1 * 3 + 2];
  const auto nearest = [&](bool inside) {
    std::uint16_t best = 0;
    double best_distance = std::numeric_limits<double>::infinity();
    for (int bits = 0; bits < 0x10000; ++bits) {
      if (!is_finite(problem_.dtype, bits)) continue;
      const double error = std::abs(element_to_float(problem_.dtype, bits) - expected);
      if ((error <= bound) == inside && std::abs(error - bound) < best_distance)
        best = bits, best_distance = std::abs(error - bound);
    }
    return best;
  };
  element(1, 2, 70, 3) = nearest(true);
  EXPECT_TRUE(verdict().correct()) << verdict().reason;
  element(1, 2, 70, 3) = nearest(false);
  expect_first(verdict(), 1, 2, 70, 3);
  expect_map(verdict(), {"..", "..", "..", "..", "..", ".X"});
  const double error = std::abs(element_to_float(problem_.dtype, nearest(false)) - expected);
  EXPECT_DOUBLE_EQ(verdict().max_abs_error, error);
  EXPECT_DOUBLE_EQ(verdict().relative_error, error / bound);
  EXPECT_GT(verdict().relative_error, 1);
  ASSERT_EQ(verdict().mismatches.size(), 1u);
  EXPECT_EQ(verdict().mismatches[0].expected, expected);
}

TEST_P(Checker, FindsAnElementLeftUnwritten) {
  element(1, 0, 127, 127) = kPoison;
  expect_first(verdict(), 1, 0, 127, 127);
  EXPECT_THAT(verdict().reason, HasSubstr("1 of 98304 elements were never written"));
  expect_map(verdict(), {"..", "..", "..", ".X", "..", ".."});
  EXPECT_TRUE(std::isnan(verdict().max_abs_error));
  EXPECT_TRUE(std::isnan(verdict().relative_error));
}

TEST_P(Checker, FindsATileLeftUnwritten) {
  for (std::int64_t r = 0; r < kBlockQ; ++r) std::fill_n(row(0, 2, r), problem_.head_dim, kPoison);
  expect_first(verdict(), 0, 2, 0, 0);
  EXPECT_THAT(verdict().reason, HasSubstr("8192 of 98304"));
  expect_map(verdict(), {"..", "..", "X.", "..", "..", ".."});
}

TEST_P(Checker, FindsNaN) {
  element(0, 1, 64, 9) = kNan;
  expect_first(verdict(), 0, 1, 64, 9);
  EXPECT_THAT(verdict().reason, HasSubstr("1 of 98304 elements are NaN or infinite"));
  EXPECT_TRUE(std::isnan(verdict().mismatches[0].got));
  EXPECT_TRUE(std::isnan(verdict().relative_error));
}

TEST_P(Checker, FindsInfinity) {
  element(0, 1, 64, 9) = element_from_float(problem_.dtype, -std::numeric_limits<float>::infinity());
  expect_first(verdict(), 0, 1, 64, 9);
  EXPECT_TRUE(std::isinf(verdict().relative_error));
}

TEST_P(Checker, ALaterFiniteErrorDoesNotHideNaN) {
  element(0, 0, 0, 0) = kNan;
  element(1, 2, 127, 127) = element_from_float(problem_.dtype, 100);
  EXPECT_TRUE(std::isnan(verdict().relative_error));
  EXPECT_TRUE(std::isnan(verdict().max_abs_error));
}

TEST_P(Checker, FindsOneKVTileSkipped) {
  // With large logits the tile that is skipped may have no weight in a row, but not in all rows of a query tile.
  output_ = attend_like_a_kernel(inputs_, {.batch = 1, .head = 2, .q_block = 1, .skip_second_tile = true});
  if (GetParam().distribution == Distribution::ramp) {
    // Only the last keys have weight there, so skipping the second of three tiles is right, and the other sets reveal it.
    EXPECT_TRUE(verdict().correct());
    return;
  }
  expect_map(verdict(), {"..", "..", "..", "..", "..", ".X"});
  EXPECT_GE(verdict().mismatches.front().row, 64);
}

TEST_P(Checker, FindsAMissingRescale) {
  output_ = attend_like_a_kernel(inputs_, {.batch = 0, .head = 0, .q_block = 0, .no_rescale = true});
  expect_map(verdict(), {"X.", "..", "..", "..", "..", ".."});
  if (GetParam().distribution == Distribution::ramp) expect_first(verdict(), 0, 0, 0, 0);
}

TEST_P(Checker, FindsAWrongScale) {
  output_ = attend_like_a_kernel(inputs_, {.scale_factor = 1.05f});
  expect_map(verdict(), {"XX", "XX", "XX", "XX", "XX", "XX"});
}

TEST_P(Checker, FindsRowsThatAreOffByOne) {
  std::copy_backward(row(0, 0, 0), row(1, 0, 0) - problem_.heads * problem_.head_dim, row(1, 0, 0));
  const Verdict verdict = this->verdict();
  // The first row of the first batch entry is still right; every tile has wrong rows.
  ASSERT_FALSE(verdict.mismatches.empty());
  EXPECT_EQ(verdict.mismatches.front().row, 1);
  expect_map(verdict, {"XX", "XX", "XX", "..", "..", ".."});
}

TEST_P(Checker, FindsSwappedHeads) {
  for (std::int64_t r = 0; r < problem_.seq_len; ++r) std::swap_ranges(row(0, 0, r), row(0, 1, r), row(0, 1, r));
  expect_map(verdict(), {"XX", "XX", "..", "..", "..", ".."});
}

TEST_P(Checker, FindsSwappedBatchEntries) {
  std::swap_ranges(row(0, 0, 0), row(1, 0, 0), row(1, 0, 0));
  expect_map(verdict(), {"XX", "XX", "XX", "XX", "XX", "XX"});
}

// Rows of padding are 0, whatever the reference's bound for the other rows.
TEST(CheckerOfLengths, PaddingIsZeroAndChangedInputsAreFoundInEveryHead) {
  const AttentionProblem problem{.batch = 2,
                                 .heads = 4,
                                 .seq_len = 64,
                                 .seq_len_kv = 64,
                                 .head_dim = 8,
                                 .kv_heads = 2,
                                 .lengths = {64, 10},
                                 .lengths_kv = {64, 10}};
  const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 3);
  const Reference reference = make_reference(inputs, {.seq_len = 64, .tile = 1, .seed = 0});
  HostBuffer output = rounded(reference);
  EXPECT_TRUE(check_output(inputs, reference, output, kBlockQ).correct());
  const std::int64_t padding = output_layout(problem).row(1, 3, 10);
  output.data()[padding] = element_from_float(problem.dtype, 5);
  EXPECT_THAT(check_output(inputs, reference, output, kBlockQ).reason, HasSubstr(place(1, 3, 10, 0)));
  output.data()[padding] = kPoison;
  EXPECT_THAT(check_output(inputs, reference, output, kBlockQ).reason, HasSubstr("never written"));

  std::vector<HostBuffer> after;
  for (const HostBuffer& buffer : inputs.buffers) {
    after.emplace_back(buffer.size());
    std::copy_n(buffer.data(), buffer.size(), after.back().data());
  }
  EXPECT_EQ(find_changed_input(inputs, after), std::nullopt);
  after[1].data()[inputs.K.row(1, 1, 63)] = 0;  // in the last head of K, and in padding
  EXPECT_THAT(find_changed_input(inputs, after).value_or(""), AllOf(HasSubstr(" K"), HasSubstr(place(1, 1, 63, 0))));
}

// For large problems only some rows are compared with the reference, but all are examined.
class CheckerOfSelectedRows : public testing::Test {
 protected:
  const AttentionProblem problem_{.batch = 2, .heads = 16, .seq_len = 8192, .seq_len_kv = 64, .head_dim = 8};
  const Inputs inputs_ = make_inputs(problem_, Distribution::normal, Packing::separate, 11);
  const Reference reference_ = make_reference(inputs_, {.seq_len = problem_.seq_len, .tile = 64, .seed = 11});
  HostBuffer output_ = HostBuffer(output_size(problem_));

  void SetUp() override {
    std::fill_n(output_.data(), output_.size(), 0);  // only the selected rows need to be right
    for (std::int64_t batch = 0; batch < problem_.batch; ++batch)
      for (std::int64_t head = 0; head < problem_.heads; ++head)
        for (std::int64_t index = 0; index < reference_.rows.count(); ++index)
          for (std::int64_t d = 0; d < problem_.head_dim; ++d)
            element(batch, head, reference_.rows.row(batch, head, index), d) =
                element_from_float(problem_.dtype, static_cast<float>(reference_.row(batch, head, index)[d]));
  }
  std::uint16_t& element(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
    return output_.data()[output_layout(problem_).row(batch, head, row) + column];
  }
  Verdict verdict() const { return check_output(inputs_, reference_, output_, kBlockQ); }
  std::int64_t row_that_is_not_selected(std::int64_t batch, std::int64_t head, std::int64_t tile) const {
    return tile * 64 + (reference_.rows.row(batch, head, tile) + 1) % 64;
  }
};

TEST_F(CheckerOfSelectedRows, PassesWhenTheyAreRight) { EXPECT_TRUE(verdict().correct()) << verdict().reason; }

TEST_F(CheckerOfSelectedRows, FindsNaNInAnyRowAndSaysWhatItShouldBe) {
  const std::int64_t row = row_that_is_not_selected(1, 5, 77);
  for (const std::uint16_t bits : {kNan, kPoison}) {
    element(1, 5, row, 6) = bits;
    const Verdict found = verdict();
    EXPECT_FALSE(found.correct());
    EXPECT_TRUE(std::isnan(found.relative_error));
    ASSERT_EQ(found.mismatches.size(), 1u);
    EXPECT_EQ(found.mismatches[0].row, row);
    const std::int64_t rows[] = {row};
    EXPECT_EQ(found.mismatches[0].expected, attend_rows(inputs_, 1, 5, rows).exact[6]);
  }
}

TEST_F(CheckerOfSelectedRows, DrawsManyTilesAndHeadsInLittleSpace) {
  for (std::int64_t head = 0; head < 16; ++head) {
    element(0, head, row_that_is_not_selected(0, head, 127), 0) = kNan;
    element(1, head, row_that_is_not_selected(1, head, 2), 0) = kNan;
  }
  element(1, 15, row_that_is_not_selected(1, 15, 4), 0) = kNan;
  const std::string map = verdict().tile_map;
  EXPECT_THAT(map, HasSubstr("128 queries per column\n"));  // 128 tiles of 64 rows in 64 columns
  EXPECT_THAT(map, HasSubstr("batch  0 head 15  " + std::string(63, '.') + "X\n"));
  EXPECT_THAT(map, Not(HasSubstr("batch  1")));
  EXPECT_THAT(map, HasSubstr("and 16 more heads with wrong tiles\n"));
}

TEST_F(CheckerOfSelectedRows, ReportsOnlyTheFirstFewMismatches) {
  std::fill_n(output_.data(), output_.size(), kNan);
  EXPECT_EQ(verdict().mismatches.size(), 8u);
  EXPECT_EQ(verdict().mismatches.back().column, 7);
}

TEST(GuardBands, AreFineWhenUntouched) {
  const std::vector<std::uint16_t> band(1000, kGuard);
  EXPECT_EQ(find_guard_damage("O", band, band), std::nullopt);
}

TEST(GuardBands, AChangedByteIsFoundOnEitherSide) {
  const std::vector<std::uint16_t> good(1000, kGuard);
  for (const int byte : {0, 1}) {
    std::vector<std::uint16_t> bad = good;
    bad[990] ^= 1 << (8 * byte);
    EXPECT_THAT(find_guard_damage("O", bad, good).value_or(""),
                HasSubstr("1 elements before the start of O, the nearest 10 before it"));
    EXPECT_THAT(find_guard_damage("O", good, bad).value_or(""),
                HasSubstr("1 elements past the end of O, the nearest 991 past it"));
  }
}

TEST(GuardBands, AreNaNToWhoeverReadsThem) {
  EXPECT_FALSE(is_finite(Dtype::fp16, kGuard));
  EXPECT_FALSE(is_finite(Dtype::bf16, kGuard));
  EXPECT_FALSE(is_finite(Dtype::fp16, kPoison));
  EXPECT_FALSE(is_finite(Dtype::bf16, kPoison));
}

std::vector<HostBuffer> copies(const Inputs& inputs) {
  std::vector<HostBuffer> buffers;
  for (const HostBuffer& buffer : inputs.buffers) buffers.push_back(copy(buffer));
  return buffers;
}

TEST(ChangedInputs, EachOfTheThreeIsFound) {
  const AttentionProblem problem{.batch = 2, .heads = 3, .seq_len = 64, .seq_len_kv = 64};
  for (const Packing packing : {Packing::separate, Packing::packed_qkv}) {
    const Inputs inputs = make_inputs(problem, Distribution::normal, packing, 11);
    EXPECT_EQ(find_changed_input(inputs, copies(inputs)), std::nullopt);
    const struct {
      const char* name;
      const TensorLayout& layout;
      int buffer;
    } tensors[] = {
        {"Q", inputs.Q, inputs.Q_buffer}, {"K", inputs.K, inputs.K_buffer}, {"V", inputs.V, inputs.V_buffer}};
    for (const auto& tensor : tensors) {
      auto after = copies(inputs);
      after[tensor.buffer].data()[tensor.layout.row(1, 2, 63) + 127] ^= 1;
      EXPECT_THAT(find_changed_input(inputs, after).value_or(""),
                  HasSubstr(fmt::format("changed its input {}: first at {}", tensor.name, place(1, 2, 63, 127))));
    }
  }
}

TEST(RepeatedLaunches, OneBitIsADifference) {
  const AttentionProblem problem{.batch = 2, .heads = 3, .seq_len = 64, .seq_len_kv = 64};
  HostBuffer first(output_size(problem));
  std::fill_n(first.data(), first.size(), 0x3c00);
  HostBuffer second = copy(first);
  EXPECT_EQ(find_difference(problem, first, second), std::nullopt);
  second.data()[output_layout(problem).row(1, 1, 5) + 6] ^= 1;
  second.data()[output_layout(problem).row(1, 2, 0)] ^= 1;
  EXPECT_THAT(find_difference(problem, first, second).value_or(""), HasSubstr("first at " + place(1, 1, 5, 6)));
}

TEST(RepeatedLaunches, ZerosOfEitherSignDiffer) {
  const AttentionProblem problem{.batch = 1, .heads = 1, .seq_len = 1, .seq_len_kv = 1};
  HostBuffer first(output_size(problem));
  std::fill_n(first.data(), first.size(), 0);
  HostBuffer second = copy(first);
  second.data()[0] = 0x8000;
  EXPECT_NE(find_difference(problem, first, second), std::nullopt);
}

// Two heads of a causal problem whose first two rows see no key, every row or one in 16 of which is compared.
class LogSumExp : public testing::TestWithParam<int> {
 protected:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  LogSumExp() {
    const Inputs inputs = make_inputs(problem_, Distribution::normal, Packing::separate, 5);
    reference_ = make_reference(inputs, {.seq_len = problem_.seq_len, .tile = GetParam(), .seed = 5});
    const Reference whole = make_reference(inputs, {.seq_len = problem_.seq_len, .tile = 1, .seed = 5});
    got_.assign(whole.log_sum_exp.begin(), whole.log_sum_exp.end());
  }
  std::string wrong() const { return find_wrong_log_sum_exp(reference_, got_).value_or(""); }

  const AttentionProblem problem_{.batch = 1, .heads = 2, .seq_len = 66, .seq_len_kv = 64, .causal = true};
  Reference reference_;
  std::vector<float> got_;
};
INSTANTIATE_TEST_SUITE_P(All, LogSumExp, testing::Values(1, 16));

TEST_P(LogSumExp, OfARightKernelIsRight) {
  EXPECT_EQ(wrong(), "");
  EXPECT_EQ(got_[1], -kInfinity);
  EXPECT_EQ(find_wrong_log_sum_exp(reference_, {}), std::nullopt) << "of a version that does not write it";
}

TEST_P(LogSumExp, MoreThanTheBoundIsWrong) {
  const std::int64_t row = reference_.rows.row(0, 1, reference_.rows.count() - 1);
  got_[66 + row] += static_cast<float>(0.5 * reference_.log_sum_exp_bound[1]);
  EXPECT_EQ(wrong(), "");
  got_[66 + row] += static_cast<float>(reference_.log_sum_exp_bound[1]);
  EXPECT_THAT(wrong(), HasSubstr("of 1 of 132 rows is wrong"));
  EXPECT_THAT(wrong(), HasSubstr(fmt::format("the first at batch 0, head 1, row {}: ", row)));
}

TEST_P(LogSumExp, AnyRowThatIsNotFiniteOrNotWrittenIsWrong) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t i : {2u, 65u, 68u, 131u}) {
      const float before = std::exchange(got_[i], bad);
      EXPECT_THAT(wrong(), AllOf(HasSubstr("1 of 132"), HasSubstr(fmt::format("head {}, row {}", i / 66, i % 66))));
      got_[i] = before;
    }
  got_[5] = std::bit_cast<float>(0xffffffffu);
  EXPECT_THAT(wrong(), AllOf(HasSubstr("1 of 132"), HasSubstr(", 1 of them were never written")));
}

TEST_P(LogSumExp, ARowThatSeesNoKeyHasMinusInfinity) {
  for (const float bad : {0.0f, kInfinity, std::numeric_limits<float>::lowest()})
    for (const std::size_t i : {0u, 1u, 66u}) {
      const float before = std::exchange(got_[i], bad);
      EXPECT_THAT(wrong(), HasSubstr("instead of -inf"));
      got_[i] = before;
    }
}

TEST(RepeatedLaunches, OneBitOfALogSumExpIsADifference) {
  const AttentionProblem problem{.batch = 2, .heads = 3, .seq_len = 4, .seq_len_kv = 4};
  const std::vector<float> first(24, 1);
  std::vector<float> second = first;
  EXPECT_EQ(find_difference(problem, first, second), std::nullopt);
  second[4 * 4 + 3] = std::nextafter(1.0f, 2.0f);
  EXPECT_THAT(find_difference(problem, first, second).value_or(""), HasSubstr("log-sum-exp at batch 1, head 1, row 3"));
}

}  // namespace
}  // namespace flash_ladder
