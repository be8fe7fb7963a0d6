// 01 · naive
//
// Idea        The attention formula, implemented literally: S = Q Kᵀ, P = softmax(S), O = P V, one launch each. A thread
//             computes one element of S, one row of P or one element of O. S and P are full matrices in global memory.
// Changed     Nothing: the ladder starts here.
// Prediction  S and P have seq_len² elements per head. Writing and reading each of them once moves 12 bytes per
//             element, and both products reload both operands for every multiplication, so at seq_len 4096 the caches
//             have to deliver over a thousand times the bytes of Q, K, V and O. About 1 TFLOP/s of the 67 that the fp32
//             units of an H200 can reach.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v01 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;   // a CTA of the first launch computes a tile of S: 16 queries
  static constexpr int kBlockKV = 16;  // × 16 keys
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 8;
  static constexpr int kSmemBytes = 0;
};

// The workspace holds S, then P, both [batch][heads][seq_len][seq_len_kv].
__host__ __device__ inline std::int64_t num_scores(std::int64_t batch, std::int64_t heads, std::int64_t seq_len,
                                                   std::int64_t seq_len_kv) {
  return batch * heads * seq_len * seq_len_kv;
}

// One row of S, [seq_len_kv]: the scores of one query. S is fp32 because exp() would magnify the rounding error of a
// shorter type.
__device__ inline float* score_row(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  return static_cast<float*>(args.workspace) +
         ((batch * args.heads + head) * std::int64_t{args.seq_len} + row) * args.seq_len_kv;
}

// The same row of P, [seq_len_kv], in the input type.
template <typename Element>
__device__ Element* probability_row(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  const std::int64_t size_of_S = num_scores(args.batch, args.heads, args.seq_len, args.seq_len_kv);
  Element* P = reinterpret_cast<Element*>(static_cast<float*>(args.workspace) + size_of_S);
  return P + ((batch * args.heads + head) * std::int64_t{args.seq_len} + row) * args.seq_len_kv;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// S = Q Kᵀ: one thread per score.
template <typename Traits>
__global__ void scores(AttentionArgs args) {
  using Element = typename Traits::Element;
  // What this thread computes: the score of one query and one key, in tile blockIdx.x of one head of one batch entry.
  const int num_kv_blocks = args.seq_len_kv / Traits::kBlockKV;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int query = blockIdx.x / num_kv_blocks * Traits::kBlockQ + threadIdx.x / Traits::kBlockKV;
  const int key = blockIdx.x % num_kv_blocks * Traits::kBlockKV + threadIdx.x % Traits::kBlockKV;
  const Element* Q_gmem = args.Q.row<Element>(batch, head, query);  // [kHeadDim]
  const Element* K_gmem = args.K.row<Element>(batch, head, key);    // [kHeadDim]

  float score = 0;
  for (int d = 0; d < Traits::kHeadDim; ++d) score += to_float(Q_gmem[d]) * to_float(K_gmem[d]);
  score_row(args, batch, head, query)[key] = score * args.softmax_scale;
}

// P = exp(S - max of the row): one thread per row. P stays un-normalised: its largest element is 1 however long the row
// is, so a 16-bit type represents it well.
template <typename Traits>
__global__ void softmax(AttentionArgs args) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int query = blockIdx.x * blockDim.x + threadIdx.x;
  if (query >= args.seq_len) return;
  const float* S_gmem = score_row(args, batch, head, query);             // [seq_len_kv]
  Element* P_gmem = probability_row<Element>(args, batch, head, query);  // [seq_len_kv]

  float row_max = -INFINITY;
  for (int key = 0; key < args.seq_len_kv; ++key) row_max = fmaxf(row_max, S_gmem[key]);  // m
  for (int key = 0; key < args.seq_len_kv; ++key) P_gmem[key] = from_float<Element>(exp_approx(S_gmem[key] - row_max));
}

// O = P V, each row divided by the sum of its row of P: one thread per element of O.
template <typename Traits>
__global__ void output(AttentionArgs args) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int rows_per_cta = blockDim.x / Traits::kHeadDim;
  const int query = blockIdx.x * rows_per_cta + threadIdx.x / Traits::kHeadDim;
  const int d = threadIdx.x % Traits::kHeadDim;
  const Element* P_gmem = probability_row<Element>(args, batch, head, query);  // [seq_len_kv]
  const Element* V_gmem = args.V.row<Element>(batch, head, 0) + d;             // column d of V, [seq_len_kv]

  float sum = 0, row_sum = 0;
  for (int key = 0; key < args.seq_len_kv; ++key) {
    const float p = to_float(P_gmem[key]);
    sum += p * to_float(V_gmem[key * args.V.row_stride]);
    row_sum += p;  // l
  }
  args.O.row<Element>(batch, head, query)[d] = from_float<Element>(sum / row_sum);  // O / l
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  return num_scores(problem.batch, problem.heads, problem.seq_len, problem.seq_len_kv) *
         (sizeof(float) + sizeof(typename Traits::Element));
}

template <typename Traits>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumWarps * 32;
  static_assert(kNumThreads == Traits::kBlockQ * Traits::kBlockKV, "a thread per score");
  const int num_score_tiles = args.seq_len / Traits::kBlockQ * (args.seq_len_kv / Traits::kBlockKV);
  const int rows_per_cta = kNumThreads / Traits::kHeadDim;
  scores<Traits><<<dim3(num_score_tiles, args.heads, args.batch), kNumThreads, 0, stream>>>(args);
  softmax<Traits><<<dim3((args.seq_len + 127) / 128, args.heads, args.batch), 128, 0, stream>>>(args);
  output<Traits><<<dim3(args.seq_len / rows_per_cta, args.heads, args.batch), kNumThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("16x16", launch<Traits<__half>>, workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("16x16", launch<Traits<__nv_bfloat16>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v01
