// Scores and values that a numerical analyst would choose to stress a softmax that keeps P in few bits, skips maxima or
// guesses them. docs/numerics.md says how much accuracy each version may lose.
#pragma once

#include <cstdint>
#include <vector>

#include "host/problem.h"

namespace flash_ladder {

/// The number of individually designed heads; further heads are drawn from the seed.
constexpr std::int64_t kDesignedHeads = 14;

/// The properties of one key of a head, for all of its queries.
struct DesignedKey {
  double log2_weight;  // log2(e) · softmax_scale · q·k, unless q is zero
  float value;         // value of all elements of its row of V
};

/// The keys of a head. If there are three K/V tiles, each third of the keys is one tile.
std::vector<DesignedKey> adversarial_keys(std::int64_t head, std::int64_t num_keys, Dtype dtype, std::uint64_t seed);

/// Rows whose product times the softmax scale is log2_weight times ln 2, as exactly as fp32 can represent it: a row of Q,
/// and the row of a key, which uses as many elements as it needs to get there. head_dim is at least 8. In the two heads
/// whose scores are all equal, and whose O does not depend on them, some rows of Q are zero, so that not all rows of a
/// warp are difficult: both halves of an mma's 16 rows are, or one of them, or none.
std::vector<float> adversarial_query(std::int64_t head, std::int64_t row, std::int64_t head_dim);
std::vector<float> adversarial_key(double log2_weight, std::int64_t head_dim, Dtype dtype);

}  // namespace flash_ladder
