#include "worker/check_sets_of_kinds.h"

#include <algorithm>

#include "problem/problem.h"

namespace flash_ladder {
namespace {

// More than 32 parts of 64 keys, and a part of another one.
constexpr std::int64_t kKeysOfLongCache = 36 * 64 + 9;
// Two tiles of the 16 rows of an mma, of which the second is not full.
constexpr std::int64_t kHeadsOfLargeGroup = 27;

// A new token of each batch entry: the first key of a sequence, of a tile, of a slice and of a page, and the last one of each. More
// CTAs than one have the new key if there are several queries, or more heads than an mma has rows.
void add_appended(Sets& sets, const Solves& solves, AttentionProblem cache, AttentionProblem long_cache) {
  cache.lengths = {}, cache.lengths_kv[0] = 2;
  cache.append = long_cache.append = true;
  const auto add = [&](const char* name, const AttentionProblem& problem, Packing packing, int sms) {
    CheckSet set{.name = name, .problem = problem, .distribution = Distribution::offset_mean};
    set.packing = packing, set.sms = sms;
    sets.push_back(set);
  };
  add("several queries and a new token", cache, Packing::with_gaps, 3);
  cache.seq_len = 1;
  cache.heads = 2 * kHeadsOfLargeGroup;
  add("a new token, many heads of Q for each of K and V", cache, Packing::separate, 0);
  cache.heads = 4;
  cache.page_size = long_cache.page_size = 16;
  add("a new token, pages of 16 keys", cache, Packing::separate, 3);
  add("a new token, pages of 16 keys, long caches", long_cache, Packing::with_gaps, 1);
  if (!solves.rotary) return;
  cache.rotary_dim = cache.head_dim;
  for (const bool interleaved : {false, true}) {
    cache.rotary_interleaved = interleaved;
    cache.heads = interleaved ? 4 : 2 * kHeadsOfLargeGroup;
    add("a new token, rotated", cache, Packing::with_gaps, 3);
  }
  long_cache.page_size = 0;
  for (const std::int64_t rotary_dim : {16, 32, 48, 64}) {
    long_cache.rotary_dim = rotary_dim;
    long_cache.rotary_interleaved = rotary_dim == 48;
    add("a new token, long caches, partly rotated", long_cache, Packing::separate, 2);
  }
}

}  // namespace

// The same sets with no more queries than the version solves; packed Q, K and V have as many keys.
void limit_queries(Sets& sets, std::int64_t most) {
  for (CheckSet& set : sets) {
    AttentionProblem& problem = set.problem;
    if (set.packing == Packing::packed_qkv) problem.seq_len_kv = std::min(problem.seq_len_kv, most);
    problem.seq_len = std::min(problem.seq_len, most);
    for (std::int64_t& length : problem.lengths) length = std::clamp<std::int64_t>(length, 0, problem.seq_len);
  }
}

// One query of each head, and as many as the version solves, against caches of 0, 1 and numbers of keys around whole tiles, and
// against long ones: a version that divides the keys among CTAs has more parts than a warp has lanes. A version that takes the
// heads of a group together has more of them than an mma has rows.
void add_decoding(Sets& sets, const Version& version, const Configuration& configuration) {
  const std::int64_t block_kv = configuration.block_kv;
  const std::size_t first = sets.size();
  const auto add = [&](const char* name, AttentionProblem problem, std::int64_t page_size, Packing packing) {
    problem.page_size = page_size;
    sets.push_back({.name = name, .problem = problem, .distribution = Distribution::offset_mean, .packing = packing});
    sets.back().sms = 3;
  };
  AttentionProblem cache = small_problem(configuration);
  cache.batch = 7;
  cache.heads = 4;
  cache.kv_heads = 2;
  cache.seq_len = 1;
  cache.seq_len_kv = 2 * cache.seq_len_kv + 3;
  cache.lengths_kv = {0, 1, block_kv - 1, block_kv, block_kv + 1, cache.seq_len_kv - 1, cache.seq_len_kv};
  add("one query, caches of several lengths", cache, 0, Packing::with_gaps);
  sets.back().launches = 3;
  cache.seq_len = version.most_queries;
  cache.lengths = {cache.seq_len, 1, 0, cache.seq_len, 2, 1, cache.seq_len};
  add("several queries, caches of several lengths", cache, 0, Packing::separate);
  sets.back().sms = 2;
  if (version.solves.causal) {  // some queries see no key; with three heads, they begin anywhere in a tile of rows
    sets.push_back(sets.back());
    sets.back().name = "several causal queries, caches of several lengths";
    sets.back().problem.heads = 6, sets.back().problem.causal = true;
  }

  // More batch entries than a warp has lanes, of which one has most of the keys.
  AttentionProblem one_long = small_problem(configuration);
  one_long.batch = 40;
  one_long.heads = 2;
  one_long.kv_heads = one_long.seq_len = 1;
  one_long.seq_len_kv = 40 * block_kv + 1;
  for (std::int64_t i = 0; i < one_long.batch; ++i) one_long.lengths_kv.push_back(i * 7 % 19);
  one_long.lengths_kv[33] = one_long.seq_len_kv;
  add("one query, a long cache among short ones", one_long, 0, Packing::separate);

  AttentionProblem long_cache = small_problem(configuration);
  long_cache.heads = 2;
  long_cache.kv_heads = long_cache.seq_len = 1;
  long_cache.seq_len_kv = kKeysOfLongCache;
  long_cache.lengths_kv = {kKeysOfLongCache, kKeysOfLongCache * 2 / 3};
  sets.push_back({.name = "one query, long caches", .problem = long_cache, .distribution = Distribution::ramp});

  if (version.solves.paged) {
    // A page for each tile; pages for several of them; more pages than a warp has lanes; one page that no cache fills.
    add("pages of 16 keys, caches of several lengths", cache, 16, Packing::separate);
    add("pages of 64 keys with gaps, caches of several lengths", cache, 64, Packing::with_gaps);
    add("pages of 16 keys, long caches", long_cache, 16, Packing::separate);
    sets.back().sms = 1;  // so that a warp has more pages than lanes
    add("pages of 32 keys with gaps, long caches", long_cache, 32, Packing::with_gaps);
    add("a large page", small_problem(configuration), 1024, Packing::separate);
    sets.back().problem.seq_len = 1;
  }

  AttentionProblem large_groups = small_problem(configuration);
  large_groups.heads = 2 * kHeadsOfLargeGroup;
  large_groups.kv_heads = 2;
  large_groups.seq_len = 1;
  sets.push_back({.name = "one query, many heads of Q for each of K and V",
                  .problem = large_groups,
                  .distribution = Distribution::offset_mean});

  // The same with e4m3 in the cache.
  const std::size_t end = version.solves.fp8_cache ? sets.size() : first;
  for (std::size_t i = first; i < end; ++i) {
    CheckSet set = sets[i];
    set.name += ", in 8 bits";
    set.problem.fp8_cache = true;
    sets.push_back(set);
  }
  if (version.solves.append) add_appended(sets, version.solves, cache, long_cache);
}

// Gradients that are far from 1; scores that are far from 0, so that most rows see little more than one key; keys that are all the same,
// of which dS has to cancel exactly.
void add_backward(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const AttentionProblem small = small_problem(configuration);
  sets.push_back({.name = "large dO", .problem = small, .output_gradient = OutputGradient::large});
  sets.push_back({.name = "small dO", .problem = small, .output_gradient = OutputGradient::small});
  for (const Distribution distribution : {Distribution::q_times_6, Distribution::sink, Distribution::equal_keys})
    sets.push_back({.name = to_string(distribution) + " inputs", .problem = small, .distribution = distribution});
  if (!solves.lengths) return;
  // Queries without keys, keys without queries, and heads of which a sum is made; dO has strides of its own.
  AttentionProblem other = square_problem(configuration);
  other.batch = 4;
  if (solves.kv_heads) {
    other.heads = 4;
    other.kv_heads = 2;
  }
  other.lengths = {other.seq_len, other.seq_len, 0, configuration.block_q + 1};
  other.lengths_kv = {0, configuration.block_kv + 1, other.seq_len_kv, other.seq_len_kv};
  sets.push_back({.name = "several lengths of queries and of keys, and gaps",
                  .problem = other,
                  .distribution = Distribution::offset_mean,
                  .packing = Packing::with_gaps});
}

}  // namespace flash_ladder
