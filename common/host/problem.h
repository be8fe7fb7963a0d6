// The problem that a kernel solves. The harness's code that handles a problem field by field is in harness/problem/.
#pragma once

#include <cstdint>
#include <vector>

namespace flash_ladder {

/// The type of Q, K, V and O in memory. With e4m3, 8 bits, O is fp16, and an element of Q, K and V represents itself
/// times a scale of its head (ExtendedArgs::scales). Softmax and accumulation are fp32 in any case.
enum class Dtype { fp16, bf16, e4m3 };

/// AttentionProblem::window_left and window_right without a limit on that side.
constexpr std::int64_t kNoWindow = -1;

/// One problem. Q has shape [batch, seq_len, heads, head_dim], and K [batch, seq_len_kv, kv_heads, head_dim]. V and O have the
/// shapes of K and Q, but for head_dim_v.
///
/// The fields from `head_dim_v` on are extensions: their defaults describe the plain problem that every version of the
/// ladder solves. A version states in its registration which of them it solves, and is not launched with any others.
struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t seq_len = 0;     // queries
  std::int64_t seq_len_kv = 0;  // keys, and as many values
  std::int64_t head_dim = 128;
  Dtype dtype = Dtype::fp16;

  // The head size of V and O, as in multi-head latent attention (DeepSeek-V2, 2024), where queries and keys have 64 elements
  // more, with the rotary embedding. 0: head_dim.
  std::int64_t head_dim_v = 0;

  // Query i sees the keys up to i + seq_len_kv - seq_len, so the last query sees all of them (the mask is aligned at its lower
  // right corner, as in FlashAttention since version 2.1). If that is negative, a query sees no key, and its row of O is 0.
  bool causal = false;

  // Grouped-query attention (Ainslie et al., 2023): head h of Q reads head h / (heads / kv_heads) of K and V. 0: as many as heads.
  std::int64_t kv_heads = 0;

  // Query i sees at most so many keys to the left and to the right of key i + seq_len_kv - seq_len; if causal, none to the
  // right. This is FlashAttention's window_size = (window_left, window_right).
  std::int64_t window_left = kNoWindow;
  std::int64_t window_right = kNoWindow;

  // Sequences of different lengths in one batch: the numbers of queries and of keys of each batch entry; if empty,
  // seq_len and seq_len_kv for all. Rows beyond them are padding: Q, K and V must not be read there, and O is 0 there.
  // For the masks above, a sequence's lengths replace seq_len and seq_len_kv.
  std::vector<std::int64_t> lengths = {};
  std::vector<std::int64_t> lengths_kv = {};

  // The sequences of `lengths` lie one after the other, without padding, in Q and O [total, heads, head_dim] and in K and V
  // [total, kv_heads, head_dim]: flash_attn_varlen_func. seq_len and seq_len_kv are upper limits of the lengths.
  bool packed = false;

  // K and V are divided into pages of so many keys, in [pages, page_size, kv_heads, head_dim], and a table says which page has
  // which keys of a batch entry: the paged KV cache of Kwon et al. (2023). A power of two, at least 16; 0: not paged.
  std::int64_t page_size = 0;

  // The last key of each batch entry, and its value, are new: they are in tensors of their own, and a launch writes them into K
  // and V, as flash_attn_with_kvcache does. lengths_kv counts them.
  bool append = false;

  // Rotary embedding (Su et al., 2021), as of a new token: the first rotary_dim elements of its queries and of its key are
  // rotated in pairs, by angles that depend on the new key's row. 0: not rotated. Pairs are neighbours if interleaved (GPT-J), and
  // otherwise an element of the first half of them and one of the second (GPT-NeoX). The other keys are in the cache as they are.
  std::int64_t rotary_dim = 0;
  bool rotary_interleaved = false;

  // K and V are e4m3, of 8 bits, and Q and O have the type above. Each head of K and of V has a scale in each batch entry, and an
  // element represents itself times this scale: the FP8 KV cache of FlashAttention-3, vLLM and FlashInfer.
  bool fp8_cache = false;

  // Changes of the scores S = scale · Q Kᵀ, in this order. softcap (Gemma 2): S becomes softcap · tanh(S / softcap); 0: none.
  // alibi (Press et al., 2022): each head subtracts its slope times the distance |i + seq_len_kv - seq_len - j| of key j. sinks
  // (gpt-oss): each head has one score more, which takes part in the sum of a row that sees a key, and has no value.
  double softcap = 0;
  bool alibi = false;
  bool sinks = false;

  // Dropout: each weight becomes 0 with probability dropout_p, and the others are divided by 1 - dropout_p, which both are
  // rounded to multiples of 1/256. The sum l, and so the log-sum-exp, is that of all weights, as in FlashAttention. Which
  // weights are dropped is a function of seed, offset, batch entry, head, query and key (common/philox.h).
  double dropout_p = 0;
  std::int64_t dropout_seed = 0;
  std::int64_t dropout_offset = 0;  // below 2^32; another one gives another mask for the same seed

  bool operator==(const AttentionProblem&) const = default;
};

}  // namespace flash_ladder
