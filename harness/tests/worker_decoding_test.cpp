// What a version that is made for few queries accepts, and what it is checked with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "host/versions.h"
#include "problem/problem.h"
#include "rules/support.h"
#include "worker/check_sets.h"
#include "worker/checker.h"

namespace flash_ladder {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const Version kVersion{.track = Track::decoding,
                       .number = 1,
                       .name = "one_query",
                       .source = "kernels/decoding/D01_one_query.cu",
                       .most_queries = 8,
                       .solves = {.any_length = true, .kv_heads = true, .lengths = true},
                       .configurations = {{.name = "1x8",
                                           .dtype = Dtype::fp16,
                                           .block_q = 1,
                                           .block_kv = 8,
                                           .head_dim = 128,
                                           .head_dim_v = 128,
                                           .num_warps = 1,
                                           .stages = 1,
                                           .step_kv = 8,
                                           .smem_bytes = 0,
                                           .traits = "",
                                           .workspace_bytes = no_workspace,
                                           .launch = {}}}};
const Configuration& kConfiguration = kVersion.configurations.front();
const AttentionProblem kProblem{.batch = 2, .heads = 3, .seq_len = 1, .seq_len_kv = 192};

TEST(Decoding, MoreQueriesAreRefusedWithTheLimit) {
  AttentionProblem problem = kProblem;
  problem.seq_len = 8;
  EXPECT_EQ(why_unsupported(kVersion, kConfiguration, problem), std::nullopt);
  problem.seq_len = 9;
  EXPECT_EQ(why_unsupported(kVersion, kConfiguration, problem),
            "seq-len 9 is not supported by D01_one_query, which is made for few queries; allowed: 1 to 8");
}

TEST(Decoding, IsCheckedWithFewQueriesAndCachesOfAllLengths) {
  std::set<std::int64_t> queries, keys;
  bool repeated = false;
  std::int64_t group = 0;
  for (const CheckSet& set : check_sets(kVersion, kConfiguration, kProblem, {})) {
    EXPECT_EQ(why_unsupported(kVersion, kConfiguration, set.problem), std::nullopt) << set.name;
    queries.insert(set.problem.seq_len);
    keys.insert(set.problem.lengths_kv.begin(), set.problem.lengths_kv.end());
    if (set.problem.kv_heads > 0) group = std::max(group, set.problem.heads / set.problem.kv_heads);
    // More batch entries than SMs, and launches that have to agree.
    repeated = repeated || (set.launches > 1 && set.sms > 0 && set.problem.batch > set.sms);
  }
  EXPECT_TRUE(queries.contains(1) && queries.contains(8));
  for (const std::int64_t length : {0, 1, 7, 8, 9}) EXPECT_TRUE(keys.contains(length)) << length;
  EXPECT_TRUE(repeated);
  EXPECT_GT(*keys.rbegin(), 32 * 64);  // more parts than lanes
  EXPECT_GT(group, 16);                // more heads than rows of an mma
}

TEST(Decoding, ANewTokenHasARowAndPerhapsAnglesOfEveryBatchEntry) {
  AttentionProblem appended = kProblem;
  appended.append = true;
  EXPECT_THAT(why_unsupported(kVersion, kConfiguration, appended).value_or(""),
              AllOf(StartsWith("--append is not supported by D01_one_query"), HasSubstr("leave it out")));
  appended.append = false;
  appended.rotary_dim = 64;
  EXPECT_EQ(why_impossible(appended), "--rotary-dim needs --append: it rotates a new key");
  appended.append = true;
  EXPECT_EQ(why_impossible(appended), std::nullopt);
  for (const std::int64_t rotary_dim : {-16, 8, 24, 144}) {
    appended.rotary_dim = rotary_dim;
    EXPECT_THAT(why_impossible(appended).value_or(""), AllOf(StartsWith("--rotary-dim"), HasSubstr("multiples of 16")));
  }
  appended.rotary_dim = 0;
  appended.lengths_kv = {1, 0};
  EXPECT_THAT(why_impossible(appended).value_or(""), StartsWith("--lengths-kv 0 is out of range with --append"));
  appended.lengths_kv = {1, 2};
  EXPECT_EQ(why_impossible(appended), std::nullopt);
  appended.lengths = {1, 0};
  EXPECT_THAT(why_impossible(appended).value_or(""), StartsWith("--append and --lengths exclude each other"));
  appended.lengths.clear();
  appended.causal = true;
  EXPECT_THAT(why_impossible(appended).value_or(""), StartsWith("--append and --causal exclude each other"));
}

TEST(Decoding, SeveralQueriesAreCausalToo) {
  Version version = kVersion;
  const auto causal_sets = [&] {
    const auto sets = check_sets(version, kConfiguration, kProblem, {});
    for (const CheckSet& set : sets) EXPECT_EQ(why_unsupported(version, kConfiguration, set.problem), std::nullopt);
    return std::ranges::count_if(sets, [&](const CheckSet& set) {
      const AttentionProblem& p = set.problem;
      return p.causal && p.seq_len == version.most_queries && std::ranges::count(p.lengths_kv, 1) > 0 &&
             p.lengths.size() == p.lengths_kv.size() && p.heads == 3 * p.kv_heads;
    });
  };
  EXPECT_EQ(causal_sets(), 0);
  version.solves.causal = true;
  EXPECT_EQ(causal_sets(), 1);
}

TEST(Decoding, NewTokensAreAppendedToPagesAndRotatedInBothWays) {
  Version version = kVersion;
  version.solves.paged = true;
  const auto count = [&](const std::function<bool(const AttentionProblem&)>& uses) {
    const auto sets = check_sets(version, kConfiguration, kProblem, {});
    for (const CheckSet& set : sets) EXPECT_EQ(why_unsupported(version, kConfiguration, set.problem), std::nullopt);
    return std::ranges::count_if(sets, [&](const CheckSet& set) { return set.problem.append && uses(set.problem); });
  };
  EXPECT_EQ(count([](const AttentionProblem&) { return true; }), 0);
  version.solves.append = true;
  EXPECT_GE(count([](const AttentionProblem& p) { return p.page_size == 0; }), 2);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.page_size != 0; }), 2);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.seq_len > 1; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return std::ranges::count(p.lengths_kv, 1) > 0; }), 1);
  EXPECT_EQ(count([](const AttentionProblem& p) { return p.rotary_dim != 0; }), 0);
  version.solves.rotary = true;
  EXPECT_GE(count([](const AttentionProblem& p) { return p.rotary_dim == p.head_dim && !p.rotary_interleaved; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.rotary_dim == p.head_dim && p.rotary_interleaved; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.rotary_dim != 0 && p.rotary_dim < p.head_dim; }), 3);
}

TEST(Decoding, ACacheOf8BitsIsForQueriesOf16BitsAndWithoutANewToken) {
  AttentionProblem cached = kProblem;
  cached.fp8_cache = true;
  EXPECT_THAT(why_unsupported(kVersion, kConfiguration, cached).value_or(""),
              AllOf(StartsWith("--fp8-cache is not supported by D01_one_query"), HasSubstr("leave it out")));
  EXPECT_EQ(why_impossible(cached), std::nullopt);
  EXPECT_EQ(tensor_bytes(cached), 2 * 3 * 128 * (2 + 2 * 192 + 2));
  cached.append = true;
  EXPECT_THAT(why_impossible(cached).value_or(""), StartsWith("--fp8-cache and --append exclude each other"));
  cached.append = false;
  cached.dtype = Dtype::e4m3;
  EXPECT_THAT(why_impossible(cached).value_or(""), StartsWith("--fp8-cache is for Q of 16 bits"));
}

TEST(Decoding, CachesOf8BitsAreCheckedInPagesAndWithSeveralQueries) {
  Version version = kVersion;
  version.solves.paged = version.solves.append = true;
  const auto count = [&](const std::function<bool(const AttentionProblem&)>& uses) {
    const auto sets = check_sets(version, kConfiguration, kProblem, {});
    for (const CheckSet& set : sets) EXPECT_EQ(why_unsupported(version, kConfiguration, set.problem), std::nullopt);
    return std::ranges::count_if(sets, [&](const CheckSet& set) { return set.problem.fp8_cache && uses(set.problem); });
  };
  EXPECT_EQ(count([](const AttentionProblem&) { return true; }), 0);
  version.solves.fp8_cache = true;
  EXPECT_GE(count([](const AttentionProblem& p) { return p.page_size == 0; }), 4);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.page_size != 0; }), 4);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.seq_len > 1; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.seq_len_kv > 32 * 64; }), 2);
}

// The reference reads these elements, so it multiplies exactly what is in the cache by exactly the scales.
TEST(Decoding, ElementsOfACacheOf8BitsAreE4m3TimesScalesThatDiffer) {
  AttentionProblem problem = kProblem;
  problem.heads = 8;
  problem.kv_heads = 4;
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    problem.dtype = dtype;
    problem.fp8_cache = false;
    const Inputs in_16_bits = make_inputs(problem, Distribution::normal, Packing::with_gaps, 5);
    problem.fp8_cache = true;
    const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::with_gaps, 5);
    EXPECT_TRUE(std::equal(inputs.Q_row(0, 0, 0), inputs.Q_row(0, 0, 0) + 128, in_16_bits.Q_row(0, 0, 0)));
    EXPECT_FALSE(is_in_8_bits(inputs, inputs.Q_buffer));
    std::atomic<std::int64_t> rows = 0;
    for (const int buffer : {inputs.K_buffer, inputs.V_buffer}) {
      EXPECT_TRUE(is_in_8_bits(inputs, buffer));
      for_each_scaled_row(inputs, buffer, [&](std::int64_t begin, std::int64_t end, float scale) {
        ++rows;
        for (std::int64_t i = begin; i < end; ++i) {
          const float value = element_to_float(dtype, inputs.buffers[buffer].data()[i]);
          EXPECT_EQ(e4m3_to_float(e4m3_from_float(value / scale)) * scale, value);
          const float before = element_to_float(dtype, in_16_bits.buffers[buffer].data()[i]);
          EXPECT_NEAR(value, before, std::max(std::abs(before) / 16, scale * 0x1p-10f));  // half an ulp of e4m3
        }
      });
    }
    EXPECT_EQ(rows, 2 * problem.batch * problem.kv_heads * problem.seq_len_kv);
    const auto scale = [&](int tensor, int batch, int head) { return inputs.scales[(tensor * 2 + batch) * 8 + head]; };
    EXPECT_EQ(scale(1, 0, 2), scale(1, 0, 3)) << "heads of Q that read the same head of K";
    EXPECT_NE(scale(1, 0, 0), scale(1, 0, 2)) << "heads of K";
    EXPECT_NE(scale(1, 0, 0), scale(1, 1, 0)) << "batch entries";
    EXPECT_NE(scale(1, 0, 0), scale(2, 0, 0)) << "K and V";
  }
}

// A cache whose new rows are those of the new token, and in which the launch may have made a mistake.
TEST(Decoding, TheCacheAfterALaunchHasTheNewRowsAndIsOtherwiseTheSame) {
  for (const std::int64_t page_size : {0, 16})
    for (const std::int64_t rotary_dim : {0, 32}) {
      AttentionProblem problem = kProblem;
      problem.append = true;
      problem.lengths_kv = {33, 192};
      problem.page_size = page_size;
      problem.rotary_dim = rotary_dim;
      const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::with_gaps, 5);
      std::vector<HostBuffer> after;
      for (const HostBuffer& buffer : inputs.buffers) {
        after.emplace_back(buffer.size());
        std::copy_n(buffer.data(), buffer.size(), after.back().data());
      }
      std::uint16_t* const K = after[inputs.K_buffer].data();
      std::uint16_t* const V = after[inputs.V_buffer].data();
      const std::int64_t new_row = inputs.K.row(1, 2, 191), first_row = inputs.K.row(1, 2, 0);
      const std::string not_rotated = find_wrong_append(inputs, after).value_or("");
      EXPECT_EQ(not_rotated.starts_with("the new row of K is wrong"), rotary_dim != 0) << not_rotated;
      for (std::int64_t i = 0; i < problem.batch * problem.heads; ++i) {
        const std::int64_t batch = i / problem.heads;
        std::uint16_t* row = K + inputs.K.row(batch, i % problem.heads, problem.lengths_kv[batch] - 1);
        std::vector<float> rotated(problem.head_dim);
        elements_to_float(problem.dtype, row, problem.head_dim, rotated.data());
        rotate(inputs, batch, rotated.data());
        for (std::int64_t d = 0; d < problem.head_dim; ++d) row[d] = element_from_float(problem.dtype, rotated[d]);
      }
      EXPECT_EQ(find_wrong_append(inputs, after), std::nullopt);
      EXPECT_EQ(find_changed_input(inputs, after), std::nullopt);
      const auto found = [&](std::uint16_t& element, int by) {
        element += by;
        const std::string text = find_wrong_append(inputs, after).value_or("");
        element -= by;
        return text;
      };
      EXPECT_THAT(found(K[new_row + 1], 2),
                  HasSubstr("the new row of K is wrong in the cache: first at batch 1, head 2"));
      EXPECT_THAT(found(K[new_row + 127], 1), HasSubstr("row 191, column 127")) << "not rotated, so every bit counts";
      EXPECT_THAT(found(V[inputs.V.row(0, 0, 32)], 1), HasSubstr("the new row of V is wrong"));
      EXPECT_THAT(found(K[first_row], 1), HasSubstr("changed K beside the new rows"));
      EXPECT_THAT(found(V[inputs.V.row(0, 0, 32) + 128], 1), HasSubstr("changed V beside the new rows")) << "in a gap";
      EXPECT_EQ(find_wrong_append(inputs, after), std::nullopt);
    }
}

}  // namespace
}  // namespace flash_ladder
