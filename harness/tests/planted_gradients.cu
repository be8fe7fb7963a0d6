// A plain kernel that computes the gradients of every problem that a version of the backward track may solve, and the likely
// mistakes of such a kernel, for tests that the check finds and names them. They run on the virtual GPU, in the worker of the
// planted faults.

#include "convert.h"
#include "gradients.h"
#include "host/backward.h"
#include "philox.h"
#include "registry.h"

namespace flash_ladder::planted_gradients {

enum class Fault {
  none,
  no_derivative,    // dS lacks the derivative of the softcap
  slopes_upwards,   // counts the distance of ALiBi from key i instead of the aligned one
  keeps_dP,         // dropout leaves dP as it is
  unscaled_dP,      // dropout does not divide dP by the probability that a weight is kept
  same_mask,        // dropout has the same mask in all batch entries
  reads_padding,    // a query sees all keys of the tensor instead of only its sequence's
  skips_padding,    // leaves dK and dV unwritten past the last key of a sequence
  skips_unseen,     // leaves dK and dV unwritten of keys that no query sees
  reads_neighbour,  // multiplies the first query beyond a packed sequence by 0
  short_dP,         // dP sums head_dim elements although rows of V have more
};

// For a problem that is not plain: as in ExtendedArgs.
struct Extension {
  bool causal;
  int kv_heads, window_left, window_right;
  const int *lengths, *lengths_kv, *offsets, *offsets_kv;
  int total, total_kv;
  float softcap;
  const float* alibi_slopes;
  int keep;
  std::uint64_t dropout_seed;
  std::uint32_t dropout_offset;
};

template <typename Element_, int kHeadDim_ = 128, int kHeadDimV_ = kHeadDim_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;
  static constexpr int kBlockKV = 16;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static constexpr int kNumWarps = 1;
  static constexpr int kSmemBytes = 0;
};

// The rows of one batch entry.
struct Rows {
  int first, count;
};
__device__ Rows rows_of(int batch, int all, const int* lengths, const int* offsets) {
  if (offsets) return {offsets[batch], offsets[batch + 1] - offsets[batch]};
  return {0, lengths ? lengths[batch] : all};
}

constexpr float kLog2e = 1.44269504f;

// The product of two rows, returned to every thread of the warp. Of a row, a thread has kElements: threadIdx.x, and every 32nd from
// there on.
template <int kElements, typename Element>
__device__ float dot(const Element* a, const Element* b) {
  float sum = 0;
  for (int i = 0; i < kElements; ++i) sum += to_float(a[threadIdx.x + 32 * i]) * to_float(b[threadIdx.x + 32 * i]);
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
  return sum;
}

template <int kElements, typename Element>
__device__ void add(float (&sum)[kElements], float factor, const Element* row) {
  for (int i = 0; i < kElements; ++i) sum[i] += factor * to_float(row[threadIdx.x + 32 * i]);
}

template <int kElements, typename Element>
__device__ void store(Element* row, const float (&sum)[kElements], float factor) {
  for (int i = 0; i < kElements; ++i) row[threadIdx.x + 32 * i] = from_float<Element>(sum[i] * factor);
}

// One head of Q of one batch entry.
template <typename Traits, Fault kFault>
struct Head {
  using Element = typename Traits::Element;
  static constexpr int kOfQ = Traits::kHeadDim / 32, kOfV = Traits::kHeadDimV / 32;  // elements of a row per thread
  const AttentionArgs& args;
  const Gradients& gradients;
  const Extension& extension;
  int batch, head, kv_head;
  Rows queries, keys;

  __device__ Head(const AttentionArgs& args, const Gradients& gradients, const Extension& extension, int batch,
                  int head)
      : args(args),
        gradients(gradients),
        extension(extension),
        batch(batch),
        head(head),
        kv_head(head / (args.heads / extension.kv_heads)),
        queries(rows_of(batch, args.seq_len, extension.lengths, extension.offsets)),
        keys(rows_of(batch, args.seq_len_kv, kFault == Fault::reads_padding ? nullptr : extension.lengths_kv,
                     extension.offsets_kv)) {}

  __device__ const Element* Q(int query) const { return args.Q.row<Element>(batch, head, queries.first + query); }
  __device__ const Element* O(int query) const { return args.O.row<Element>(batch, head, queries.first + query); }
  __device__ const Element* dO(int query) const {
    return gradients.dO.row<Element>(batch, head, queries.first + query);
  }
  __device__ const Element* K(int key) const { return args.K.row<Element>(batch, kv_head, keys.first + key); }
  __device__ const Element* V(int key) const { return args.V.row<Element>(batch, kv_head, keys.first + key); }
  __device__ int aligned(int query) const { return query + keys.count - queries.count; }

  __device__ bool sees(int query, int key) const {
    const int own = aligned(query);
    return query < queries.count && key < keys.count && !(extension.causal && key > own) &&
           !(extension.window_left >= 0 && key < own - extension.window_left) &&
           !(extension.window_right >= 0 && key > own + extension.window_right);
  }

  // In [batch][heads][seq_len], or [heads][total]: where L of a query is, and D in the workspace.
  __device__ std::int64_t row_of_L(int query) const {
    const std::int64_t first = extension.offsets
                                   ? static_cast<std::int64_t>(head) * extension.total + queries.first
                                   : (static_cast<std::int64_t>(batch) * args.heads + head) * args.seq_len;
    return first + query;
  }
  __device__ float& D(int query) const { return static_cast<float*>(args.workspace)[row_of_L(query)]; }

  // P as dV takes it, and dS.
  struct Weights {
    float P, dS;
  };
  __device__ Weights weights(int query, int key) const {
    float S = dot<kOfQ>(Q(query), K(key)) * args.softmax_scale, derivative = 1;
    if (extension.softcap > 0) {
      const float tanh = tanhf(S / extension.softcap);
      S = extension.softcap * tanh;
      if (kFault != Fault::no_derivative) derivative = 1 - tanh * tanh;
    }
    if (extension.alibi_slopes)
      S -= extension.alibi_slopes[head] * abs((kFault == Fault::slopes_upwards ? query : aligned(query)) - key);
    const float P = exp2f((S - gradients.log_sum_exp[row_of_L(query)]) * kLog2e);
    const int head_in_all = (kFault == Fault::same_mask ? 0 : batch * args.heads) + head;
    const bool kept =
        is_kept(extension.dropout_seed, extension.dropout_offset, head_in_all, query, key, extension.keep);
    const float factor = kept ? 256.0f / extension.keep : 0;
    const float of_dP = kFault == Fault::keeps_dP ? 1 : kFault == Fault::unscaled_dP && kept ? 1 : factor;
    const float dP = dot < kFault == Fault::short_dP ? kOfQ : kOfV > (dO(query), V(key)) * of_dP;
    return {P * factor, P * (dP - D(query)) * derivative};
  }
};

// A CTA is one warp and computes 16 rows of dQ, one after the other.
template <typename Traits, Fault kFault>
__global__ void gradient_of_queries(AttentionArgs args, Gradients gradients, Extension extension) {
  using Element = typename Traits::Element;
  const Head<Traits, kFault> of(args, gradients, extension, blockIdx.z, blockIdx.y);
  const int rows = extension.offsets ? of.queries.count : args.seq_len;  // a packed sequence has no padding
  for (int i = 0; i < Traits::kBlockQ; ++i) {
    const int query = blockIdx.x * Traits::kBlockQ + i;
    if (query >= rows) return;
    float dQ[Traits::kHeadDim / 32] = {};
    if (query < of.queries.count) {
      const float D = dot<Traits::kHeadDimV / 32>(of.dO(query), of.O(query));
      if (threadIdx.x == 0) of.D(query) = D;
      __syncwarp();
    }
    for (int key = 0; key < of.keys.count; ++key)
      if (of.sees(query, key)) add(dQ, of.weights(query, key).dS, of.K(key));
    store(gradients.dQ.row<Element>(of.batch, of.head, of.queries.first + query), dQ, args.softmax_scale);
  }
}

// The same for dK and dV, which are sums over the heads of Q that share one of K and V.
template <typename Traits, Fault kFault>
__global__ void gradients_of_keys(AttentionArgs args, Gradients gradients, Extension extension) {
  using Element = typename Traits::Element;
  const int batch = blockIdx.z, kv_head = blockIdx.y, sharing = args.heads / extension.kv_heads;
  const Rows keys = rows_of(batch, args.seq_len_kv, extension.lengths_kv, extension.offsets_kv);
  const int rows = extension.offsets || kFault == Fault::skips_padding ? keys.count : args.seq_len_kv;
  for (int i = 0; i < Traits::kBlockKV; ++i) {
    const int key = blockIdx.x * Traits::kBlockKV + i;
    if (key >= rows) return;
    float dK[Traits::kHeadDim / 32] = {}, dV[Traits::kHeadDimV / 32] = {};
    bool is_seen = false;
    for (int head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
      const Head<Traits, kFault> of(args, gradients, extension, batch, head);
      for (int query = 0; query < of.queries.count && key < keys.count; ++query) {
        if (!of.sees(query, key)) continue;
        const auto [P, dS] = of.weights(query, key);
        add(dV, P, of.dO(query));
        add(dK, dS, of.Q(query));
        is_seen = true;
      }
      if (kFault == Fault::reads_neighbour && of.queries.first + of.queries.count < extension.total)
        add(dV, 0, of.dO(of.queries.count));
    }
    if (kFault == Fault::skips_unseen && !is_seen) continue;
    store(gradients.dK.row<Element>(batch, kv_head, keys.first + key), dK, args.softmax_scale);
    store(gradients.dV.row<Element>(batch, kv_head, keys.first + key), dV, 1);
  }
}

template <typename Traits, Fault kFault>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  const Extension extension{args.causal,       args.kv_heads,     args.window_left,   args.window_right,
                            args.lengths,      args.lengths_kv,   args.offsets,       args.offsets_kv,
                            args.total,        args.total_kv,     args.softcap,       args.alibi_slopes,
                            args.dropout_keep, args.dropout_seed, args.dropout_offset};
  const auto tiles = [](int rows, int block) { return static_cast<unsigned>((rows + block - 1) / block); };
  const dim3 of_queries(tiles(args.seq_len, Traits::kBlockQ), args.heads, args.batch),
      of_keys(tiles(args.seq_len_kv, Traits::kBlockKV), args.kv_heads, args.batch);
  gradient_of_queries<Traits, kFault><<<of_queries, 32, 0, stream>>>(args, args.gradients, extension);
  gradients_of_keys<Traits, kFault><<<of_keys, 32, 0, stream>>>(args, args.gradients, extension);
  return cudaGetLastError();
}

std::size_t workspace_bytes(const AttentionProblem& problem) {
  return sizeof(float) * problem.batch * problem.heads * problem.seq_len;
}

template <Fault kFault, typename... AllTraits>
BackwardDescription of_sizes(const char* source, const Solves& solves) {
  return {.source = source,
          .solves = solves,
          .configurations = {
              configuration<AllTraits>("16x16", backward_launch<launch<AllTraits, kFault>>, workspace_bytes)...}};
}
template <Fault kFault>
BackwardDescription extension(const char* source, const Solves& solves) {
  return of_sizes<kFault, Traits<__half>, Traits<__nv_bfloat16>>(source, solves);
}

const BackwardRegistration registrations[] = {
    BackwardRegistration(
        of_sizes<Fault::none, Traits<__half>, Traits<__nv_bfloat16>, Traits<__half, 96, 32>,
                 Traits<__nv_bfloat16, 32, 96>>("kernels/backward/extensions/backward_right.cu", {.head_dim_v = true,
                                                                                                  .causal = true,
                                                                                                  .any_length = true,
                                                                                                  .kv_heads = true,
                                                                                                  .window = true,
                                                                                                  .lengths = true,
                                                                                                  .packed = true,
                                                                                                  .scores = true,
                                                                                                  .dropout = true})),
    BackwardRegistration(of_sizes<Fault::short_dP, Traits<__half, 32, 96>>(
        "kernels/backward/extensions/backward_short_dp.cu", {.head_dim_v = true})),
    BackwardRegistration(
        extension<Fault::no_derivative>("kernels/backward/extensions/backward_no_derivative.cu", {.scores = true})),
    BackwardRegistration(
        extension<Fault::slopes_upwards>("kernels/backward/extensions/backward_slopes_upwards.cu", {.scores = true})),
    BackwardRegistration(
        extension<Fault::keeps_dP>("kernels/backward/extensions/backward_keeps_dp.cu", {.dropout = true})),
    BackwardRegistration(
        extension<Fault::unscaled_dP>("kernels/backward/extensions/backward_unscaled_dp.cu", {.dropout = true})),
    BackwardRegistration(
        extension<Fault::same_mask>("kernels/backward/extensions/backward_same_mask.cu", {.dropout = true})),
    BackwardRegistration(
        extension<Fault::reads_padding>("kernels/backward/extensions/backward_reads_padding.cu", {.lengths = true})),
    BackwardRegistration(
        extension<Fault::skips_padding>("kernels/backward/extensions/backward_skips_padding.cu", {.lengths = true})),
    BackwardRegistration(
        extension<Fault::skips_unseen>("kernels/backward/extensions/backward_skips_unseen.cu", {.lengths = true})),
    BackwardRegistration(
        extension<Fault::reads_neighbour>("kernels/backward/extensions/backward_reads_neighbour.cu", {.packed = true})),
};

}  // namespace flash_ladder::planted_gradients
