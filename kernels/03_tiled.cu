// 03 · tiled
//
// Idea        Read K and V once per tile of 64 queries instead of once per query, and keep them in shared memory. From
//             there, each thread computes a sub-tile of the result, 8 × 2 of S and 8 × 8 of O, so an operand that is
//             loaded into a register is used 2 to 8 times before the next load.
// Changed     The CTA works on 64 queries × 32 keys together. Tiles are converted to fp32 once, when they are copied. Q
//             and K are stored transposed, so that the values that a thread multiplies at one index of head_dim are
//             neighbours. P passes through shared memory, from the threads that own S to the threads that own O.
// Prediction  K and V are requested from L1 once per 64 queries instead of once per query, a 64th of the bytes. Each
//             load from shared memory feeds 5 FFMAs in S and 16 in O, whereas a load in 02 feeds 4, and the shuffles
//             per key disappear: 4x in TFLOP/s.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v03 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;   // query rows per CTA
  static constexpr int kBlockKV = 32;  // keys and values per iteration
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;
  // Q, K, V and P, all fp32.
  static constexpr int kSmemBytes =
      (kBlockQ * kHeadDim + 2 * kBlockKV * kHeadDim + kBlockKV * kBlockQ) * int{sizeof(float)};
};

// The threads form a grid of 8 × 16. Thread (thread_row, thread_col) owns
//
//   S [8 queries][2 keys]   queries thread_row · 8 + 0…7, keys thread_col · 2 + 0…1
//   O [8 queries][8 of d]   the same queries, d = thread_col · 4 + 0…3 and 64 + thread_col · 4 + 0…3
//
// The columns of O are split into two runs of four because of the loads of V. A warp's 16-byte loads are served eight
// threads at a time: side by side, these eight touch each of the 32 banks once; 32 bytes apart, they would touch half
// of the banks twice.
constexpr int kThreadCols = 16;
constexpr int kRows = 8;   // of S and of O per thread
constexpr int kKeys = 2;   // columns of S per thread
constexpr int kQuads = 2;  // runs of four columns of O per thread

// Loads the eight elements at gmem and converts them to fp32: one 16-byte load.
template <typename Element>
__device__ void load_8(float (&x)[8], const Element* gmem) {
  const uint4 bits = *reinterpret_cast<const uint4*>(gmem);
  const Element* elements = reinterpret_cast<const Element*>(&bits);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = to_float(elements[i]);
}

// Copies a [kNumRows][kHeadDim] tile to shared memory as its transpose, [kHeadDim][kNumRows]. Neighbouring threads take
// neighbouring rows, so their stores go to neighbouring words. Their loads are a row apart and use only half of each
// 32-byte sector; the thread that needs the other half finds it in L1.
template <typename Traits, int kNumRows, typename Element = typename Traits::Element>
__device__ void copy_tile_transposed(float* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
  for (int i = threadIdx.x; i < kNumRows * Traits::kHeadDim / 8; i += Traits::kNumWarps * 32) {
    const int row = i % kNumRows, col = i / kNumRows * 8;
    float x[8];
    load_8(x, &tile_gmem[row * row_stride + col]);
#pragma unroll
    for (int j = 0; j < 8; ++j) tile_smem[(col + j) * kNumRows + row] = x[j];
  }
}

// Copies a [kNumRows][kHeadDim] tile to shared memory as is. (Threads store 32 bytes apart: a 2-way bank conflict.)
template <typename Traits, int kNumRows, typename Element = typename Traits::Element>
__device__ void copy_tile(float* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
  for (int i = threadIdx.x; i < kNumRows * Traits::kHeadDim / 8; i += Traits::kNumWarps * 32) {
    const int row = i / (Traits::kHeadDim / 8), col = i % (Traits::kHeadDim / 8) * 8;
    float x[8];
    load_8(x, &tile_gmem[row * row_stride + col]);
    float4* destination = reinterpret_cast<float4*>(&tile_smem[row * Traits::kHeadDim + col]);
    destination[0] = make_float4(x[0], x[1], x[2], x[3]);
    destination[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

// Reads kCount (a multiple of 4, or 2) neighbouring floats of shared memory with as few loads as possible.
template <int kCount>
__device__ void load_smem(float (&x)[kCount], const float* smem) {
  if constexpr (kCount == 2) {
    const float2 pair = *reinterpret_cast<const float2*>(smem);
    x[0] = pair.x, x[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(&smem[i]);
      x[i] = quad.x, x[i + 1] = quad.y, x[i + 2] = quad.z, x[i + 3] = quad.w;
    }
  }
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// Maximum and sum over the 16 threads that own the same rows, which are one half of a warp.
__device__ inline float row_threads_max(float x) {
#pragma unroll
  for (int mask = kThreadCols / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, mask));
  return x;
}
__device__ inline float row_threads_sum(float x) {
#pragma unroll
  for (int mask = kThreadCols / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  return x;
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_attention(AttentionArgs args) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  static_assert(kBlockQ * kThreadCols == Traits::kNumWarps * 32 * kRows);
  static_assert(kBlockKV == kThreadCols * kKeys && kHeadDim == kThreadCols * kQuads * 4);

  extern __shared__ __align__(16) float smem[];
  float* Q_smem = smem;                          // [kHeadDim][kBlockQ]
  float* K_smem = Q_smem + kHeadDim * kBlockQ;   // [kHeadDim][kBlockKV]
  float* V_smem = K_smem + kHeadDim * kBlockKV;  // [kBlockKV][kHeadDim]
  float* P_smem = V_smem + kBlockKV * kHeadDim;  // [kBlockKV][kBlockQ]

  // What this CTA computes: one tile of queries of one head of one batch entry.
  const int q_tile = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int thread_row = threadIdx.x / kThreadCols, thread_col = threadIdx.x % kThreadCols;
  const Element* Q_gmem = args.Q.row<Element>(batch, head, q_tile * kBlockQ);  // [kBlockQ][kHeadDim]
  const Element* K_gmem = args.K.row<Element>(batch, head, 0);                 // [seq_len_kv][kHeadDim]
  const Element* V_gmem = args.V.row<Element>(batch, head, 0);                 // [seq_len_kv][kHeadDim]

  float O_rmem[kRows][kQuads][4] = {};  // [row][quad][column], not normalised
  float row_max[kRows];                 // maximum m of the scores so far; the same in the 16 threads of a row
  float row_sum[kRows] = {};            // sum l of exp(score - row_max) so far
#pragma unroll
  for (int row = 0; row < kRows; ++row) row_max[row] = -INFINITY;

  // Copy Q.
  copy_tile_transposed<Traits, kBlockQ>(Q_smem, Q_gmem, args.Q.row_stride);

  // For each K/V tile:
  for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {
    // Copy K and V.
    __syncthreads();  // all warps are done with the previous iteration's tiles
    copy_tile_transposed<Traits, kBlockKV>(K_smem, K_gmem + kv_row * args.K.row_stride, args.K.row_stride);
    copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride);
    __syncthreads();  // K, V and, the first time, Q are complete

    // S = Q Kᵀ, as a sum of outer products over head_dim.
    float S_rmem[kRows][kKeys] = {};
#pragma unroll 8
    for (int d = 0; d < kHeadDim; ++d) {
      float q[kRows], k[kKeys];
      load_smem(q, &Q_smem[d * kBlockQ + thread_row * kRows]);
      load_smem(k, &K_smem[d * kBlockKV + thread_col * kKeys]);
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (int key = 0; key < kKeys; ++key) S_rmem[row][key] += q[row] * k[key];
    }

    // Online softmax. O and the row sums are relative to the old maximum; rescale them to the new one.
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float new_max = row_max[row];
#pragma unroll
      for (int key = 0; key < kKeys; ++key) {
        S_rmem[row][key] *= args.softmax_scale;
        new_max = fmaxf(new_max, S_rmem[row][key]);
      }
      new_max = row_threads_max(new_max);  // of the whole row

      const float rescale = exp_approx(row_max[row] - new_max);  // r; the first time, exp(-inf) = 0
      row_max[row] = new_max;                                    // m
#pragma unroll
      for (int i = 0; i < kQuads * 4; ++i) O_rmem[row][i / 4][i % 4] *= rescale;  // O = O · r

      float tile_sum = 0;
#pragma unroll
      for (int key = 0; key < kKeys; ++key) {
        S_rmem[row][key] = exp_approx(S_rmem[row][key] - new_max);  // from here on S holds P
        tile_sum += S_rmem[row][key];
      }
      row_sum[row] = row_sum[row] * rescale + row_threads_sum(tile_sum);  // l
    }

    // P to shared memory, transposed. The 16 threads that write a query's P also read it, and they are in one warp.
    // (Threads store 512 bytes apart, an 8-way bank conflict: few stores, in a layout that the many loads below need.)
    __syncwarp();  // all lanes are done with the previous iteration's P
#pragma unroll
    for (int key = 0; key < kKeys; ++key)
#pragma unroll
      for (int row = 0; row < kRows; row += 4)
        *reinterpret_cast<float4*>(&P_smem[(thread_col * kKeys + key) * kBlockQ + thread_row * kRows + row]) =
            make_float4(S_rmem[row][key], S_rmem[row + 1][key], S_rmem[row + 2][key], S_rmem[row + 3][key]);
    __syncwarp();  // P of this warp's queries is complete

    // O += P V, as a sum of outer products over the keys.
#pragma unroll 4
    for (int key = 0; key < kBlockKV; ++key) {
      float p[kRows], v[kQuads][4];
      load_smem(p, &P_smem[key * kBlockQ + thread_row * kRows]);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad)
        load_smem(v[quad], &V_smem[key * kHeadDim + quad * (kHeadDim / kQuads) + thread_col * 4]);
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (int i = 0; i < kQuads * 4; ++i) O_rmem[row][i / 4][i % 4] += p[row] * v[i / 4][i % 4];
    }
  }

  // Normalise and store O.
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    Element* O_gmem = args.O.row<Element>(batch, head, q_tile * kBlockQ + thread_row * kRows + row);
    const float inverse_sum = 1 / row_sum[row];  // 1 / l
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      uint2 bits;
      Element* elements = reinterpret_cast<Element*>(&bits);
#pragma unroll
      for (int i = 0; i < 4; ++i) elements[i] = from_float<Element>(O_rmem[row][quad][i] * inverse_sum);
      *reinterpret_cast<uint2*>(&O_gmem[quad * (kHeadDim / kQuads) + thread_col * 4]) = bits;
    }
  }
}

template <typename Traits>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const auto kernel = flash_attention<Traits>;
  // More than 48 KB of shared memory per CTA must be requested explicitly.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(args.seq_len / Traits::kBlockQ, args.heads, args.batch);
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(args);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("64x32", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("64x32", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v03
