// Scores and values that a numerical analyst would choose against a softmax that keeps P in few bits, skips maxima or guesses them.
// docs/numerics.md says what each version may lose.
#pragma once

#include <cstdint>
#include <vector>

#include "host/problem.h"

namespace flash_ladder {

/// The heads that are designed one by one; heads beyond them are drawn from the seed.
constexpr std::int64_t kDesignedHeads = 13;

/// What one key of a head is, for all of its queries.
struct DesignedKey {
  double log2_weight;  // log2(e) · softmax_scale · q·k
  float value;         // of all elements of its row of V
};

/// The keys of a head. A third of them is a K/V tile where there are three.
std::vector<DesignedKey> adversarial_keys(std::int64_t head, std::int64_t num_keys, Dtype dtype, std::uint64_t seed);

/// Rows whose product times the softmax scale is the log2_weight times ln 2, as exactly as fp32 can say: every row of Q of a head, and
/// the row of a key, which takes as many elements as it needs to get there. head_dim is at least 8.
std::vector<float> adversarial_query(std::int64_t head_dim);
std::vector<float> adversarial_key(double log2_weight, std::int64_t head_dim, Dtype dtype);

}  // namespace flash_ladder
