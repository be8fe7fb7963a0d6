// The problems that a version is checked with if it solves windows, packed sequences, pages or changes of the scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "problem/problem.h"
#include "rules/support.h"
#include "worker/check_sets.h"

namespace flash_ladder {
namespace {

const AttentionProblem kRequested{.batch = 2, .heads = 3, .seq_len = 256, .seq_len_kv = 192};

Version version_of_plain_problems() {
  const Configuration configuration{.name = "128x64",
                                    .dtype = Dtype::fp16,
                                    .block_q = 128,
                                    .block_kv = 64,
                                    .head_dim = 128,
                                    .head_dim_v = 128,
                                    .num_warps = 4,
                                    .stages = 1,
                                    .step_kv = 64,
                                    .smem_bytes = 0,
                                    .traits = "",
                                    .workspace_bytes = no_workspace,
                                    .launch = {}};
  return {.number = 6, .name = "swizzle", .source = "kernels/06_swizzle.cu", .configurations = {configuration}};
}

TEST(CheckSets, AVersionThatSolvesMoreIsCheckedWithMore) {
  Version version = version_of_plain_problems();
  const Configuration& configuration = version.configurations[0];
  const auto plain = check_sets(version, configuration, kRequested, {});
  const auto count = [&](auto&& what) {
    const auto sets = check_sets(version, configuration, kRequested, {});
    for (const CheckSet& set : sets)
      EXPECT_EQ(why_unsupported(version, configuration, set.problem), std::nullopt) << set.name;
    EXPECT_GE(sets.size(), plain.size());
    return std::count_if(sets.begin(), sets.end(), [&](const CheckSet& set) { return what(set.problem); });
  };
  const auto masked = [](const AttentionProblem& p) { return p.causal; };
  const auto with_a_tail = [](const AttentionProblem& p) { return p.seq_len % 128 != 0 && p.seq_len_kv % 64 != 0; };
  const auto blind_rows = [](const AttentionProblem& p) { return p.causal && p.seq_len > p.seq_len_kv; };
  const auto longer_keys = [](const AttentionProblem& p) { return p.causal && p.seq_len < p.seq_len_kv; };
  EXPECT_EQ(count(masked), 0);
  EXPECT_EQ(count(with_a_tail), 0);
  version.solves.any_length = true;
  EXPECT_EQ(count(masked), 0);
  EXPECT_GE(count(with_a_tail), 3);
  const auto sets_of_any_length = check_sets(version, configuration, kRequested, {});
  EXPECT_TRUE(std::ranges::any_of(sets_of_any_length, [&](const CheckSet& set) {
    return set.packing == Packing::with_gaps && with_a_tail(set.problem);
  }));
  EXPECT_TRUE(std::ranges::any_of(sets_of_any_length, [](const CheckSet& set) {
    return set.distribution == Distribution::adversarial && set.problem.seq_len_kv % 64 != 0;
  }));
  version.solves.causal = true;
  EXPECT_GE(count(blind_rows), 2);
  EXPECT_GE(count(longer_keys), 2);
  // Queries 0 to 127 are a tile. The diagonal enters one of them at key 0, and leaves another one at key 63.
  EXPECT_GE(count([&](const AttentionProblem& p) {
              const std::int64_t first = p.seq_len - p.seq_len_kv;
              return blind_rows(p) && first % 128 + 63 >= 128 && p.seq_len >= first + 63;
            }),
            1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return masked(p) && with_a_tail(p); }), 2);
  version.solves.any_length = false;
  EXPECT_GE(count(masked), 3);
  EXPECT_EQ(count(with_a_tail), 0);

  const auto grouped = [](const AttentionProblem& p) { return p.kv_heads > 0; };
  const auto of_lengths = [](const AttentionProblem& p) { return !p.lengths.empty() && !p.lengths_kv.empty(); };
  const auto padded = [](const AttentionProblem& p) { return std::ranges::count(p.lengths, 0) > 0; };
  EXPECT_EQ(count(grouped) + count(of_lengths), 0);
  const std::pair<bool Solves::*, std::function<bool(const AttentionProblem&)>> fields[] = {
      {&Solves::kv_heads, grouped}, {&Solves::lengths, of_lengths}, {&Solves::lengths, padded}};
  for (const auto& [member, uses] : fields) {
    version.solves = {};
    version.solves.*member = true;
    const auto alone = count(uses);
    EXPECT_GE(alone, 2);
    version.solves.causal = true;
    EXPECT_EQ(count(uses), 2 * alone);
  }
}

TEST(CheckSets, PackedSequencesAndScoresAreChecked) {
  Version version = version_of_plain_problems();
  const Configuration& configuration = version.configurations[0];
  const auto count = [&](const std::function<bool(const AttentionProblem&)>& uses) {
    const auto sets = check_sets(version, configuration, kRequested, {});
    for (const CheckSet& set : sets) EXPECT_EQ(why_unsupported(version, configuration, set.problem), std::nullopt);
    return std::ranges::count_if(sets, [&](const CheckSet& set) { return uses(set.problem); });
  };
  const auto packed = [](const AttentionProblem& p) { return p.packed; };
  const auto changed = [](const AttentionProblem& p) { return p.softcap != 0 || p.alibi || p.sinks; };
  EXPECT_EQ(count(packed) + count(changed), 0);
  version.solves = {.packed = true};
  EXPECT_GE(count(packed), 5);
  EXPECT_GE(count([&](const AttentionProblem& p) { return packed(p) && p.batch == 40; }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return packed(p) && std::ranges::count(p.lengths, 0) == 2; }), 1);
  version.solves = {.scores = true};
  EXPECT_GE(count(changed), 6);
  version.solves = {
      .causal = true, .any_length = true, .kv_heads = true, .window = true, .packed = true, .scores = true};
  EXPECT_GE(count([&](const AttentionProblem& p) { return packed(p) && changed(p); }), 2);
  EXPECT_GE(count([&](const AttentionProblem& p) { return packed(p) && p.kv_heads != 0; }), 2);
  EXPECT_GE(count([&](const AttentionProblem& p) { return packed(p) && p.window_left != kNoWindow; }), 2);
}

TEST(CheckSets, PagesAreOfSeveralSizesWithAndWithoutGaps) {
  Version version = version_of_plain_problems();
  version.most_queries = 8;
  version.solves = {.any_length = true, .kv_heads = true, .lengths = true};
  const Configuration& configuration = version.configurations[0];
  const auto sizes = [&](Packing packing) {
    std::set<std::int64_t> found;
    for (const CheckSet& set : check_sets(version, configuration, kRequested, {}))
      if (set.problem.page_size != 0 && set.packing == packing) {
        EXPECT_EQ(why_unsupported(version, configuration, set.problem), std::nullopt) << set.name;
        found.insert(set.problem.page_size);
      }
    return found.size();
  };
  EXPECT_EQ(sizes(Packing::separate) + sizes(Packing::with_gaps), 0u);
  version.solves.paged = true;
  EXPECT_GE(sizes(Packing::separate), 2u);
  EXPECT_GE(sizes(Packing::with_gaps), 2u);
}

TEST(CheckSets, DropoutIsCheckedWithTheOtherFields) {
  Version version = version_of_plain_problems();
  const Configuration& configuration = version.configurations[0];
  const auto count = [&](const std::function<bool(const AttentionProblem&)>& uses) {
    const auto sets = check_sets(version, configuration, kRequested, {});
    for (const CheckSet& set : sets) EXPECT_EQ(why_unsupported(version, configuration, set.problem), std::nullopt);
    return std::ranges::count_if(sets,
                                 [&](const CheckSet& set) { return set.problem.dropout_p > 0 && uses(set.problem); });
  };
  EXPECT_EQ(count([](const AttentionProblem&) { return true; }), 0);
  version.solves = {.dropout = true};
  EXPECT_GE(count([](const AttentionProblem& p) { return !p.causal; }), 4);
  version.solves = {.causal = true,
                    .any_length = true,
                    .kv_heads = true,
                    .window = true,
                    .lengths = true,
                    .packed = true,
                    .scores = true,
                    .dropout = true};
  EXPECT_GE(count([](const AttentionProblem& p) { return p.causal; }), 5);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.packed; }), 2);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.kv_heads != 0; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return p.sinks; }), 1);
  EXPECT_GE(count([](const AttentionProblem& p) { return !p.lengths.empty() && !p.packed; }), 1);
}

TEST(CheckSets, AllHaveTheHeadDimsOfTheConfiguration) {
  Version version = version_of_plain_problems();
  version.solves = {.head_dim_v = true, .causal = true, .any_length = true, .packed = true};
  Configuration& configuration = version.configurations[0];
  configuration.head_dim = 192;
  AttentionProblem requested = kRequested;
  requested.head_dim = 192;
  requested.head_dim_v = 128;
  for (const CheckSet& set : check_sets(version, configuration, requested, {})) {
    EXPECT_EQ(set.problem.head_dim, 192) << set.name;
    EXPECT_EQ(set.problem.head_dim_v, 128) << set.name;
  }
}

TEST(Support, TheConfigurationHasTheProblemsHeadDimOfV) {
  Version version = version_of_plain_problems();
  AttentionProblem problem = kRequested;
  const auto refusal = [&] {
    return why_unsupported(version, *find_configuration(version, problem, "", {}).configuration, problem).value_or("");
  };
  problem.head_dim = 192;
  problem.head_dim_v = 128;
  EXPECT_THAT(refusal(), testing::StartsWith("--head-dim-v is not supported by " + label(version)));
  version.solves.head_dim_v = true;
  version.configurations[0].head_dim = 192;
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(head_dims(version, problem.dtype), testing::IsEmpty());
  EXPECT_THAT(unequal_head_dims(version, problem.dtype), testing::ElementsAre(std::pair(192, 128)));
  problem.head_dim_v = 64;
  EXPECT_EQ(refusal(),
            "head_dim 192 with --head-dim-v 64 is not supported by " + label(version) + "; allowed: 192 with 128");
  problem.head_dim_v = -1;
  EXPECT_THAT(why_impossible(problem).value_or(""),
              testing::AllOf(testing::StartsWith("--head-dim-v -1 "), testing::HasSubstr(" 1 to 2147483647")));
}

TEST(CheckSets, AWindowHasEitherSideOrBothAndRowsThatSeeNoKey) {
  Version version = version_of_plain_problems();
  const Configuration& configuration = version.configurations[0];
  const auto count = [&](const std::function<bool(const AttentionProblem&)>& uses) {
    const auto sets = check_sets(version, configuration, kRequested, {});
    return std::ranges::count_if(sets, [&](const CheckSet& set) { return uses(set.problem); });
  };
  const auto left = [](const AttentionProblem& p) { return p.window_left != kNoWindow; };
  const auto right = [](const AttentionProblem& p) { return p.window_right != kNoWindow; };
  EXPECT_EQ(count(left) + count(right), 0);
  version.solves = {.window = true};
  EXPECT_EQ(count([](const AttentionProblem& p) { return p.causal; }), 0);
  EXPECT_GE(count([&](const AttentionProblem& p) { return left(p) && p.window_right == p.window_left; }), 3);
  EXPECT_GE(count([&](const AttentionProblem& p) { return left(p) && right(p) && p.window_right < p.window_left; }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return left(p) && right(p) && p.window_right > p.window_left; }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return left(p) && !right(p); }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return !left(p) && right(p); }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) {
              return left(p) && visible_keys(p, 0, 0).begin == visible_keys(p, 0, 0).end;
            }),
            2);
  // A whole tile of keys, and one of queries, with nothing to see.
  const auto unseen_keys = [&](const AttentionProblem& p) { return left(p) && visible_keys(p, 0, 0).begin >= 64; };
  const auto blind_queries = [&](const AttentionProblem& p) {
    const KeyRange keys = visible_keys(p, 0, 127);
    return left(p) && p.seq_len > p.seq_len_kv && keys.begin == keys.end;
  };
  EXPECT_GE(count(unseen_keys), 1);
  EXPECT_GE(count(blind_queries), 1);
  const auto odd = [&](const AttentionProblem& p) { return (left(p) || right(p)) && p.seq_len % 128 != 0; };
  EXPECT_EQ(count(odd), 0);
  version.solves.any_length = true;
  EXPECT_GE(count(odd), 3);
  EXPECT_GE(count([&](const AttentionProblem& p) { return odd(p) && unseen_keys(p); }), 1);
  EXPECT_GE(count([&](const AttentionProblem& p) { return odd(p) && blind_queries(p); }), 1);
  version.solves.causal = true;
  EXPECT_GE(count([&](const AttentionProblem& p) { return left(p) && p.causal; }), 6);
  EXPECT_GE(count([&](const AttentionProblem& p) { return p.window_left == 0 && p.causal; }), 1);
  for (const CheckSet& set : check_sets(version, configuration, kRequested, {}))
    EXPECT_EQ(set.problem, in_plainest_form(set.problem)) << set.name;
}

}  // namespace
}  // namespace flash_ladder
