// What a version that is made for few queries accepts, and what it is checked with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "host/versions.h"
#include "problem/problem.h"
#include "rules/support.h"
#include "worker/check_sets.h"

namespace flash_ladder {
namespace {

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

}  // namespace
}  // namespace flash_ladder
