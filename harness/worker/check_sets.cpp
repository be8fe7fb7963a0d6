#include "worker/check_sets.h"

#include <fmt/format.h>

#include <numeric>

#include "results/result.h"

namespace flash_ladder {
namespace {

// At least so many keys, so that even with tiles of one key there is something to sum.
constexpr std::int64_t kMinKeys = 96;
// With two matrix products in float64 and two in fp32, some 10^10 multiplications.
constexpr std::int64_t kScoresForEveryRow = 1 << 24;

// The smallest odd number of tiles, from 3, that has kMinKeys.
std::int64_t odd_tiles(std::int64_t block_kv) {
  std::int64_t tiles = 3;
  while (tiles * block_kv < kMinKeys) tiles += 2;
  return tiles;
}

}  // namespace

std::vector<CheckSet> check_sets(const Configuration& configuration, const AttentionProblem& problem) {
  const AttentionProblem small{.batch = 2,
                               .heads = 3,
                               .seq_len = 2 * configuration.block_q,
                               .seq_len_kv = odd_tiles(configuration.block_kv) * configuration.block_kv,
                               .head_dim = configuration.head_dim,
                               .dtype = configuration.dtype};
  std::vector<CheckSet> sets;
  for (const Distribution distribution :
       {Distribution::normal, Distribution::offset_mean, Distribution::large_logit, Distribution::ramp})
    sets.push_back(
        {.name = to_string(distribution) + " inputs", .problem = small, .distribution = distribution, .launches = 3});

  AttentionProblem one_tile = small;
  one_tile.seq_len_kv = configuration.block_kv;
  sets.push_back({.name = "one K/V tile", .problem = one_tile, .distribution = Distribution::offset_mean});

  AttentionProblem square = small;  // packed Q, K and V have the same length
  square.seq_len = square.seq_len_kv = 2 * std::lcm(configuration.block_q, configuration.block_kv);
  sets.push_back({.name = "packed Q, K, V", .problem = square, .packing = Packing::packed_qkv});

  sets.push_back(
      {.name = "the requested problem", .problem = problem, .row_tile = row_tile(problem, configuration.block_q)});
  return sets;
}

std::int64_t row_tile(const AttentionProblem& problem, std::int64_t block_q) {
  const double scores = 1.0 * problem.batch * problem.heads * problem.seq_len * problem.seq_len_kv;
  return scores <= kScoresForEveryRow ? 1 : std::gcd<std::int64_t>(block_q, 64);
}

std::string describe(const AttentionProblem& problem) {
  return fmt::format("batch {}, heads {}, seq-len {}, seq-len-kv {}, {}", problem.batch, problem.heads, problem.seq_len,
                     problem.seq_len_kv, to_string(problem.dtype));
}

}  // namespace flash_ladder
