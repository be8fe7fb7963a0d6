// D01 · one_query
//
// Idea        A warp takes one query of one head, and does little but read K and V. When a model generates text, each
//             sequence has one new query and a long cache of keys and values. Each number that is read is used for a single
//             multiply-add, too few for tensor cores, so the kernel is at best as fast as memory. 16 lanes read a key as 256
//             contiguous bytes, 16 bytes each, and the two halves of the warp read different keys. Each half has its own
//             m, l and O, which are merged after the last key.
// Changed     Nothing: a new track starts here. Version 02, too, has a warp per query. Here, a load takes 16 bytes instead of
//             8, a lane has eight loads in flight, and any number of keys, of heads of K and V, and any lengths are solved.
// Prediction  A warp has 4 KB of K and V in flight, and waits for them most of the time. With 32 heads of K and V and batch 1,
//             there are 32 warps, whose 128 KB are 3 % of the 3.8 MB that an H200 needs in flight at a latency of 0.8 µs:
//             below 5 % of its bandwidth, however long the cache is. At batch 16, it is about half of the bandwidth.

#include <cfloat>

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vD01 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 1;   // query rows per CTA
  static constexpr int kBlockKV = 8;  // keys and values per iteration
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 1;
  static constexpr int kChunk = 16 / sizeof(Element);      // elements in 16 bytes, the most that a lane loads at once
  static constexpr int kGroupLanes = kHeadDim / kChunk;    // lanes that share a key: here 16
  static constexpr int kGroups = 32 / kGroupLanes;         // keys that a warp loads at once: here 2
  static constexpr int kKeysPerLane = kBlockKV / kGroups;  // of an iteration: here 4
  static constexpr int kSmemBytes = 0;
};

// Converts 16 bytes to fp32.
template <typename Traits>
__device__ void to_floats(float (&x)[Traits::kChunk], const uint4& chunk) {
  const auto* elements = reinterpret_cast<const typename Traits::Element*>(&chunk);
#pragma unroll
  for (int i = 0; i < Traits::kChunk; ++i) x[i] = to_float(elements[i]);
}

// Sums x over the lanes of a group; each of them gets the result.
template <typename Traits>
__device__ float group_sum(float x) {
#pragma unroll
  for (int mask = Traits::kGroupLanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  return x;
}

template <typename Traits>
__global__ void __launch_bounds__(32) flash_attention(AttentionArgs args, int kv_heads, const int* lengths,
                                                      const int* lengths_kv, float* L_gmem, float scale) {
  using Element = typename Traits::Element;
  constexpr int kChunk = Traits::kChunk, kKeysPerLane = Traits::kKeysPerLane;
  static_assert(Traits::kGroups == 2 && Traits::kNumWarps == 1, "O is merged once, across the halves of a warp");

  // What this warp computes: one query row of one head of one batch entry.
  const int query = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int lane_id = threadIdx.x, group = lane_id / Traits::kGroupLanes;
  const int col = lane_id % Traits::kGroupLanes * kChunk;  // the first of the kChunk columns that this lane holds
  const int kv_head = head / (args.heads / kv_heads);
  const Element* K_gmem = args.K.row<Element>(batch, kv_head, 0) + col;  // [seq_len_kv][kChunk], K.row_stride apart
  const Element* V_gmem = args.V.row<Element>(batch, kv_head, 0) + col;  // [seq_len_kv][kChunk], V.row_stride apart
  // The keys that this query sees: those of its batch entry, and none if the query is padding.
  int num_keys = lengths_kv != nullptr ? lengths_kv[batch] : args.seq_len_kv;
  if (lengths != nullptr && query >= lengths[batch]) num_keys = 0;

  // Copy Q.
  const uint4 Q_chunk = *reinterpret_cast<const uint4*>(args.Q.row<Element>(batch, head, query) + col);
  float Q_rmem[kChunk];
  to_floats<Traits>(Q_rmem, Q_chunk);

  float O_rmem[kChunk] = {};  // this lane's columns of the un-normalised output of this group's keys
  float row_max = -FLT_MAX;   // maximum m of their scores so far; finite, because -inf - (-inf) is NaN
  float row_sum = 0;          // sum l of exp(score - row_max) so far

  // For each K/V tile:
  for (int kv_row = 0; kv_row < num_keys; kv_row += Traits::kBlockKV) {
    // Copy K and V. All loads are independent, so they are in flight together. Beyond the last key, that key is read again.
    uint4 K_rmem[kKeysPerLane], V_rmem[kKeysPerLane];
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      const std::int64_t key = min(kv_row + i * Traits::kGroups + group, num_keys - 1);
      K_rmem[i] = *reinterpret_cast<const uint4*>(K_gmem + key * args.K.row_stride);
      V_rmem[i] = *reinterpret_cast<const uint4*>(V_gmem + key * args.V.row_stride);
    }

    // S = Q Kᵀ. Keys beyond the last one get -inf.
    float S_rmem[kKeysPerLane];
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      float k[kChunk], sum = 0;
      to_floats<Traits>(k, K_rmem[i]);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum += Q_rmem[j] * k[j];
      const float score = group_sum<Traits>(sum) * scale;
      S_rmem[i] = kv_row + i * Traits::kGroups + group < num_keys ? score : -INFINITY;
    }

    // Online softmax. O and the row sum are relative to the old maximum; rescale them to the new one.
    float new_max = row_max;
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) new_max = fmaxf(new_max, S_rmem[i]);
    const float rescale = exp2_approx(row_max - new_max);  // r
    row_max = new_max;                                     // m
    row_sum *= rescale;                                    // l = l · r
#pragma unroll
    for (int j = 0; j < kChunk; ++j) O_rmem[j] *= rescale;  // O = O · r

    // O += P V.
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      const float p = exp2_approx(S_rmem[i] - row_max);
      row_sum += p;  // l += Σ P
      float v[kChunk];
      to_floats<Traits>(v, V_rmem[i]);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) O_rmem[j] += p * v[j];
    }
  }

  // Merge the two groups: both results become relative to the larger maximum, and are added.
  const float group_max = row_max;
  row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, Traits::kGroupLanes));  // of the whole row
  const float rescale = exp2_approx(group_max - row_max);
  row_sum *= rescale;
  row_sum += __shfl_xor_sync(0xffffffff, row_sum, Traits::kGroupLanes);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    O_rmem[j] *= rescale;
    O_rmem[j] += __shfl_xor_sync(0xffffffff, O_rmem[j], Traits::kGroupLanes);
  }

  // Normalise and store O. Without a key, l and O are 0, and L is -inf.
  if (group != 0) return;
  const float inverse_sum = row_sum > 0 ? 1 / row_sum : 0;  // 1 / l
  uint4 chunk;
  auto* elements = reinterpret_cast<Element*>(&chunk);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) elements[j] = from_float<Element>(O_rmem[j] * inverse_sum);
  *reinterpret_cast<uint4*>(args.O.row<Element>(batch, head, query) + col) = chunk;
  if (L_gmem != nullptr && lane_id == 0)
    L_gmem[(std::int64_t{batch} * args.heads + head) * args.seq_len + query] =
        (row_max + log2f(row_sum)) * 0.693147181f;  // log(2)
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  const dim3 grid(args.seq_len, args.heads, args.batch);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  flash_attention<Traits><<<grid, Traits::kNumWarps * 32, 0, stream>>>(args, args.kv_heads, args.lengths,
                                                                       args.lengths_kv, args.log_sum_exp, scale);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .most_queries = 8,
    .solves = {.any_length = true, .kv_heads = true, .lengths = true, .log_sum_exp = true},
    .configurations = {configuration<Traits<__half>>("1x8", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("1x8", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vD01
