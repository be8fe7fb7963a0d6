#include "worker/check_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "host/sm_limits.h"
#include "problem/problem.h"
#include "worker/adversarial.h"
#include "worker/check_sets_of_kinds.h"

namespace flash_ladder {
namespace {

// The minimum number of keys, so that even with tiles of one key there is something to sum.
constexpr std::int64_t kMinKeys = 96;
// With two matrix products in float64 and two in fp32, this is some 10^10 multiplications.
constexpr std::int64_t kScoresForEveryRow = 1 << 24;
// With one query tile more, these are the scores of the set with many query tiles: a quarter of those of the harness's
// default problem without a GPU.
constexpr std::int64_t kScoresOfManyTiles = 1 << 15;

// The smallest odd number of tiles, at least 3, that has kMinKeys keys.
std::int64_t odd_tiles(std::int64_t block_kv) {
  std::int64_t tiles = 3;
  while (tiles * block_kv < kMinKeys) tiles += 2;
  return tiles;
}

// How many CTAs of the configuration the GPU runs at a time, judging by shared memory and threads.
std::int64_t ctas_at_a_time(const Configuration& configuration, const DeviceInfo& device) {
  const SmLimits* limits = sm_limits(device.compute_capability);
  if (limits == nullptr) return device.sm_count;
  const int per_sm = std::min({limits->smem_bytes / (configuration.smem_bytes + kReservedSmemBytes),
                               limits->threads / (configuration.num_warps * 32), limits->ctas});
  return std::int64_t{device.sm_count} * std::max(per_sm, 1);
}

// One query tile for each of the heads that are designed.
AttentionProblem adversarial_problem(const Configuration& configuration) {
  AttentionProblem designed = small_problem(configuration);
  designed.batch = 1;
  designed.heads = kDesignedHeads;
  designed.seq_len = configuration.block_q;
  return designed;
}

void add_distributions(Sets& sets, const Configuration& configuration) {
  const AttentionProblem small = small_problem(configuration);
  for (const auto& [distribution, sms] : {std::pair{Distribution::normal, 0},
                                          {Distribution::offset_mean, 2},
                                          {Distribution::large_logit, 5},
                                          {Distribution::ramp, 3}})
    sets.push_back({.name = to_string(distribution) + " inputs",
                    .problem = small,
                    .distribution = distribution,
                    .launches = 3,
                    .sms = sms});

  sets.push_back({.name = to_string(Distribution::adversarial) + " inputs",
                  .problem = adversarial_problem(configuration),
                  .distribution = Distribution::adversarial});
}

void add_numbers_of_tiles(Sets& sets, const Configuration& configuration) {
  const AttentionProblem small = small_problem(configuration);
  AttentionProblem one_tile = small;
  one_tile.seq_len_kv = configuration.block_kv;
  sets.push_back({.name = "one K/V tile", .problem = one_tile, .distribution = Distribution::offset_mean, .sms = 2});

  AttentionProblem single = one_tile;
  single.batch = single.heads = 1;
  single.seq_len = configuration.block_q;
  sets.push_back({.name = "a single tile", .problem = single, .distribution = Distribution::offset_mean});

  AttentionProblem many_tiles = single;  // each buffer is filled four times
  many_tiles.seq_len_kv = small.seq_len_kv + (4 * configuration.stages - 1) / 2 * 2 * configuration.block_kv;
  sets.push_back({.name = "many K/V tiles", .problem = many_tiles, .distribution = Distribution::offset_mean});

  // More queries than keys, and so many that a number of CTAs that is rounded wrongly shows.
  AttentionProblem many_q_tiles = single;
  const std::int64_t tiles = kScoresOfManyTiles / (configuration.block_q * configuration.block_kv);
  many_q_tiles.seq_len = (std::clamp<std::int64_t>(tiles, 2, 128) + 1) * configuration.block_q;
  sets.push_back({.name = "many query tiles", .problem = many_q_tiles, .distribution = Distribution::offset_mean});
}

void add_layouts(Sets& sets, const Configuration& configuration) {
  sets.push_back({.name = "packed Q, K, V",
                  .problem = square_problem(configuration),  // they have the same length
                  .packing = Packing::packed_qkv,
                  .sms = 3});

  AttentionProblem apart =
      small_problem(configuration);  // as many query tiles as heads, and K/V tiles as batch entries
  apart.seq_len = 3 * configuration.block_q;
  apart.seq_len_kv = 2 * configuration.block_kv;
  sets.push_back({.name = "tensors with gaps",
                  .problem = apart,
                  .distribution = Distribution::offset_mean,
                  .packing = Packing::with_gaps,
                  .sms = 5});
}

void add_many_ctas(Sets& sets, const Configuration& configuration, const DeviceInfo& device) {
  if (device.is_virtual || device.sm_count == 0) return;
  AttentionProblem many_ctas = small_problem(configuration);
  const std::int64_t in_a_batch_entry = many_ctas.heads * 2;
  many_ctas.batch = ctas_at_a_time(configuration, device) * 12 / 5 / in_a_batch_entry + 1;
  sets.push_back({.name = "more query tiles than the GPU runs at a time",
                  .problem = many_ctas,
                  .row_tile = std::gcd<std::int64_t>(configuration.block_q, 64)});
}

// Parts of tiles, and the causal mask, which both depend on where the sequences end.
void add_ends_of_sequences(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const AttentionProblem small = small_problem(configuration), square = square_problem(configuration);
  const std::int64_t block_q = configuration.block_q, block_kv = configuration.block_kv;
  const auto add = [&](const char* name, std::int64_t seq_len, std::int64_t seq_len_kv, bool causal) {
    AttentionProblem other = small;
    other.seq_len = seq_len;
    other.seq_len_kv = seq_len_kv;
    other.causal = causal;
    sets.push_back({.name = name, .problem = other, .distribution = Distribution::offset_mean, .sms = 2});
  };
  if (solves.any_length) {
    add("one row and one key too few", 2 * block_q - 1, small.seq_len_kv - 1, false);
    add("one row and one key too many", block_q + 1, small.seq_len_kv + 1, false);
    add("a single row and a single key", 1, 1, false);
    // The last tile has half of its keys, and what follows each row in memory is NaN.
    add("half a tile of keys, and gaps", 2 * block_q + 1, block_kv + (block_kv + 1) / 2, false);
    sets.back().packing = Packing::with_gaps;
    AttentionProblem designed = adversarial_problem(configuration);
    --designed.seq_len_kv;
    sets.push_back({.name = to_string(Distribution::adversarial) + " inputs, and one key too few",
                    .problem = designed,
                    .distribution = Distribution::adversarial});
  }
  if (solves.causal) {
    // The lengths are those of `square`, or longer by whole tiles: the diagonal tile, to its right and to its left.
    add("causal, as many keys as queries", square.seq_len, square.seq_len, true);
    add("causal, more keys than queries", square.seq_len, square.seq_len + block_kv, true);
    add("causal, rows that see no key", square.seq_len + block_q, square.seq_len, true);
  }
  if (solves.causal && solves.any_length) {
    add("causal, a key more than queries", 2 * block_q + 1, 2 * block_q + 2, true);
    sets.back().problem.batch = 1;  // an odd number of heads
    add("causal, the first row sees no key", block_kv + 2, block_kv + 1, true);
    // The diagonal enters a tile of queries in its middle, so it cuts one more of them than where both kinds of tiles begin.
    add("causal, half a tile of rows sees no key", block_kv + block_q + block_q / 2 + 1, block_kv + block_q, true);
  }
}

// A problem with other fields than the plain one, and the same with the causal mask if that makes a difference.
void add_masked_too(Sets& sets, const Solves& solves, const std::string& name, const AttentionProblem& problem) {
  sets.push_back(
      {.name = name, .problem = in_plainest_form(problem), .distribution = Distribution::offset_mean, .sms = 3});
  CheckSet masked = sets.back();
  masked.name += ", causal";
  masked.problem.causal = true;
  masked.problem = in_plainest_form(masked.problem);
  if (solves.causal && masked.problem != sets.back().problem) sets.push_back(masked);
}

// Windows that are as wide on both sides: they end inside a tile and at the end of one, and leave out whole tiles.
void add_symmetrical_windows(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const std::int64_t block_q = configuration.block_q, block_kv = configuration.block_kv;
  AttentionProblem other = square_problem(configuration);
  const auto set_window = [&](std::int64_t window) { other.window_left = other.window_right = window; };
  for (const std::int64_t window : {block_kv / 2, block_kv - 1, block_kv}) {
    set_window(window);
    add_masked_too(sets, solves, fmt::format("a window of {}", window), other);
  }
  other.seq_len_kv += block_kv;
  add_masked_too(sets, solves, "a window, and more keys than queries", other);
  other.seq_len += 3 * block_kv;
  other.seq_len = (other.seq_len + block_q - 1) / block_q * block_q;
  add_masked_too(sets, solves, "a window, and rows that see no key", other);
  if (!solves.causal) return;  // which a window of 0 is, because it has no keys to the right
  other = square_problem(configuration);
  set_window(0);
  add_masked_too(sets, solves, "a window of 0", other);
}

// One side of the window has no limit, or another one. With three query tiles, the tiles of keys that a warp, a CTA and its
// neighbour see begin and end at different places.
void add_other_windows(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const std::int64_t block_q = configuration.block_q, block_kv = configuration.block_kv;
  AttentionProblem other = small_problem(configuration);
  other.batch = 1;
  other.seq_len = 3 * block_q;
  other.seq_len_kv = (other.seq_len + block_kv - 1) / block_kv * block_kv;
  const auto add = [&](const std::string& name, std::int64_t left, std::int64_t right, bool masked_too = false) {
    other.window_left = left;
    other.window_right = right;
    add_masked_too(sets, masked_too ? solves : Solves{}, name, other);
  };
  add("a window on the left", block_kv / 2 + 1, kNoWindow);
  add("a window on the right", kNoWindow, block_kv / 2 + 1);
  const std::int64_t far = block_kv + 6;
  add("a narrow window on the left, and a wide one on the right", 5, far, true);
  add("a wide window on the left, and a narrow one on the right", far, 5, true);
  other.seq_len_kv = 2 * block_kv;
  add("two widths, and rows that see no key", 5, far, true);
  // The window begins after whole tiles of keys.
  other.seq_len = block_q;
  other.seq_len_kv = (block_q + block_kv - 1) / block_kv * block_kv + 3 * block_kv;
  add("a window, and keys that no query sees", 5, far, true);
  if (!solves.any_length) return;
  other.seq_len = 3 * block_q - 1;
  other.seq_len_kv = 2 * block_q + block_kv / 2 + 1;
  add("two widths, and odd lengths", 5, far, true);
  other.seq_len = 2 * block_q + 1;
  other.seq_len_kv = other.seq_len + block_kv + 2;
  add("a window on the left, and odd lengths", block_kv - 1, kNoWindow, true);
  add("a window on the right, and odd lengths", kNoWindow, 1);
  other.seq_len = block_q + 1;
  other.seq_len_kv = other.seq_len + 2 * block_kv + 7;
  add("a window, keys that no query sees, and odd lengths", 5, kNoWindow, true);
  other.seq_len_kv = block_kv + 2;
  other.seq_len = other.seq_len_kv + block_q + 9;  // no key for a tile of queries, and for some of the next
  add("a window, rows that see no key, and odd lengths", 5, 2);
}

// Packed sequences: `lengths`, of at most seq_len.
AttentionProblem packed_problem(const Configuration& configuration, const std::vector<std::int64_t>& lengths,
                                const std::vector<std::int64_t>& lengths_kv) {
  AttentionProblem packed = small_problem(configuration);
  packed.batch = std::ssize(lengths);
  packed.heads = 2;
  packed.packed = true;
  packed.lengths = lengths;
  packed.lengths_kv = lengths_kv;
  packed.seq_len = std::ranges::max(lengths);
  packed.seq_len_kv = std::ranges::max(lengths_kv);
  return packed;
}

void add_packed(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const std::int64_t block_q = configuration.block_q, block_kv = configuration.block_kv;
  using Lengths = std::vector<std::int64_t>;
  const Lengths near_tiles{block_q + 1, 0, block_q, 1, block_q - 1, 2 * block_q, 3};
  const Lengths near_tiles_kv{block_kv, 7, block_kv + 1, 1, 2 * block_kv - 1, block_kv - 1, 0};
  AttentionProblem other = packed_problem(configuration, near_tiles, near_tiles);
  add_masked_too(sets, solves, "packed sequences", other);
  other.lengths_kv = near_tiles_kv;
  other.seq_len_kv = 2 * block_kv + 5;  // more than any of them has
  other.seq_len += block_q + 1;
  add_masked_too(sets, solves, "packed sequences, other numbers of keys", other);
  sets.push_back(sets.back());
  sets.back().name = "packed sequences with gaps between rows";
  sets.back().packing = Packing::with_gaps;

  const Lengths equal(3, 2 * block_q);
  sets.push_back({.name = "packed sequences of equal lengths", .problem = packed_problem(configuration, equal, equal)});
  const Lengths one{0, 5, 0};  // fewer query tiles than CTAs
  sets.push_back(
      {.name = "one packed sequence between empty ones", .problem = packed_problem(configuration, one, one)});
  Lengths one_long{5, 17, 3, 2 * block_q + 9, 1, 30, 2, 11};
  add_masked_too(sets, solves, "one long packed sequence among short ones",
                 packed_problem(configuration, one_long, one_long));
  Lengths many, many_kv;
  for (std::int64_t i = 0; i < 40; ++i) {
    many.push_back(i * 5 % 17);
    many_kv.push_back(i * 7 % 19);
  }
  other = packed_problem(configuration, many, many_kv);
  other.heads = 1;
  add_masked_too(sets, solves, "40 packed sequences", other);
  if (solves.kv_heads) {
    other = packed_problem(configuration, one_long, one_long);
    other.heads = 4;
    other.kv_heads = 2;
    add_masked_too(sets, solves, "packed sequences, two heads of Q for each of K and V", other);
  }
  if (solves.window) {
    other = packed_problem(configuration, near_tiles, near_tiles);
    other.window_left = block_kv / 2;
    other.window_right = 3;
    add_masked_too(sets, solves, "packed sequences and a window", other);
  }
}

// Changes of the scores, alone and together.
void add_scores(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const AttentionProblem small = small_problem(configuration);
  AttentionProblem other = small;
  other.softcap = 1;  // small, so that a hidden key that becomes -softcap still has a weight that is seen
  add_masked_too(sets, solves, "a cap of the scores", other);
  other.softcap = 30;
  sets.push_back({.name = "a cap of large scores", .problem = other, .distribution = Distribution::large_logit});
  other = small;
  other.alibi = true;
  add_masked_too(sets, solves, "ALiBi", other);
  other.seq_len = 3 * configuration.block_q;
  other.seq_len_kv = configuration.block_kv;
  add_masked_too(sets, solves, "ALiBi, more queries than keys", other);
  other = small;
  other.sinks = true;
  add_masked_too(sets, solves, "sinks", other);
  other = square_problem(configuration);
  other.softcap = 5;
  other.alibi = other.sinks = true;
  add_masked_too(sets, solves, "all changes of the scores", other);
  if (solves.kv_heads) {
    other.heads = 6;
    other.kv_heads = 2;
    add_masked_too(sets, solves, "all changes of the scores, and grouped heads", other);
  }
  if (solves.any_length) {
    other.seq_len = configuration.block_q + 1;
    other.seq_len_kv = configuration.block_kv + 3;
    add_masked_too(sets, solves, "all changes of the scores, and odd lengths", other);
  }
  if (solves.window) {
    other = square_problem(configuration);
    other.softcap = 5;
    other.alibi = other.sinks = true;
    other.window_left = configuration.block_kv / 2;
    other.window_right = 3;
    add_masked_too(sets, solves, "all changes of the scores, and a window", other);
  }
  if (solves.packed) {
    other = packed_problem(configuration, {3, configuration.block_q + 1, 0, 20}, {9, configuration.block_kv - 1, 4, 1});
    other.softcap = 5;
    other.alibi = other.sinks = true;
    add_masked_too(sets, solves, "all changes of the scores, and packed sequences", other);
  }
}

// Dropout with several probabilities, and with what changes a weight's position: heads, batch entries, lengths and sequences.
void add_dropout(Sets& sets, const Solves& solves, const Configuration& configuration) {
  const auto with_dropout = [](AttentionProblem problem, double p, std::int64_t seed, std::int64_t offset = 0) {
    problem.dropout_p = p;
    problem.dropout_seed = seed;
    problem.dropout_offset = offset;
    return problem;
  };
  // Seeds of more than 32 bits, and offsets with the uppermost of theirs.
  constexpr std::int64_t kSeed = 0x123456789abcdef, kOffset = 0xfedcba98;
  const AttentionProblem small = small_problem(configuration);
  add_masked_too(sets, solves, "dropout", with_dropout(small, 0.1, kSeed));
  add_masked_too(sets, solves, "dropout of nearly all weights", with_dropout(small, 0.97, 1, kOffset));
  sets.push_back({.name = "dropout of few weights", .problem = with_dropout(small, 1.0 / 256, 2)});
  sets.push_back({.name = "dropout of rows whose maximum changes often",
                  .problem = with_dropout(small, 0.5, 3),
                  .distribution = Distribution::large_logit});
  if (solves.any_length) {
    AttentionProblem other = square_problem(configuration);
    other.seq_len = 2 * configuration.block_q + 1;
    other.seq_len_kv = configuration.block_kv + 3;
    add_masked_too(sets, solves, "dropout, and odd lengths", with_dropout(other, 0.5, kSeed, kOffset));
  }
  if (solves.kv_heads) {
    AttentionProblem other = small;
    other.heads = 6;
    other.kv_heads = 2;
    add_masked_too(sets, solves, "dropout, and grouped heads", with_dropout(other, 0.5, 4));
  }
  if (solves.lengths) {
    AttentionProblem other = square_problem(configuration);
    other.batch = 4;
    other.lengths = other.lengths_kv = {other.seq_len, other.seq_len - 1, 1, 0};
    add_masked_too(sets, solves, "dropout, and sequences of several lengths", with_dropout(other, 0.5, 5));
  }
  if (solves.scores && solves.window) {
    AttentionProblem other = square_problem(configuration);
    other.softcap = 5;
    other.alibi = other.sinks = true;
    other.window_left = configuration.block_kv / 2;
    other.window_right = 3;
    add_masked_too(sets, solves, "dropout, a window, and all changes of the scores", with_dropout(other, 0.25, 6));
  }
  if (solves.packed)
    add_masked_too(sets, solves, "dropout, and packed sequences",
                   with_dropout(packed_problem(configuration, {3, configuration.block_q + 1, 0, 20},
                                               {9, configuration.block_kv + 1, 4, 1}),
                                0.5, kSeed, kOffset));
}

// The other fields of a problem, alone and with the causal mask.
void add_other_fields(Sets& sets, const Solves& solves, const Configuration& configuration) {
  if (solves.kv_heads) {
    AttentionProblem other = small_problem(configuration);
    other.kv_heads = 1;
    add_masked_too(sets, solves, "one head of K and V", other);
    other.heads = 6;
    other.kv_heads = 2;
    add_masked_too(sets, solves, "three heads of Q for each of K and V", other);
  }
  if (solves.window) {
    add_symmetrical_windows(sets, solves, configuration);
    add_other_windows(sets, solves, configuration);
  }
  if (solves.lengths) {
    AttentionProblem other = square_problem(configuration);
    other.batch = 4;
    other.lengths = other.lengths_kv = {other.seq_len, other.seq_len - 1, 1, 0};
    add_masked_too(sets, solves, "sequences of several lengths", other);
    other.lengths_kv = {1, other.seq_len_kv, other.seq_len_kv - configuration.block_kv + 1, other.seq_len_kv};
    add_masked_too(sets, solves, "sequences of several lengths, and other numbers of keys", other);
    if (solves.window) {
      other.window_left = 70;  // no limit on the right, so that only the lengths hide keys there
      add_masked_too(sets, solves, "sequences of several lengths, and a window on the left", other);
    }
  }
  if (solves.packed) add_packed(sets, solves, configuration);
  if (solves.scores) add_scores(sets, solves, configuration);
  if (solves.dropout) add_dropout(sets, solves, configuration);
}

}  // namespace

AttentionProblem small_problem(const Configuration& configuration) {
  return in_plainest_form({.batch = 2,
                           .heads = 3,
                           .seq_len = 2 * configuration.block_q,
                           .seq_len_kv = odd_tiles(configuration.block_kv) * configuration.block_kv,
                           .head_dim = configuration.head_dim,
                           .dtype = configuration.dtype,
                           .head_dim_v = configuration.head_dim_v});
}

AttentionProblem square_problem(const Configuration& configuration) {
  AttentionProblem square = small_problem(configuration);
  const std::int64_t whole = std::lcm(configuration.block_q, configuration.block_kv);
  const bool single_tile = whole == configuration.block_q || whole == configuration.block_kv;
  square.seq_len = square.seq_len_kv = single_tile ? 2 * whole : whole;
  return square;
}

std::string full_name(const CheckSet& set) {
  return set.sms == 0 ? set.name : fmt::format("{} on {} SM{}", set.name, set.sms, set.sms == 1 ? "" : "s");
}

std::vector<CheckSet> check_sets(const Version& version, const Configuration& configuration,
                                 const AttentionProblem& problem, const DeviceInfo& device) {
  Sets sets;
  add_distributions(sets, configuration);
  add_numbers_of_tiles(sets, configuration);
  add_layouts(sets, configuration);
  add_many_ctas(sets, configuration, device);
  add_ends_of_sequences(sets, version.solves, configuration);
  add_other_fields(sets, version.solves, configuration);
  if (version.most_queries > 0) {
    limit_queries(sets, version.most_queries);
    add_decoding(sets, version, configuration);
  }
  if (version.kind == ProblemKind::backward) add_backward(sets, version.solves, configuration);
  sets.push_back(
      {.name = "the requested problem", .problem = problem, .row_tile = row_tile(problem, configuration.block_q)});
  return sets;
}

std::int64_t row_tile(const AttentionProblem& problem, std::int64_t block_q) {
  const double scores = 1.0 * problem.batch * problem.heads * problem.seq_len * problem.seq_len_kv;
  return scores <= kScoresForEveryRow ? 1 : std::gcd<std::int64_t>(block_q, 64);
}

}  // namespace flash_ladder
