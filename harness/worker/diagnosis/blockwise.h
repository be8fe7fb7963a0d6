// Attention one K/V tile at a time, in float64: the same algorithm as scripts/blockwise_attention.py, which explains
// why it is right and is the better one to read. A test compares the two.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/inputs.h"

namespace flash_ladder {

/// One row after one K/V tile. For keys that the row does not see, S is -infinity and P is 0.
struct BlockwiseStep {
  std::int64_t first_key = 0;
  std::vector<double> S;  // [keys of the tile], scaled
  double m = -INFINITY;   // the largest score so far
  double r = 0;           // factor by which the earlier l and O were multiplied
  std::vector<double> P;  // [keys of the tile], exp(S - m)
  double l = 0;           // the sum of all exp(s - m) so far
  std::vector<double> O;  // [head_dim], not yet divided by l

  /// Attention over the keys so far; 0 if the row sees none of them.
  std::vector<double> output() const;
};
std::vector<BlockwiseStep> attend_blockwise(const Inputs& inputs, std::int64_t batch, std::int64_t head,
                                            std::int64_t row, std::int64_t block_kv);

}  // namespace flash_ladder
