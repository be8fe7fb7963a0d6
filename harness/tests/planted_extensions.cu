// A plain kernel that solves everything that extensions may solve, and the likely mistakes of such a kernel, for tests
// that the check of an extension finds them. They run on the virtual GPU, in the worker of the planted faults.

#include <string>

#include "convert.h"
#include "philox.h"
#include "registry.h"

namespace flash_ladder::planted_extensions {

enum class Fault {
  none,
  upper_left,     // the mask is aligned with the first key instead of the last
  divides_by_0,   // O of a row that sees no key is 0 / 0
  counts_a_tail,  // keys beyond the last have a score of 0 instead of being left out
  ignores_mask,
  heads_in_turn,     // head h of Q reads head h % kv_heads of K and V instead of its group's
  window_too_wide,   // by one key, on the left
  sides_exchanged,   // the window has the width of its left side on both sides
  reads_padding,     // sees all keys of the tensor instead of only its sequence's
  skips_padding,     // leaves O unwritten past the last query of a sequence
  log_in_base_2,     // the log-sum-exp is that of powers of two
  no_log_of_blind,   // leaves the log-sum-exp of a row that sees no key unwritten
  reads_neighbour,   // multiplies the first key beyond a packed sequence by 0
  caps_product,      // caps the product of Q and K instead of the score
  slopes_upwards,    // counts the distance of ALiBi from key i instead of the aligned one
  sink_without_log,  // the log-sum-exp lacks the sink
  sums_kept,         // the sum of a row lacks the weights that dropout drops
  same_mask,         // dropout has the same mask in all batch entries
};

// For a problem that is not plain: as in ExtendedArgs.
struct Extension {
  bool causal;
  int kv_heads, window_left, window_right;
  const int *lengths, *lengths_kv;
  float* log_sum_exp;
  const int *offsets, *offsets_kv;
  int total, total_kv;
  float softcap;
  const float *alibi_slopes, *sinks;
  int keep;
  std::uint64_t dropout_seed;
  std::uint32_t dropout_offset;
};

// The rows of one batch entry.
struct Rows {
  int first, count;
};
__device__ Rows rows_of(int batch, int all, const int* lengths, const int* offsets) {
  if (offsets) return {offsets[batch], offsets[batch + 1] - offsets[batch]};
  return {0, lengths ? lengths[batch] : all};
}

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;
  static constexpr int kBlockKV = 16;
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 1;
  static constexpr int kSmemBytes = 0;
};

// The sum of x over the warp, returned to every thread.
__device__ float warp_sum(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  return x;
}

constexpr int kElements = 4;  // elements of a row per thread: threadIdx.x, and every 32nd from there on
constexpr float kLog2e = 1.44269504f;

// A CTA is one warp and computes 16 rows, one after the other, by online softmax.
template <typename Traits, Fault kFault>
__global__ void attention(AttentionArgs args, Extension extension) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int kv_head =
      kFault == Fault::heads_in_turn ? head % extension.kv_heads : head / (args.heads / extension.kv_heads);
  const auto [first_q, seq_len] = rows_of(batch, args.seq_len, extension.lengths, extension.offsets);
  const auto [first_kv, seq_len_kv] = rows_of(
      batch, args.seq_len_kv, kFault == Fault::reads_padding ? nullptr : extension.lengths_kv, extension.offsets_kv);
  const int rows = extension.offsets ? seq_len : args.seq_len;  // a packed sequence has no padding
  const int end = min((static_cast<int>(blockIdx.x) + 1) * Traits::kBlockQ, rows);
  for (int row = blockIdx.x * Traits::kBlockQ; row < end; ++row) {
    if (kFault == Fault::skips_padding && row >= seq_len) continue;
    // The keys that the row sees: from first_key up to but not including num_keys.
    const int aligned = row + seq_len_kv - seq_len;
    int first_key = 0, num_keys = row < seq_len ? seq_len_kv : 0;
    if (extension.window_left >= 0)
      first_key = max(aligned - extension.window_left - (kFault == Fault::window_too_wide), 0);
    if (extension.window_right >= 0) {
      const int right = kFault == Fault::sides_exchanged ? extension.window_left : extension.window_right;
      num_keys = min(num_keys, max(aligned + right + 1, 0));
    }
    if (extension.causal && kFault == Fault::upper_left)
      num_keys = min(num_keys, row + 1);
    else if (extension.causal && kFault != Fault::ignores_mask)
      num_keys = min(num_keys, max(aligned + 1, 0));

    const Element* Q = args.Q.row<Element>(batch, head, first_q + row) + threadIdx.x;
    float q[kElements], output[kElements] = {};
    for (int i = 0; i < kElements; ++i) q[i] = to_float(Q[32 * i]);
    float row_max = -INFINITY, row_sum = 0;
    for (int key = first_key; key < num_keys; ++key) {
      const Element* K = args.K.row<Element>(batch, kv_head, first_kv + key) + threadIdx.x;
      const Element* V = args.V.row<Element>(batch, kv_head, first_kv + key) + threadIdx.x;
      float product = 0;
      for (int i = 0; i < kElements; ++i) product += q[i] * to_float(K[32 * i]);
      float score = warp_sum(product) * args.softmax_scale;
      if (extension.softcap > 0) {
        if (kFault == Fault::caps_product) score /= args.softmax_scale;
        score = extension.softcap * tanhf(score / extension.softcap);
      }
      if (extension.alibi_slopes)
        score -= extension.alibi_slopes[head] * abs((kFault == Fault::slopes_upwards ? row : aligned) - key);
      score *= kLog2e;
      const float new_max = fmaxf(row_max, score);
      const float rescale = exp2f(row_max - new_max), p = exp2f(score - new_max);
      row_max = new_max;
      const int head_in_all = (kFault == Fault::same_mask ? 0 : batch * args.heads) + head;
      const bool kept =
          is_kept(extension.dropout_seed, extension.dropout_offset, head_in_all, row, key, extension.keep);
      row_sum = row_sum * rescale + (kept || kFault != Fault::sums_kept ? p : 0);
      for (int i = 0; i < kElements; ++i)
        output[i] = output[i] * rescale + (kept ? 256.0f / extension.keep * p * to_float(V[32 * i]) : 0);
    }
    if (kFault == Fault::reads_neighbour && first_kv + num_keys < extension.total_kv)
      for (int i = 0; i < kElements; ++i)
        output[i] += 0 * to_float(args.V.row<Element>(batch, kv_head, first_kv + num_keys)[threadIdx.x + 32 * i]);
    const float sink = extension.sinks && first_key < num_keys ? exp2f(extension.sinks[head] * kLog2e - row_max) : 0;
    if (kFault != Fault::sink_without_log) row_sum += sink;
    if (kFault == Fault::counts_a_tail && num_keys % Traits::kBlockKV != 0)
      row_sum += (Traits::kBlockKV - num_keys % Traits::kBlockKV) * exp2f(-row_max);
    const bool sees_a_key = first_key < num_keys || kFault == Fault::divides_by_0;
    if (extension.log_sum_exp && threadIdx.x == 0 && (first_key < num_keys || kFault != Fault::no_log_of_blind)) {
      const std::int64_t row_of_head = extension.offsets
                                           ? static_cast<std::int64_t>(head) * extension.total + first_q
                                           : (static_cast<std::int64_t>(batch) * args.heads + head) * args.seq_len;
      extension.log_sum_exp[row_of_head + row] =
          (row_max + log2f(row_sum)) / (kFault == Fault::log_in_base_2 ? 1 : kLog2e);
    }
    if (kFault == Fault::sink_without_log) row_sum += sink;
    Element* O = args.O.row<Element>(batch, head, first_q + row) + threadIdx.x;
    for (int i = 0; i < kElements; ++i) O[32 * i] = from_float<Element>(sees_a_key ? output[i] / row_sum : 0);
  }
}

template <typename Traits, Fault kFault>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  const dim3 grid((args.seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ, args.heads, args.batch);
  attention<Traits, kFault><<<grid, 32 * Traits::kNumWarps, 0, stream>>>(
      args, {args.causal, args.kv_heads, args.window_left, args.window_right, args.lengths, args.lengths_kv,
             args.log_sum_exp, args.offsets, args.offsets_kv, args.total, args.total_kv, args.softcap,
             args.alibi_slopes, args.sinks, args.dropout_keep, args.dropout_seed, args.dropout_offset});
  return cudaGetLastError();
}

template <Fault kFault>
Description extension(const char* source, const Solves& solves) {
  return {.source = source,
          .extends = "",
          .solves = solves,
          .configurations = {configuration<Traits<__half>>("16x16", launch<Traits<__half>, kFault>),
                             configuration<Traits<__nv_bfloat16>>("16x16", launch<Traits<__nv_bfloat16>, kFault>)}};
}

const Solves kMasked{.causal = true, .any_length = true};

const Registration registrations[] = {
    Registration(extension<Fault::none>("kernels/extensions/right.cu", {.causal = true,
                                                                        .any_length = true,
                                                                        .kv_heads = true,
                                                                        .window = true,
                                                                        .lengths = true,
                                                                        .packed = true,
                                                                        .scores = true,
                                                                        .dropout = true,
                                                                        .log_sum_exp = true})),
    Registration(extension<Fault::upper_left>("kernels/extensions/upper_left.cu", kMasked)),
    Registration(extension<Fault::divides_by_0>("kernels/extensions/divides_by_0.cu", kMasked)),
    Registration(extension<Fault::counts_a_tail>("kernels/extensions/counts_a_tail.cu", kMasked)),
    Registration(extension<Fault::ignores_mask>("kernels/extensions/ignores_mask.cu", kMasked)),
    Registration(extension<Fault::heads_in_turn>("kernels/extensions/heads_in_turn.cu", {.kv_heads = true})),
    Registration(
        extension<Fault::window_too_wide>("kernels/extensions/window_too_wide.cu", {.causal = true, .window = true})),
    Registration(
        extension<Fault::sides_exchanged>("kernels/extensions/sides_exchanged.cu", {.causal = true, .window = true})),
    Registration(extension<Fault::reads_padding>("kernels/extensions/reads_padding.cu", {.lengths = true})),
    Registration(extension<Fault::skips_padding>("kernels/extensions/skips_padding.cu", {.lengths = true})),
    Registration(extension<Fault::log_in_base_2>("kernels/extensions/log_in_base_2.cu", {.log_sum_exp = true})),
    Registration(extension<Fault::no_log_of_blind>("kernels/extensions/no_log_of_blind.cu",
                                                   {.causal = true, .log_sum_exp = true})),
    Registration(extension<Fault::reads_neighbour>("kernels/extensions/reads_neighbour.cu", {.packed = true})),
    Registration(extension<Fault::caps_product>("kernels/extensions/caps_product.cu", {.scores = true})),
    Registration(extension<Fault::slopes_upwards>("kernels/extensions/slopes_upwards.cu", {.scores = true})),
    Registration(extension<Fault::sink_without_log>("kernels/extensions/sink_without_log.cu",
                                                    {.scores = true, .log_sum_exp = true})),
    Registration(extension<Fault::sums_kept>("kernels/extensions/sums_kept.cu", {.dropout = true})),
    Registration(extension<Fault::same_mask>("kernels/extensions/same_mask.cu", {.dropout = true})),
};

}  // namespace flash_ladder::planted_extensions
