// B01 · naive
//
// Idea        The gradients of attention, as the formulas state them: P = exp(S - L) needs no softmax, because the forward
//             pass has stored L. D is one number per row. P and dS are full matrices in global memory, and each of dQ, dK
//             and dV is a product with one of them.
// Changed     Nothing: the track starts here.
// Prediction  P and dS have seq_len² elements of 2 bytes per head, which are written once and read three times in all. Each
//             of the five products reloads both operands for every multiplication, as in version 01. About 1 TFLOP/s,
//             version 01's speed: five products take 2.5 times as long as two, and count as 2.5 times the work.

#include "convert.h"
#include "gradients.h"
#include "host/backward.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vB01 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;   // a CTA of the second launch computes a tile of P and dS: 16 queries
  static constexpr int kBlockKV = 16;  // × 16 keys
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 8;
  static constexpr int kSmemBytes = 0;
};

// The workspace holds D, [batch][heads][seq_len] in fp32, then P and dS, both [batch][heads][seq_len][seq_len_kv] in the
// input type.
__device__ inline float* row_of_D(const AttentionArgs& args, int batch, int head) {
  return static_cast<float*>(args.workspace) + (batch * args.heads + head) * std::int64_t{args.seq_len};
}
template <typename Element>
__device__ Element* row_of_P(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  const std::int64_t size_of_D = std::int64_t{args.batch} * args.heads * args.seq_len;
  Element* P = reinterpret_cast<Element*>(static_cast<float*>(args.workspace) + size_of_D);
  return P + ((batch * args.heads + head) * std::int64_t{args.seq_len} + row) * args.seq_len_kv;
}
template <typename Element>
__device__ Element* row_of_dS(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  const std::int64_t size_of_P = std::int64_t{args.batch} * args.heads * args.seq_len * args.seq_len_kv;
  return row_of_P<Element>(args, batch, head, row) + size_of_P;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// The sum of the products of two rows, [kHeadDim].
template <typename Traits>
__device__ float dot(const typename Traits::Element* a, const typename Traits::Element* b) {
  float sum = 0;
  for (int d = 0; d < Traits::kHeadDim; ++d) sum += to_float(a[d]) * to_float(b[d]);
  return sum;
}

// D = rowsum(dO ∘ O): one thread per row.
template <typename Traits>
__global__ void row_sums(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int query = blockIdx.x * blockDim.x + threadIdx.x;
  if (query >= args.seq_len) return;
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, query);  // [kHeadDim]
  row_of_D(args, batch, head)[query] = dot<Traits>(dO_gmem, args.O.row<Element>(batch, head, query));
}

// P and dS: one thread per element of both.
template <typename Traits>
__global__ void scores(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  // What this thread computes: the elements of one query and one key, in tile blockIdx.x of one head of one batch entry.
  const int num_kv_blocks = args.seq_len_kv / Traits::kBlockKV;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int query = blockIdx.x / num_kv_blocks * Traits::kBlockQ + threadIdx.x / Traits::kBlockKV;
  const int key = blockIdx.x % num_kv_blocks * Traits::kBlockKV + threadIdx.x % Traits::kBlockKV;
  const float* L_gmem = gradients.log_sum_exp + (batch * args.heads + head) * std::int64_t{args.seq_len};  // [seq_len]
  const float* D_gmem = row_of_D(args, batch, head);                                                       // [seq_len]

  // S = Q Kᵀ.
  const float score = dot<Traits>(args.Q.row<Element>(batch, head, query), args.K.row<Element>(batch, head, key));

  // P = exp(S - L).
  const float p = exp_approx(score * args.softmax_scale - L_gmem[query]);
  row_of_P<Element>(args, batch, head, query)[key] = from_float<Element>(p);

  // dP = dO Vᵀ.
  const float dP = dot<Traits>(gradients.dO.row<Element>(batch, head, query), args.V.row<Element>(batch, head, key));

  // dS = P ∘ (dP - D).
  row_of_dS<Element>(args, batch, head, query)[key] = from_float<Element>(p * (dP - D_gmem[query]));
}

// dV = Pᵀ dO and dK = dSᵀ Q: one thread per element of both.
template <typename Traits>
__global__ void gradients_of_keys(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int rows_per_cta = blockDim.x / Traits::kHeadDim;
  const int key = blockIdx.x * rows_per_cta + threadIdx.x / Traits::kHeadDim;
  const int d = threadIdx.x % Traits::kHeadDim;
  const Element* P_gmem = row_of_P<Element>(args, batch, head, 0) + key;    // column of P, [seq_len]
  const Element* dS_gmem = row_of_dS<Element>(args, batch, head, 0) + key;  // column of dS, [seq_len]
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, 0) + d;   // column d of dO, [seq_len]
  const Element* Q_gmem = args.Q.row<Element>(batch, head, 0) + d;          // column d of Q, [seq_len]

  // The transposes of P and dS: the sums run along their columns.
  float dV = 0, dK = 0;
  for (std::int64_t query = 0; query < args.seq_len; ++query) {
    dV += to_float(P_gmem[query * args.seq_len_kv]) * to_float(dO_gmem[query * gradients.dO.row_stride]);
    dK += to_float(dS_gmem[query * args.seq_len_kv]) * to_float(Q_gmem[query * args.Q.row_stride]);
  }
  gradients.dV.row<Element>(batch, head, key)[d] = from_float<Element>(dV);
  gradients.dK.row<Element>(batch, head, key)[d] = from_float<Element>(dK * args.softmax_scale);
}

// dQ = dS K: one thread per element.
template <typename Traits>
__global__ void gradient_of_queries(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int rows_per_cta = blockDim.x / Traits::kHeadDim;
  const int query = blockIdx.x * rows_per_cta + threadIdx.x / Traits::kHeadDim;
  const int d = threadIdx.x % Traits::kHeadDim;
  const Element* dS_gmem = row_of_dS<Element>(args, batch, head, query);  // [seq_len_kv]
  const Element* K_gmem = args.K.row<Element>(batch, head, 0) + d;        // column d of K, [seq_len_kv]

  float dQ = 0;
  for (int key = 0; key < args.seq_len_kv; ++key)
    dQ += to_float(dS_gmem[key]) * to_float(K_gmem[key * args.K.row_stride]);
  gradients.dQ.row<Element>(batch, head, query)[d] = from_float<Element>(dQ * args.softmax_scale);
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  const std::size_t num_rows = problem.batch * problem.heads * problem.seq_len;
  return num_rows * (sizeof(float) + 2 * problem.seq_len_kv * sizeof(typename Traits::Element));
}

template <typename Traits>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumWarps * 32;
  static_assert(kNumThreads == Traits::kBlockQ * Traits::kBlockKV, "a thread per score");
  const int num_score_tiles = args.seq_len / Traits::kBlockQ * (args.seq_len_kv / Traits::kBlockKV);
  const int rows_per_cta = kNumThreads / Traits::kHeadDim;
  const Gradients& gradients = args.gradients;
  row_sums<Traits><<<dim3((args.seq_len + 127) / 128, args.heads, args.batch), 128, 0, stream>>>(args, gradients);
  scores<Traits><<<dim3(num_score_tiles, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients);
  gradients_of_keys<Traits>
      <<<dim3(args.seq_len_kv / rows_per_cta, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients);
  gradient_of_queries<Traits>
      <<<dim3(args.seq_len / rows_per_cta, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients);
  return cudaGetLastError();
}

const BackwardRegistration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("16x16", backward_launch<launch<Traits<__half>>>,
                                                     workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("16x16", backward_launch<launch<Traits<__nv_bfloat16>>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vB01
