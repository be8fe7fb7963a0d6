// D02 · split_kv
//
// Idea        Divide the keys of a query among several warps, so that a few long sequences also occupy all SMs. Each warp
//             writes the m, l and un-normalised O of its part to memory, in fp32. A second kernel, combine, merges the parts of
//             each row in the way that D01 merges the two groups of a warp. It always adds them in the same order, so the
//             result does not depend on which warp finishes first.
// Changed     The loop runs from the first key of a part to its last one. The host chooses the number of parts: as many as the
//             GPU can run warps, but with at least 64 keys each. A row with a single part is normalised and stored as before.
// Prediction  A warp of D01 takes about 1 µs for an iteration, whether or not it is alone. At that rate, 9 warps per SM
//             request the 4.8 TB/s that the memory of an H200 delivers, and 32 are resident. With as many heads of K and V as
//             of Q, memory is the limit: 4 TB/s or more at 32768 keys, which is 30 times D01's speed at batch 1. With a
//             quarter of the heads, each byte is requested four times, and the instructions limit the speed to 3.8 TB/s:
//             2.5 to 3.5. At batch 1 with 4096 keys and 8 heads of K and V, a part has only 8 iterations, and the second
//             launch takes as long as several of them: about 1 TB/s.

#include <algorithm>
#include <cfloat>

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vD02 {

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
  static constexpr int kWarpsPerSm = 32;  // that an SM can hold, one in each CTA
  static constexpr int kMostSms = 192;    // that parts are made for: the workspace's size must not depend on the GPU
  static constexpr int kPartKeys = 64;    // the fewest keys of a part, except for the last one of a row
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

// How many keys a part has, except for the last one of a row: a multiple of kBlockKV. If rows are divided at all, there are
// no more parts than warps that the GPU can run at a time.
template <typename Traits>
int keys_per_part(std::int64_t num_rows, std::int64_t seq_len_kv, int num_sms) {
  const std::int64_t most_parts = std::max<std::int64_t>(Traits::kWarpsPerSm * num_sms / num_rows, 1);
  const std::int64_t keys = std::max<std::int64_t>((seq_len_kv - 1) / most_parts + 1, Traits::kPartKeys);
  return ((keys - 1) / Traits::kBlockKV + 1) * Traits::kBlockKV;
}

// The workspace: the un-normalised O of all parts, [num_rows][num_parts][kHeadDim], then their m and l, [num_rows][num_parts].
template <typename Traits>
__device__ float* part_O(const AttentionArgs& args, std::int64_t part) {
  return static_cast<float*>(args.workspace) + part * Traits::kHeadDim;
}
template <typename Traits>
__device__ float2* part_ml(const AttentionArgs& args, std::int64_t part, int num_parts) {
  const std::int64_t num_rows = std::int64_t{args.batch} * args.heads * args.seq_len;
  return reinterpret_cast<float2*>(part_O<Traits>(args, num_rows * num_parts)) + part;
}

// The bound is for the registers: with at most 64 per thread, an SM has room for as many warps.
template <typename Traits>
__global__ void __launch_bounds__(32 * Traits::kWarpsPerSm)
    flash_attention(AttentionArgs args, int kv_heads, const int* lengths, const int* lengths_kv, float* L_gmem,
                    float scale, int num_parts, int part_keys) {
  using Element = typename Traits::Element;
  constexpr int kChunk = Traits::kChunk, kKeysPerLane = Traits::kKeysPerLane;
  static_assert(Traits::kGroups == 2 && Traits::kNumWarps == 1, "O is merged once, across the halves of a warp");

  // What this warp computes: one part of the keys, for one query row of one head of one batch entry.
  const int query = blockIdx.x / num_parts, head = blockIdx.y, batch = blockIdx.z;
  const int first_key = blockIdx.x % num_parts * part_keys;
  const int lane_id = threadIdx.x, group = lane_id / Traits::kGroupLanes;
  const int col = lane_id % Traits::kGroupLanes * kChunk;  // the first of the kChunk columns that this lane holds
  const int kv_head = head / (args.heads / kv_heads);
  const Element* K_gmem = args.K.row<Element>(batch, kv_head, 0) + col;  // [seq_len_kv][kChunk], K.row_stride apart
  const Element* V_gmem = args.V.row<Element>(batch, kv_head, 0) + col;  // [seq_len_kv][kChunk], V.row_stride apart
  // The keys that this query sees: those of its batch entry, and none if the query is padding.
  int num_keys = lengths_kv != nullptr ? lengths_kv[batch] : args.seq_len_kv;
  if (lengths != nullptr && query >= lengths[batch]) num_keys = 0;
  num_keys = min(num_keys, first_key + part_keys);  // where this part ends: before it begins, if the sequence does

  // Copy Q.
  const uint4 Q_chunk = *reinterpret_cast<const uint4*>(args.Q.row<Element>(batch, head, query) + col);
  float Q_rmem[kChunk];
  to_floats<Traits>(Q_rmem, Q_chunk);

  float O_rmem[kChunk] = {};  // this lane's columns of the un-normalised output of this group's keys
  float row_max = -FLT_MAX;   // maximum m of their scores so far; finite, because -inf - (-inf) is NaN
  float row_sum = 0;          // sum l of exp(score - row_max) so far

  // For each K/V tile:
  for (int kv_row = first_key; kv_row < num_keys; kv_row += Traits::kBlockKV) {
    // Copy K and V. All loads are independent, so they are in flight together. Beyond the last key, it is read again.
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

  if (group != 0) return;
  const std::int64_t row = (std::int64_t{batch} * args.heads + head) * args.seq_len + query;

  // Store a part. Without a key, l and O are 0, and m is finite: relative to a part that has keys, its weight is 0.
  if (num_parts > 1) {
    const std::int64_t part = (std::int64_t{batch} * args.heads + head) * gridDim.x + blockIdx.x;
    auto* O_gmem = reinterpret_cast<float4*>(part_O<Traits>(args, part) + col);
    O_gmem[0] = make_float4(O_rmem[0], O_rmem[1], O_rmem[2], O_rmem[3]);
    O_gmem[1] = make_float4(O_rmem[4], O_rmem[5], O_rmem[6], O_rmem[7]);
    if (lane_id == 0) *part_ml<Traits>(args, part, num_parts) = make_float2(row_max, row_sum);
    return;
  }

  // Normalise and store O. Without a key, l and O are 0, and L is -inf.
  const float inverse_sum = row_sum > 0 ? 1 / row_sum : 0;  // 1 / l
  uint4 chunk;
  auto* elements = reinterpret_cast<Element*>(&chunk);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) elements[j] = from_float<Element>(O_rmem[j] * inverse_sum);
  *reinterpret_cast<uint4*>(args.O.row<Element>(batch, head, query) + col) = chunk;
  if (L_gmem != nullptr && lane_id == 0) L_gmem[row] = (row_max + log2f(row_sum)) * 0.693147181f;  // log(2)
}

// Merges the parts of a row, which has a warp of its own.
template <typename Traits>
__global__ void __launch_bounds__(32) combine(AttentionArgs args, float* L_gmem, int num_parts) {
  using Element = typename Traits::Element;
  constexpr int kColumns = Traits::kHeadDim / 32;  // of a lane
  const int query = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, lane_id = threadIdx.x, col = lane_id * kColumns;
  const std::int64_t row = (std::int64_t{batch} * args.heads + head) * args.seq_len + query;
  const float* O_gmem = part_O<Traits>(args, row * num_parts) + col;          // [num_parts][kColumns], kHeadDim apart
  const float2* ml_gmem = part_ml<Traits>(args, row * num_parts, num_parts);  // [num_parts]

  // The largest m comes first, so that no part has to be rescaled twice.
  float row_max = -FLT_MAX;
  for (int part = lane_id; part < num_parts; part += 32) row_max = fmaxf(row_max, ml_gmem[part].x);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, mask));

  // Add the parts in order. The loads of eight parts are in flight together.
  float O_rmem[kColumns] = {}, row_sum = 0;
#pragma unroll 8
  for (int part = 0; part < num_parts; ++part) {
    const float4 O_part = *reinterpret_cast<const float4*>(O_gmem + part * Traits::kHeadDim);
    const float2 ml = ml_gmem[part];
    const float rescale = exp2_approx(ml.x - row_max);
    row_sum += rescale * ml.y;
    O_rmem[0] += rescale * O_part.x;
    O_rmem[1] += rescale * O_part.y;
    O_rmem[2] += rescale * O_part.z;
    O_rmem[3] += rescale * O_part.w;
  }

  // The rest is as in flash_attention: divide by l, and convert.
  const float inverse_sum = row_sum > 0 ? 1 / row_sum : 0;
  uint2 chunk;
  auto* elements = reinterpret_cast<Element*>(&chunk);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) elements[j] = from_float<Element>(O_rmem[j] * inverse_sum);
  *reinterpret_cast<uint2*>(args.O.row<Element>(batch, head, query) + col) = chunk;
  if (L_gmem != nullptr && lane_id == 0) L_gmem[row] = (row_max + log2f(row_sum)) * 0.693147181f;
}

// The workspace is as large as a GPU with kMostSms needs it. Fewer SMs never lead to more parts.
template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  const std::int64_t num_rows = problem.batch * problem.heads * problem.seq_len;
  const int part_keys = keys_per_part<Traits>(num_rows, problem.seq_len_kv, Traits::kMostSms);
  const std::int64_t num_parts = (problem.seq_len_kv - 1) / part_keys + 1;
  return num_parts > 1 ? num_rows * num_parts * (Traits::kHeadDim + 2) * sizeof(float) : 0;
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  int device, num_sms;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const std::int64_t num_rows = std::int64_t{args.batch} * args.heads * args.seq_len;
  const int part_keys = keys_per_part<Traits>(num_rows, args.seq_len_kv, std::min(num_sms, Traits::kMostSms));
  const int num_parts = (args.seq_len_kv - 1) / part_keys + 1;
  const dim3 rows(args.seq_len, args.heads, args.batch), grid(rows.x * num_parts, rows.y, rows.z);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  flash_attention<Traits><<<grid, Traits::kNumWarps * 32, 0, stream>>>(
      args, args.kv_heads, args.lengths, args.lengths_kv, args.log_sum_exp, scale, num_parts, part_keys);
  // Combine the parts. The second kernel starts when the first one has ended.
  if (num_parts > 1) combine<Traits><<<rows, 32, 0, stream>>>(args, args.log_sum_exp, num_parts);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .most_queries = 8,
    .solves = {.any_length = true, .kv_heads = true, .lengths = true, .log_sum_exp = true},
    .configurations = {configuration<Traits<__half>>("1x8", launch<Traits<__half>>, workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("1x8", launch<Traits<__nv_bfloat16>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vD02
