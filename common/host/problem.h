// What is computed. All that the harness does with a problem, field by field, is in harness/problem/.
#pragma once

#include <cstdint>

namespace flash_ladder {

/// The type of Q, K, V and O in memory. Softmax and accumulation are fp32 whatever it is.
enum class Dtype { fp16, bf16 };

/// One problem. Q and O have shape [batch, seq_len, heads, head_dim], K and V have [batch, seq_len_kv, heads, head_dim].
///
/// The fields from `causal` on are extensions: their defaults make the plain problem that every version of the ladder solves. A
/// version says in its registration which of them it solves, and is not launched with any other.
struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t seq_len = 0;     // queries
  std::int64_t seq_len_kv = 0;  // keys, and as many values
  std::int64_t head_dim = 128;
  Dtype dtype = Dtype::fp16;

  // Query i sees the keys up to i + seq_len_kv - seq_len: the last query sees them all (the mask is aligned at its lower right
  // corner, as in FlashAttention since its version 2.1). Where that is negative a query sees no key, and its row of O is 0.
  bool causal = false;

  bool operator==(const AttentionProblem&) const = default;
};

}  // namespace flash_ladder
