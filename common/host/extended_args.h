// The arguments of a launch, for plain and for extended problems.
#pragma once

#include <cstdint>

#include "attention.h"

namespace flash_ladder {

/// The argument of a launch: the kernels' own AttentionArgs, and the fields of AttentionProblem that only extensions
/// use. It stays on the host. The launch of an extension passes its kernel AttentionArgs and the fields that it solves:
///
///   kernel<<<grid, threads, smem_bytes, stream>>>(args, args.causal);
struct ExtendedArgs : AttentionArgs {
  bool causal = false;
  int kv_heads = 0;                 // of K and V: never 0 here, and heads is a multiple of it
  int window_left = -1;             // negative: no limit on this side
  int window_right = -1;            // never 0 or more if causal
  const int* lengths = nullptr;     // [batch], in device memory: valid rows of Q and O; nullptr: all
  const int* lengths_kv = nullptr;  // [batch], in device memory: the same for K and V
  // [3][batch][heads], in device memory: the scales of Q, K and V, for each head of Q and the head of K and V that it
  // reads; nullptr if they are not e4m3.
  const float* scales = nullptr;
  // [batch][heads][seq_len], in device memory: where to write L, the natural logarithm of the sum of exp(S) over all keys that a
  // row sees; -inf for a row that sees none. nullptr: not requested.
  float* log_sum_exp = nullptr;
  // [batch + 1], in device memory, if the sequences are packed (flash_attn's cu_seqlens): the row of Q and O, and of K and V, at
  // which each sequence begins, and the number of all rows. Then seq_len and seq_len_kv are upper limits, `batch` is the number
  // of sequences, batch_stride is 0, `lengths` and `lengths_kv` are nullptr, and log_sum_exp is [heads][total].
  const int *offsets = nullptr, *offsets_kv = nullptr;
  int total = 0, total_kv = 0;  // the last of them; 0 if not packed
  // If K and V are paged (flash_attn's block_table): [batch][page_table_width], in device memory. Entry i of a batch entry is the
  // page with its keys from i · page_size on. batch_stride of K and V is the distance between pages, of which there are num_pages.
  // What follows the page of the last key may be any number. 0 and nullptr if not paged.
  const int* page_table = nullptr;
  int page_size = 0, page_table_width = 0, num_pages = 0;
  // A new token of each batch entry (flash_attn's k and v beside a cache): [batch, 1, kv_heads, head_dim]. Its key is the last one
  // that queries see, at row lengths_kv[batch] of the cache, and the launch writes it there: `lengths_kv` does not count it,
  // seq_len_kv does. data is nullptr without a new token.
  Tensor K_new, V_new;
  // If rotary_dim is not 0, the first so many elements of each query, and of the new key, are rotated by the angles of row
  // lengths_kv[batch] of these tables [rows, rotary_dim / 2], in the type of Q. Pair i has elements 2i and 2i + 1 if interleaved,
  // otherwise i and i + rotary_dim / 2: (x, y) becomes (x cos - y sin, x sin + y cos).
  const void *rotary_cos = nullptr, *rotary_sin = nullptr;
  int rotary_dim = 0;
  bool rotary_interleaved = false;
  // [batch][kv_heads], in device memory, if K and V are e4m3 and Q is not (FlashAttention-3's k_descale and v_descale): what their
  // elements are multiplied by; otherwise nullptr.
  const float *K_scales = nullptr, *V_scales = nullptr;
  // Changes of the scores S = softmax_scale · Q Kᵀ, in this order.
  float softcap = 0;                    // above 0: S becomes softcap · tanh(S / softcap)
  const float* alibi_slopes = nullptr;  // [heads], in device memory: S -= slope · |i + seq_len_kv - seq_len - j|
  // [heads], in device memory: exp(sink) is added to the sum of exp(S) of each row that sees a key, also in log_sum_exp.
  const float* sinks = nullptr;
  // Dropout: of 256 weights, dropout_keep stay on average, and are multiplied by 256 / dropout_keep (common/philox.h).
  int dropout_keep = 256;
  std::uint64_t dropout_seed = 0;
  std::uint32_t dropout_offset = 0;
};

}  // namespace flash_ladder
