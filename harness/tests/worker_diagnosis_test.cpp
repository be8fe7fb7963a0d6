// Diagnoses of wrong outputs: made-up arrays, and deliberately wrong kernels that run on the host.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "worker/checker.h"
#include "worker/diagnosis/blockwise.h"
#include "worker/diagnosis/diagnosis.h"
#include "worker/diagnosis/laboratory.h"
#include "worker/diagnosis/layout.h"
#include "worker/diagnosis/mistakes.h"
#include "worker/diagnosis/pattern.h"
#include "worker/diagnosis/tile_by_tile.h"

namespace flash_ladder {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr Tiling kTiling{.block_q = 64, .block_kv = 32, .step_kv = 32, .num_warps = 4, .mma = true};
const AttentionProblem kProblem{.batch = 2, .heads = 3, .seq_len = 128, .seq_len_kv = 96};

// ---- Sets, places and factors ----

std::vector<bool> set_of(std::int64_t size, const std::function<bool(std::int64_t)>& in) {
  std::vector<bool> set(size);
  for (std::int64_t i = 0; i < size; ++i) set[i] = in(i);
  return set;
}

TEST(DescribeSet, TakesTheSmallestModulus) {
  EXPECT_EQ(describe_set(set_of(128, [](auto i) { return i % 2 == 1; })), "1 modulo 2");
  EXPECT_EQ(describe_set(set_of(128, [](auto i) { return i % 8 != 0; })), "1–7 modulo 8");
  EXPECT_EQ(describe_set(set_of(64, [](auto i) { return i % 16 >= 8; })), "8–15 modulo 16");
  EXPECT_EQ(describe_set(set_of(64, [](auto i) { return i % 16 == 3 || i % 16 == 5; })), "3, 5 modulo 16");
}

TEST(DescribeSet, NamesRangesWhereNothingRepeats) {
  EXPECT_EQ(describe_set(set_of(64, [](auto i) { return i >= 32 && i < 48; })), "32–47");
  EXPECT_EQ(describe_set(set_of(6, [](auto i) { return i == 0 || i >= 4; })), "0, 4–5");
}

TEST(DescribeSet, IsEmptyForAllAndSaysNothingOfWhatHasNoShape) {
  EXPECT_EQ(describe_set(std::vector<bool>(64, true)), "");
  EXPECT_EQ(describe_set(set_of(64, [](auto i) { return i * i % 7 == 2; })), std::nullopt);
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": for c0 and c1 row = group, for c2 and c3 row = group + 8,
// column = lane % 4 * 2 + (i & 1), with group = lane / 4.
TEST(FragmentElement, IsThatOfThePtxIsa) {
  for (int warp = 0; warp < 4; ++warp)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = 64 + warp * 16 + lane / 4 + (i < 2 ? 0 : 8), column = 40 + lane % 4 * 2 + (i & 1);
        const auto held = fragment_element(kTiling, row, column);
        ASSERT_TRUE(held);
        EXPECT_EQ(held->warp, warp);
        EXPECT_EQ(held->lane, lane);
        EXPECT_EQ(held->mma_m, 0);
        EXPECT_EQ(held->mma_n, 5);
        EXPECT_EQ(held->reg, i);
      }
}

TEST(FragmentElement, CountsTheMmaTilesOfAWideWarp) {
  const auto held = fragment_element({.block_q = 128, .num_warps = 4, .mma = true}, 128 + 32 + 16 + 9, 127);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->warp, 1);
  EXPECT_EQ(held->mma_m, 1);
  EXPECT_EQ(held->mma_n, 15);
  EXPECT_EQ(held->lane, 4 * 1 + 3);
  EXPECT_EQ(held->reg, 3);
}

TEST(FragmentElement, IsNoneWhereThereAreNoFragments) {
  EXPECT_FALSE(fragment_element({.block_q = 64, .num_warps = 4, .mma = false}, 0, 0));
  EXPECT_FALSE(fragment_element({.block_q = 16, .num_warps = 16, .mma = true}, 0, 0))
      << "a warp has less than an mma tile";
}

// An output that is right except for what change() does to single elements.
class Pattern : public testing::Test {
 protected:
  const Inputs inputs_ = make_inputs(kProblem, Distribution::normal, Packing::separate, 5);
  const Reference reference_ = make_reference(inputs_, {.seq_len = kProblem.seq_len, .tile = 1, .seed = 5});
  HostBuffer output_ = HostBuffer(output_size(kProblem));

  void change(const std::function<double(const Element&, double)>& value) {
    for (std::int64_t b = 0; b < kProblem.batch; ++b)
      for (std::int64_t h = 0; h < kProblem.heads; ++h)
        for (std::int64_t row = 0; row < kProblem.seq_len; ++row)
          for (std::int64_t d = 0; d < kProblem.head_dim; ++d)
            output_.data()[output_layout(kProblem).row(b, h, row) + d] = element_from_float(
                kProblem.dtype, static_cast<float>(value({b, h, row, d}, reference_.row(b, h, row)[d])));
  }
  std::string places(const Tiling& tiling = kTiling) const {
    return describe_places(find_wrong(reference_, output_, tiling), kProblem, tiling);
  }
  std::string factor() const {
    return describe_factor(reference_, output_, find_wrong(reference_, output_, kTiling)).value_or("");
  }
};

TEST_F(Pattern, OfNothingIsNothing) {
  change([](const Element&, double right) { return right; });
  const WrongElements wrong = find_wrong(reference_, output_, kTiling);
  EXPECT_EQ(wrong.wrong, 0);
  EXPECT_TRUE(wrong.rows.empty());
  EXPECT_EQ(wrong.compared, output_size(kProblem));
}

TEST_F(Pattern, NamesHalvesOfFragments) {
  change([](const Element& e, double right) { return e.row % 16 >= 8 ? right + 1 : right; });
  EXPECT_EQ(places(),
            "Wrong in rows 8–15 modulo 16 (half 1 of every mma tile: registers D[2] and D[3]), all columns, all query "
            "tiles, all heads.");
  Tiling without = kTiling;
  without.mma = false;
  EXPECT_THAT(places(without), HasSubstr("rows 8–15 modulo 16, all columns")) << "no fragment, no register";
}

TEST_F(Pattern, NamesWarpsLanesTilesAndHeads) {
  change([](const Element& e, double right) { return e.row >= 64 && e.row % 64 / 16 == 2 ? right + 1 : right; });
  EXPECT_THAT(places(), AllOf(HasSubstr("rows 32–47 "), HasSubstr("(warp 2 of 4)"), HasSubstr("query tile 1 of 2")));
  change([](const Element& e, double right) { return e.column % 8 / 2 == 3 && e.head == 1 ? right + 1 : right; });
  EXPECT_THAT(places(), AllOf(HasSubstr("columns 6–7 modulo 8"), HasSubstr("(lanes 3 modulo 4)")));
  EXPECT_THAT(places(), HasSubstr("head 1 of every batch entry"));
  change([](const Element& e, double right) { return e.column % 2 == 1 && e.batch == 1 ? right + 1 : right; });
  EXPECT_THAT(places(), HasSubstr("columns 1 modulo 2 (registers D[1] and D[3])"));
  EXPECT_THAT(places(), HasSubstr("batch entry 1"));
  const Tiling wide{.block_q = 128, .block_kv = 32, .step_kv = 32, .num_warps = 4, .mma = true};
  change([](const Element& e, double right) { return e.row % 32 >= 16 ? right + 1 : right; });
  EXPECT_THAT(places(wide), AllOf(HasSubstr("rows 16–31 modulo 32"), HasSubstr("mma_m 1 ")));
}

TEST_F(Pattern, SaysHowManyAndOfWhichKind) {
  change([](const Element& e, double right) { return (e.row + e.column) % 4 == 0 ? NAN : right; });
  EXPECT_THAT(places(), AllOf(HasSubstr("25 %"), HasSubstr("all of them are NaN or infinite")));
  change([](const Element&, double right) { return right; });
  for (std::int64_t d = 0; d < kProblem.head_dim; ++d) output_.data()[d] = kPoison;
  EXPECT_THAT(places(), HasSubstr("none of them was written"));
}

TEST_F(Pattern, FindsTheFactor) {
  change([](const Element&, double right) { return 3 * right; });
  EXPECT_THAT(factor(), HasSubstr("times 3, "));
  change([](const Element& e, double right) { return (1.5 + e.row / 64.0) * right; });
  EXPECT_THAT(factor(), AllOf(HasSubstr("row"), HasSubstr("its own factor, 1.5 to 3.48")));
  change([](const Element& e, double right) { return (1.5 + e.column / 64.0) * right; });
  EXPECT_THAT(factor(), AllOf(HasSubstr("column"), HasSubstr(" 1.5 to 3.48")));
}

TEST_F(Pattern, ClaimsNoFactorWhereThereIsNone) {
  change([](const Element& e, double right) { return right + 0.5 * std::sin(3.0 * e.row + e.column); });
  EXPECT_EQ(factor(), "");
  change([](const Element&, double) { return NAN; });
  EXPECT_EQ(factor(), "");
}

// ---- Kernels with mistakes ----

// The mistake of this name for a problem; nullopt if the problem is too small for it.
Mistake known(const std::string& name, const AttentionProblem& problem, const Tiling& tiling) {
  for (Mistake& mistake : known_mistakes(problem, tiling, 0, 0))
    if (mistake.name == name) return std::move(mistake);
  return {};
}

// A kernel on the host that makes one mistake, and counts its launches.
struct HostKernel {
  Mistake mistake = {};
  std::string known_as = {};  // in place of `mistake`: the known one of this name
  Tiling tiling = kTiling;
  std::function<bool(std::int64_t batch, std::int64_t head, std::int64_t row)> concerns = {};  // empty: all rows
  int launches = 0;

  HostBuffer run(const Inputs& inputs) const {
    const AttentionProblem& problem = inputs.problem;
    const Mistake mistaken = known_as.empty() ? mistake : known(known_as, problem, tiling);
    HostBuffer output(output_size(problem));
    std::vector<std::int64_t> rows(problem.seq_len);
    for (std::int64_t row = 0; row < problem.seq_len; ++row) rows[row] = row;
    parallel_for(problem.batch * problem.heads, [&](std::int64_t i) {
      const std::int64_t batch = i / problem.heads, head = i % problem.heads;
      const AttendedRows wrong = attend_with(mistaken, tiling, inputs, batch, head, rows);
      const AttendedRows right = concerns ? attend_with({}, tiling, inputs, batch, head, rows) : AttendedRows{};
      for (const std::int64_t row : rows)
        for (std::int64_t d = 0; d < problem.head_dim; ++d) {
          const AttendedRows& from = !concerns || concerns(batch, head, row) ? wrong : right;
          output.data()[output_layout(problem).row(batch, head, row) + d] =
              element_from_float(problem.dtype, from.base[row * problem.head_dim + d]);
        }
    });
    return output;
  }

  Diagnosis diagnose(const AttentionProblem& problem, Distribution distribution = Distribution::normal,
                     const std::vector<CheckedSet>& sets = {}) {
    const Inputs inputs = make_inputs(problem, distribution, Packing::separate, 5);
    const Reference reference = make_reference(inputs, {.seq_len = problem.seq_len, .tile = 1, .seed = 5});
    const HostBuffer output = run(inputs);
    return flash_ladder::diagnose({inputs, distribution, reference, output}, sets, tiling,
                                  [this](const Inputs& other) -> std::optional<HostBuffer> {
                                    ++launches;
                                    return run(other);
                                  });
  }
};

std::string all_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const std::string& sentence : diagnosis.sentences) text += sentence + "\n";
  return text;
}

TEST(Mistakes, NoMistakeIsAttention) {
  for (const Distribution distribution : {Distribution::normal, Distribution::large_logit, Distribution::ramp}) {
    const Inputs inputs = make_inputs(kProblem, distribution, Packing::separate, 5);
    const std::vector<std::int64_t> rows = {0, 17, 127};
    const AttendedRows expected = attend_rows(inputs, 1, 2, rows);
    const AttendedRows got = attend_with({}, kTiling, inputs, 1, 2, rows);
    for (std::size_t i = 0; i < expected.exact.size(); ++i) {
      ASSERT_NEAR(got.exact[i], expected.exact[i], 1e-12);
      ASSERT_NEAR(got.base[i], expected.base[i], 2e-3);
    }
  }
}

// Every known mistake, made on purpose, is named; the only other ones named give the same output.
class EachMistake : public testing::TestWithParam<std::string> {};

std::vector<std::string> names_of_mistakes() {
  std::vector<std::string> names;
  const Tiling steps{.block_q = 64, .block_kv = 32, .step_kv = 16, .num_warps = 4, .mma = true};
  AttentionProblem problem = kProblem;
  problem.seq_len = 64;
  for (const Mistake& mistake : known_mistakes(problem, steps, 0, 0))
    if (!mistake.of_one_head) names.push_back(mistake.name);
  return names;
}

TEST_P(EachMistake, IsNamed) {
  AttentionProblem problem = kProblem;
  HostKernel kernel{.known_as = GetParam()};
  if (GetParam().ends_with("step") || GetParam() == "last_step_left_out") kernel.tiling.step_kv = 16;
  if (GetParam() == "seq_len_for_seq_len_kv") problem.seq_len = 64;  // less than the number of keys
  const Diagnosis diagnosis = kernel.diagnose(problem);
  ASSERT_THAT(diagnosis.suggests, Contains(GetParam())) << all_of(diagnosis);
  EXPECT_THAT(diagnosis.sentences.front(), HasSubstr("Suggests: "));
  EXPECT_THAT(diagnosis.suggests, SizeIs(testing::Le(4u))) << all_of(diagnosis);
  EXPECT_LE(kernel.launches, kMaxDiagnosisLaunches);
}

INSTANTIATE_TEST_SUITE_P(All, EachMistake, testing::ValuesIn(names_of_mistakes()),
                         [](const auto& info) { return info.param; });

TEST(Mistakes, TheMaskOfACausalProblemIsKnown) {
  AttentionProblem causal = kProblem;  // 128 queries and 96 keys: the first 32 rows see no key
  causal.causal = true;
  const Inputs inputs = make_inputs(causal, Distribution::normal, Packing::separate, 5);
  const std::vector<std::int64_t> rows = {0, 31, 32, 100, 127};
  const AttendedRows expected = attend_rows(inputs, 0, 1, rows);
  const AttendedRows got = attend_with({}, kTiling, inputs, 0, 1, rows);
  for (std::size_t i = 0; i < expected.exact.size(); ++i) ASSERT_NEAR(got.exact[i], expected.exact[i], 1e-12);
  HostKernel kernel{.mistake = {.masked = false}};
  EXPECT_THAT(kernel.diagnose(causal).suggests, Contains("mask_left_out"));
}

TEST(Diagnosis, OfAnOutputThatIsRightThisTime) {
  HostKernel kernel;
  const Diagnosis diagnosis = kernel.diagnose(kProblem);
  EXPECT_THAT(diagnosis.sentences, ElementsAre(HasSubstr("changes from launch to launch")));
  EXPECT_EQ(kernel.launches, 0);
}

TEST(Diagnosis, FindsAnyFactorOfTheScores) {
  for (const double factor : {0.37, 1.25, 3.0, 11.0}) {
    HostKernel kernel{.mistake = {.score_factor = factor}};
    const Diagnosis diagnosis = kernel.diagnose(kProblem);
    EXPECT_THAT(diagnosis.suggests, ElementsAre("wrong_score_factor"));
    EXPECT_THAT(all_of(diagnosis), HasSubstr("every score is " + fmt::format("{:.3g}", factor) + " times"));
  }
}

TEST(Diagnosis, NamesTheTileThatStartsIt) {
  HostKernel first{.known_as = "scale_left_out"};
  EXPECT_THAT(all_of(first.diagnose(kProblem)), HasSubstr("first K/V tile alone is wrong"));
  HostKernel second{.known_as = "sum_not_rescaled"};
  EXPECT_THAT(all_of(second.diagnose(kProblem)), HasSubstr("wrong with 2."));
  HostKernel fifth{.mistake = {.counts = [](std::int64_t key) { return key < 4 * 32; }}};
  AttentionProblem long_problem = kProblem;
  long_problem.seq_len_kv = 8 * 32;
  const Diagnosis diagnosis = fifth.diagnose(long_problem);
  EXPECT_THAT(all_of(diagnosis), HasSubstr("right with 1, 2, 3 and 4 K/V tiles, wrong with 5"));
  EXPECT_LE(fifth.launches, kMaxDiagnosisLaunches);
}

TEST(Diagnosis, NamesWarpAndLaneOfTheFirstWrongElement) {
  HostKernel kernel{.known_as = "scale_left_out",
                    .concerns = [](auto, auto, std::int64_t row) { return row % 64 / 16 == 2 && row % 16 >= 8; }};
  const Diagnosis diagnosis = kernel.diagnose(kProblem);
  ASSERT_TRUE(diagnosis.first);
  EXPECT_EQ(diagnosis.first->warp, 2);
  EXPECT_EQ(diagnosis.first->lane, 0);
  EXPECT_EQ(diagnosis.first->reg, 2);
  EXPECT_THAT(diagnosis.suggests, ElementsAre("scale_left_out")) << "of the wrong rows alone";
  EXPECT_THAT(all_of(diagnosis), HasSubstr("rows 40–47 of a query tile of 64"));
  HostKernel plain = kernel;
  plain.tiling.mma = false;
  const Diagnosis without = plain.diagnose(kProblem);
  EXPECT_FALSE(without.first);
  EXPECT_THAT(all_of(without), Not(HasSubstr("lane")));
}

TEST(Diagnosis, NamesTheHeadThatWasRead) {
  HostKernel kernel{.mistake = {.K = [](Element e) { return Element{e.batch, 0, e.row, e.column}; }}};
  EXPECT_THAT(all_of(kernel.diagnose(kProblem)),
              HasSubstr("K is that of batch entry 0, head 0 at batch entry 0, head 1"));
}

TEST(Diagnosis, ShowsWhichElementOfKIsRead) {
  // As if a fragment had been loaded for another mma_k: it is not a known mistake, so one-hot inputs have to reveal it.
  HostKernel kernel{.mistake = {.K = [](Element e) {
                      if (e.column / 16 == 3) e.column += 32;
                      return e;
                    }}};
  const Diagnosis diagnosis = kernel.diagnose(kProblem);
  EXPECT_THAT(diagnosis.suggests, IsEmpty());
  EXPECT_THAT(all_of(diagnosis), HasSubstr("columns 48–63; where K[0][48] (key, column) belongs, there is K[0][80]"));
  EXPECT_LE(kernel.launches, kMaxDiagnosisLaunches);
}

TEST(Diagnosis, ShowsWhichElementOfVIsRead) {
  HostKernel kernel{.mistake = {.V = [](Element e) {
                      if (e.row % 8 == 5) e.column = (e.column + 40) % 128;
                      return e;
                    }}};
  EXPECT_THAT(all_of(kernel.diagnose(kProblem)),
              AllOf(HasSubstr("keys 5 modulo 8, columns 0–127"), ContainsRegex("V.5..0. .*V.5..40.")));
}

TEST(Diagnosis, TellsKeysThatDoNotMeetTheirValues) {
  HostKernel kernel{.mistake = {.V = [](Element e) {
                      e.row = e.row / 16 * 16 + (e.row % 16 * 5 + 3) % 16;
                      return e;
                    }}};
  EXPECT_THAT(all_of(kernel.diagnose(kProblem)), HasSubstr("multiplied by the V of another"));
}

TEST(Diagnosis, FindsAFactorOfEachTile) {
  // As if the second tile's P V were added twice.
  const Inputs inputs = make_inputs(kProblem, Distribution::normal, Packing::separate, 5);
  Inputs doubled = make_inputs(kProblem, Distribution::normal, Packing::separate, 5);
  for (std::int64_t b = 0; b < kProblem.batch; ++b)
    for (std::int64_t h = 0; h < kProblem.heads; ++h)
      for (std::int64_t key = 32; key < 64; ++key)
        for (std::int64_t d = 0; d < kProblem.head_dim; ++d) {
          std::uint16_t& v = doubled.buffers[doubled.V_buffer].data()[doubled.V.row(b, h, key) + d];
          v = element_from_float(kProblem.dtype, 2 * element_to_float(kProblem.dtype, v));
        }
  const Reference reference = make_reference(inputs, {.seq_len = kProblem.seq_len, .tile = 1, .seed = 5});
  const HostBuffer output = HostKernel{}.run(doubled);
  const Diagnosis diagnosis = diagnose({inputs, Distribution::normal, reference, output}, {}, kTiling,
                                       [](const Inputs&) { return std::nullopt; });
  EXPECT_THAT(all_of(diagnosis), HasSubstr("tile 0 times 1, tile 1 times 2, tile 2 times 1."));
}

TEST(Diagnosis, SurvivesLaunchesThatFault) {
  const HostKernel kernel{.mistake = {.V = [](Element e) {
                            e.column = (e.column * 5 + 3) % 128;
                            return e;
                          }}};
  const Inputs inputs = make_inputs(kProblem, Distribution::normal, Packing::separate, 5);
  const Reference reference = make_reference(inputs, {.seq_len = kProblem.seq_len, .tile = 1, .seed = 5});
  const HostBuffer output = kernel.run(inputs);
  int steps = 0;
  const Diagnosis diagnosis = diagnose(
      {inputs, Distribution::normal, reference, output}, {}, kTiling, [](const Inputs&) { return std::nullopt; },
      [&](std::int64_t, std::int64_t) { ++steps; });
  EXPECT_GT(steps, 100) << "a worker that says nothing for a minute is taken to hang";
  EXPECT_THAT(all_of(diagnosis), HasSubstr("Wrong in all rows"));
  EXPECT_THAT(all_of(diagnosis), HasSubstr("K/V tile alone the kernel faults"));
  EXPECT_THAT(all_of(diagnosis), Not(HasSubstr("is wrong already")));
}

TEST(Diagnosis, SaysWhichInputSetsTellWhat) {
  HostKernel kernel{.known_as = "sum_not_rescaled"};
  const auto text = [&](const std::vector<CheckedSet>& sets) {
    return all_of(kernel.diagnose(kProblem, Distribution::normal, sets));
  };
  EXPECT_THAT(text({{"normal inputs", false}, {"ramp inputs", false}}), HasSubstr("All input sets are wrong."));
  EXPECT_THAT(text({{"normal inputs", true}, {"ramp inputs", false}}),
              AllOf(HasSubstr("Right: normal inputs. Wrong: ramp inputs."), HasSubstr("row_max")));
  EXPECT_THAT(text({{"normal inputs", true}, {"packed Q, K, V", false}}), HasSubstr("Suggests the row strides"));
  EXPECT_THAT(text({{"normal inputs", true}, {"the requested problem", false}}), HasSubstr("sizes of the problem"));
}

// ---- Layouts ----

TEST(LayoutReader, ReadsEveryElementWhereItIsInBothTypes) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const std::int64_t tiles : {1, 3}) {
      const LayoutReader reader(128, 64, tiles);
      const AttentionProblem problem{
          .batch = 1, .heads = reader.heads(), .seq_len = 128, .seq_len_kv = tiles * 64, .dtype = dtype};
      Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 0);
      reader.write(inputs, 0);
      const HostBuffer output = HostKernel{}.run(inputs);
      const auto S = reader.read_S(problem, output, 0), PV = reader.read_PV(problem, output, 0);
      ASSERT_TRUE(S && PV);
      EXPECT_EQ(S->elements, 64 * 128);
      EXPECT_EQ(S->wrong, 0);
      EXPECT_EQ(PV->elements, 64 * 128);
      EXPECT_EQ(PV->wrong, 0);
    }
}

TEST(LayoutReader, NamesTheTileThatIsStale) {
  const LayoutReader reader(128, 64, 2);
  const AttentionProblem problem{.batch = 1, .heads = reader.heads(), .seq_len = 128, .seq_len_kv = 128};
  Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 0);
  reader.write(inputs, 0);
  const auto stale = [](Element e) {
    e.row %= 64;
    return e;
  };
  const HostBuffer output = HostKernel{.mistake = {.V = stale}}.run(inputs);
  const auto PV = reader.read_PV(problem, output, 0);
  ASSERT_TRUE(PV && PV->first);
  EXPECT_EQ(PV->wrong, 64 * 128);
  EXPECT_EQ(PV->first->key_read, 0);
  EXPECT_EQ(PV->first->column_read, 0);
}

TEST(LayoutReader, DoesNotLookAtTilesLargerThanO) { EXPECT_EQ(LayoutReader(128, 256, 1).heads(), 0); }

// ---- Tile by tile ----

TEST(Blockwise, IsAttentionAfterEveryTile) {
  for (const Distribution distribution : {Distribution::normal, Distribution::large_logit, Distribution::ramp}) {
    const Inputs inputs = make_inputs(kProblem, distribution, Packing::separate, 5);
    const auto steps = attend_blockwise(inputs, 1, 2, 17, 32);
    ASSERT_EQ(steps.size(), 3u);
    for (std::size_t tile = 0; tile < steps.size(); ++tile) {
      const Inputs fewer = with_first_keys(inputs, 32 * (static_cast<std::int64_t>(tile) + 1));
      const std::vector<std::int64_t> row = {17};
      const AttendedRows expected = attend_rows(fewer, 1, 2, row);
      const auto output = steps[tile].output();
      for (std::size_t d = 0; d < output.size(); ++d) ASSERT_NEAR(output[d], expected.exact[d], 1e-12);
    }
  }
}

TEST(Blockwise, ARowThatSeesNoKeyIsZero) {
  AttentionProblem causal = kProblem;  // 128 queries and 96 keys: the first 32 rows see no key
  causal.causal = true;
  const Inputs inputs = make_inputs(causal, Distribution::normal, Packing::separate, 5);
  for (const std::int64_t row : {0, 31, 32, 70, 127}) {
    const auto last = attend_blockwise(inputs, 0, 1, row, 32).back();
    const std::vector<std::int64_t> rows = {row};
    const AttendedRows expected = attend_rows(inputs, 0, 1, rows);
    const auto output = last.output();
    for (std::size_t d = 0; d < output.size(); ++d) ASSERT_NEAR(output[d], expected.exact[d], 1e-12) << row;
    EXPECT_EQ(last.l == 0, row < 32);
  }
}

DebugReport look_at(HostKernel& kernel, const AttentionProblem& problem = kProblem, const ShownRow& shown = {}) {
  return debug_tile_by_tile(problem, Distribution::normal, 5, kernel.tiling, shown, [&](const Inputs& inputs) {
    return Examined{.output = kernel.run(inputs), .findings = {}};
  });
}

TEST(DebugReport, OfARightKernelIsALesson) {
  HostKernel kernel;
  const DebugReport seen = look_at(kernel, kProblem, {.head = 2, .row = 70});
  EXPECT_TRUE(seen.right());
  EXPECT_EQ(seen.first_wrong(), nullptr);
  ASSERT_THAT(seen.cuts, SizeIs(3u));
  for (const Cut& cut : seen.cuts) EXPECT_LE(cut.of_bound, 1);
  EXPECT_THAT(seen.also_right, ElementsAre("ramp", "large-logit", "offset-mean"));
  EXPECT_EQ(seen.head, 2);
  EXPECT_EQ(seen.row, 70);
  EXPECT_EQ(seen.holder->lane, 6 * 4) << "row 6 of an mma tile";
  EXPECT_EQ(seen.Q.size(), 4u * 128);
  EXPECT_EQ(seen.K.size(), 96u);
  ASSERT_TRUE(seen.P);
  EXPECT_EQ(seen.P->first_key, 64);
  for (std::size_t j = 0; j < 32; ++j) EXPECT_NEAR(seen.P->P[j], seen.P->P_expected[j], 1e-3);
  EXPECT_THAT(seen.layouts, SizeIs(2u));
  EXPECT_FALSE(seen.diagnosis);
}

TEST(DebugReport, NamesTheFirstWrongTileRowColumnLaneAndRegister) {
  // State carried from one tile to the next, only in the lower halves of warp 2 and head 1.
  HostKernel kernel{.known_as = "sum_not_rescaled", .concerns = [](auto, std::int64_t head, std::int64_t row) {
                      return head == 1 && row % 64 / 16 == 2 && row % 16 >= 8;
                    }};
  const DebugReport seen = look_at(kernel);
  const Cut* wrong = seen.first_wrong();
  ASSERT_NE(wrong, nullptr);
  EXPECT_EQ(wrong->tiles, 2);
  EXPECT_EQ(wrong->first->head, 1);
  EXPECT_GE(wrong->first->row % 16, 8);
  EXPECT_EQ(wrong->first->holder->warp, 2);
  EXPECT_GE(wrong->first->holder->reg, 2);
  EXPECT_EQ(seen.row, wrong->first->row) << "that row is shown";
  EXPECT_EQ(seen.head, 1);
  EXPECT_THAT(seen.diagnosis->suggests, Contains("sum_not_rescaled"));
}

TEST(DebugReport, FindsTheFirstWrongTileOfMany) {
  HostKernel kernel{.mistake = {.counts = [](std::int64_t key) { return key < 13 * 32; }}};
  AttentionProblem long_problem = kProblem;
  long_problem.seq_len_kv = 30 * 32;
  const DebugReport seen = look_at(kernel, long_problem);
  ASSERT_NE(seen.first_wrong(), nullptr);
  EXPECT_EQ(seen.first_wrong()->tiles, 14) << "cut after 1 to 8, 16 and 30 tiles, and then by halves";
}

TEST(DebugReport, ShowsWhoShouldHoldAWrongFragment) {
  HostKernel kernel{.mistake = {.K = [](Element e) {
                      if (e.column / 16 == 3) e.column += 32;
                      return e;
                    }}};
  const DebugReport seen = look_at(kernel);
  ASSERT_FALSE(seen.layouts.empty());
  const SeenLayout& K = seen.layouts.front();
  EXPECT_EQ(K.tensor, "K");
  EXPECT_EQ(K.wrong, 32 * 16);
  ASSERT_TRUE(K.first);
  EXPECT_EQ(K.first->column, 48);
  EXPECT_EQ(K.first->mma_k, 3);
  EXPECT_EQ(K.first->lane, 0);
  EXPECT_EQ(K.first->reg, 0);
  ASSERT_TRUE(seen.P);
  EXPECT_GT(seen.P->wrong, 0);
}

TEST(DebugReport, SeesPWhereOnlyVIsWrong) {
  HostKernel kernel{.known_as = "V_columns_xor_8"};
  const DebugReport seen = look_at(kernel);
  const auto V = std::find_if(seen.layouts.begin(), seen.layouts.end(), [](const auto& l) { return l.wrong > 0; });
  ASSERT_NE(V, seen.layouts.end());
  EXPECT_EQ(V->tensor, "V");
  ASSERT_TRUE(V->first);
  EXPECT_EQ(V->first->mma_n, V->first->column / 8);
}

TEST(DebugReport, AFaultEndsTheLookAndAFindingIsWrong) {
  HostKernel kernel;
  int launches = 0;
  const auto faults = [&](const Inputs& inputs) {
    ++launches;
    return Examined{.output = inputs.problem.seq_len_kv > 32 ? std::nullopt : std::optional(kernel.run(inputs)),
                    .findings = {}};
  };
  const DebugReport faulted = debug_tile_by_tile(kProblem, Distribution::normal, 5, kernel.tiling, {}, faults);
  ASSERT_THAT(faulted.cuts, SizeIs(2u));
  EXPECT_TRUE(faulted.cuts[0].right());
  EXPECT_TRUE(faulted.first_wrong()->faulted);
  EXPECT_EQ(launches, 2) << "a GPU's context is lost";
  const auto finds = [&](const Inputs& inputs) {
    Finding race;
    race.kind = "race";
    return Examined{.output = kernel.run(inputs), .findings = {race}};
  };
  const DebugReport found = debug_tile_by_tile(kProblem, Distribution::normal, 5, kernel.tiling, {}, finds);
  EXPECT_FALSE(found.right());
  EXPECT_EQ(found.first_wrong()->tiles, 1);
  EXPECT_EQ(found.first_wrong()->wrong, 0);
}

TEST(DebugReport, RoundTripsThroughJson) {
  HostKernel kernel{.known_as = "sum_not_rescaled"};
  const DebugReport seen = look_at(kernel);
  const nlohmann::json json = seen;
  EXPECT_EQ(nlohmann::json(json.get<DebugReport>()), json);
}

}  // namespace
}  // namespace flash_ladder
