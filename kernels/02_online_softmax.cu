// 02 · online_softmax
//
// Idea        A whole row of S is never needed at once. Walk over the keys once and keep three things per query: the
//             largest score so far, the sum of exp(score - max), and the weighted sum of the rows of V. When the maximum
//             grows by x, both sums are multiplied by exp(-x) (Milakov & Gimelshein; FlashAttention, algorithm 1).
// Changed     One launch instead of three, one warp per query row, and no workspace. A lane holds 4 of the 128 head_dim
//             elements of q and of the output, so that the warp reads a row of K or V as 256 contiguous bytes.
// Prediction  No byte of S or P reaches global memory. K and V are still read once per query, by every warp separately,
//             but with coalesced loads that hit L1: about 5x in TFLOP/s. Per key, 5 shuffles cost more than 8 FFMAs.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v02 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;  // query rows per CTA, one warp each
  static constexpr int kBlockKV = 1;  // keys per iteration
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 16;
  static constexpr int kSmemBytes = 0;
};

constexpr int kPerLane = 4;  // elements of head_dim that a lane holds

// Loads this lane's elements of the row at row_gmem, [kHeadDim], and converts them to fp32: one 8-byte load.
template <typename Element>
__device__ void load_row(float (&x)[kPerLane], const Element* row_gmem, int lane_id) {
  const uint2 bits = reinterpret_cast<const uint2*>(row_gmem)[lane_id];
  const Element* elements = reinterpret_cast<const Element*>(&bits);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) x[i] = to_float(elements[i]);
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// Sums x over the 32 lanes; every lane gets the result.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  return x;
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_attention(AttentionArgs args) {
  using Element = typename Traits::Element;
  static_assert(Traits::kHeadDim == 32 * kPerLane && Traits::kBlockQ == Traits::kNumWarps);

  // What this warp computes: one query row of one head of one batch entry.
  const int head = blockIdx.y, batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const int query = blockIdx.x * Traits::kBlockQ + warp_id;
  const Element* K_gmem = args.K.row<Element>(batch, head, 0);  // [seq_len_kv][kHeadDim], rows K.row_stride apart
  const Element* V_gmem = args.V.row<Element>(batch, head, 0);  // [seq_len_kv][kHeadDim], rows V.row_stride apart

  float q[kPerLane];  // this lane's elements of the query
  load_row(q, args.Q.row<Element>(batch, head, query), lane_id);

  float O_rmem[kPerLane] = {};  // this lane's elements of the un-normalised output
  float row_max = -INFINITY;    // maximum m of the scores so far
  float row_sum = 0;            // sum l of exp(score - row_max) so far

  // For each key:
  for (int key = 0; key < args.seq_len_kv; ++key) {
    float k[kPerLane], v[kPerLane];
    load_row(k, K_gmem + key * args.K.row_stride, lane_id);
    load_row(v, V_gmem + key * args.V.row_stride, lane_id);

    // S = Q Kᵀ.
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score += q[i] * k[i];
    score = warp_sum(score) * args.softmax_scale;

    // Online softmax. O and the row sum are relative to the old maximum; rescale them to the new one.
    const float new_max = fmaxf(row_max, score);
    const float rescale = exp_approx(row_max - new_max);  // r; the first time, exp(-inf) = 0
    const float p = exp_approx(score - new_max);
    row_max = new_max;                // m
    row_sum = row_sum * rescale + p;  // l

    // O += P V.
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) O_rmem[i] = O_rmem[i] * rescale + p * v[i];  // O = O · r + P V
  }

  // Normalise and store O.
  uint2 bits;
  Element* elements = reinterpret_cast<Element*>(&bits);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) elements[i] = from_float<Element>(O_rmem[i] / row_sum);  // O / l
  reinterpret_cast<uint2*>(args.O.row<Element>(batch, head, query))[lane_id] = bits;
}

template <typename Traits>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(args.seq_len / Traits::kBlockQ, args.heads, args.batch);
  flash_attention<Traits><<<grid, Traits::kNumWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("16x1", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("16x1", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v02
