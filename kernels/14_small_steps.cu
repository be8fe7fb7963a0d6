// 14 · small_steps
//
// Idea        Spend registers where they save work. Nothing in the hot path looks at a whole tile any more, so a step of
//             S, softmax and P V may be as small as one mma allows: 16 keys. S then takes 16 registers and P 8, and what
//             that frees, with the last spare registers, holds all fragments of Q, which 13 reads again for every tile.
// Changed     The loop over steps inside a tile, and Q's fragments, loaded before it. A step needs K and V, so both are
//             copied together, a tile ahead: two buffers each, and one barrier per tile instead of two. 64 KB of shared
//             memory instead of 48 still leave two CTAs per SM, but one on sm_86 and sm_89.
// Prediction  Q's fragments were a third of the fragment reads: 0.125 instead of 0.188 cycles of shared memory per score.
//             A chain of loads, mmas and exponentials is shorter, so the two warps of a scheduler mix better: 1.1x.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v14 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 128;  // query rows per CTA
  static constexpr int kBlockKV = 32;  // keys and values per tile
  static constexpr int kStepKV = 16;   // keys and values per step
  static constexpr int kStages = 2;    // buffers for K and V; the loop takes turns between two
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;
  static constexpr int kMmaM = kBlockQ / (kNumWarps * 16);  // 16-row mma tiles that a warp owns: here 2
  static constexpr int kSmemBytes = (kBlockQ + 2 * kStages * kBlockKV) * kHeadDim * sizeof(Element);
  static_assert(kBlockQ == kNumWarps * kMmaM * 16, "each warp owns whole mma tiles");
  static_assert(kStepKV == 16 && kBlockKV % kStepKV == 0, "a step is one mma_k");
};

// Where element (row, col) of a tile lies in shared memory, counted in elements from the start of the tile. Rows follow
// one another, 256 bytes each, and the XOR permutes the 16-byte chunks of a row; 06 has the picture.
template <typename Traits>
__device__ int smem_offset(int row, int col) {
  constexpr int kChunk = 16 / sizeof(typename Traits::Element);  // elements in 16 bytes
  const int chunk = (col / kChunk) ^ (row % 8);
  return row * Traits::kHeadDim + chunk * kChunk + col % kChunk;
}

// The same for a fragment that starts at (row, col), both constants, when lane_offset is what this lane reads of the
// fragment at (0, 0). Rows come in steps of 8, so they leave the XOR alone and are added. Columns come in steps of 16:
// within the 64 that the XOR permutes they are an XOR themselves, and beyond they are added. What is added becomes part
// of the load instruction.
template <typename Traits>
__device__ int fragment_offset(int lane_offset, int row, int col) {
  return (lane_offset ^ col % 64) + row * Traits::kHeadDim + col / 64 * 64;
}

// How the CTA shares out a tile that it copies, 16 bytes per thread at a time: 16 neighbouring threads read one row, and
// a thread's next row is kRowsAtOnce further on.
template <typename Traits>
constexpr int kRowsAtOnce = Traits::kNumWarps * 32 / (Traits::kHeadDim * sizeof(typename Traits::Element) / 16);

// Starts to copy a thread's share of kRows rows of kHeadDim elements from global to shared memory. Both pointers are those
// of the thread's first row; tile_gmem is left where the next tile begins.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element*& tile_gmem, std::int64_t row_stride) {
  static_assert(kRowsAtOnce<Traits> % 8 == 0, "all rows of a thread are swizzled alike");
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce<Traits>, tile_gmem += kRowsAtOnce<Traits> * row_stride)
    cp_async_16(&tile_smem[row * Traits::kHeadDim], tile_gmem);
}

// Fragments are loaded from Q_smem [kBlockQ][kHeadDim], K_smem [kBlockKV][kHeadDim] and V_smem [kBlockKV][kHeadDim].
// In each ldmatrix, lanes 0–7 give the row addresses of the first 8×8 matrix, lanes 8–15 of the second, and so on.

// A = Q[the warp's rows][16 of head_dim]. The four matrices are the quarters of A: rows 0–7 and 8–15 at the lower eight
// of head_dim, then both at the upper eight.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_Q_fragments(std::uint32_t (&Q_rmem)[Traits::kMmaM][4], const Element* Q_smem, int lane_offset,
                                 int mma_k) {
#pragma unroll
  for (int mma_m = 0; mma_m < Traits::kMmaM; ++mma_m) {
    std::uint32_t(&A)[4] = Q_rmem[mma_m];
    ldmatrix_x4(A[0], A[1], A[2], A[3], &Q_smem[fragment_offset<Traits>(lane_offset, mma_m * 16, mma_k * 16)]);
  }
}

// B = Kᵀ[16 of head_dim][16 keys], for mma_n and mma_n + 1. Two matrices, side by side along head_dim, make the B of one
// mma_n, and four those of two.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_K_fragments(std::uint32_t (&K_rmem)[2][2], const Element* K_smem, int lane_offset, int mma_k,
                                 int mma_n) {
  ldmatrix_x4(K_rmem[0][0], K_rmem[0][1], K_rmem[1][0], K_rmem[1][1],
              &K_smem[fragment_offset<Traits>(lane_offset, mma_n * 8, mma_k * 16)]);
}

// B = V[16 keys][16 of head_dim], for mma_n and mma_n + 1. Two matrices, one below the other along the keys, make the B
// of one mma_n. Transposed on their way, they give each lane two neighbouring keys in a register.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_V_fragments(std::uint32_t (&V_rmem)[2][2], const Element* V_smem, int lane_offset, int mma_k,
                                 int mma_n) {
  ldmatrix_x4_trans(V_rmem[0][0], V_rmem[0][1], V_rmem[1][0], V_rmem[1][1],
                    &V_smem[fragment_offset<Traits>(lane_offset, mma_k * 16, mma_n * 8)]);
}

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float group_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// P = 2^(scale · S - row_max), rounded to 16 bits, and this lane's sums of it. Two neighbouring accumulators of S, 16 rows
// × 16 keys, become one fragment A of P V: each lane already holds the elements that it needs. Returns whether
// all sums are below 4096. Then every P is, too, and far below 65,504, the largest fp16. An infinity or a NaN is not.
template <typename Traits>
__device__ bool exponentials(std::uint32_t (&P_rmem)[Traits::kMmaM][Traits::kStepKV / 16][4],
                             float (&step_sum)[Traits::kMmaM][2],
                             const float (&S_rmem)[Traits::kMmaM][Traits::kStepKV / 8][4],
                             const float (&row_max)[Traits::kMmaM][2], float scale) {
  bool in_range = true;
#pragma unroll
  for (int mma_m = 0; mma_m < Traits::kMmaM; ++mma_m) {
    step_sum[mma_m][0] = step_sum[mma_m][1] = 0;
#pragma unroll
    for (int mma_k = 0; mma_k < Traits::kStepKV / 16; ++mma_k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        const float* S = &S_rmem[mma_m][2 * mma_k + i / 2][2 * half];
        const float low = exp2_approx(S[0] * scale - row_max[mma_m][half]);
        const float high = exp2_approx(S[1] * scale - row_max[mma_m][half]);
        step_sum[mma_m][half] += low + high;
        P_rmem[mma_m][mma_k][i] = pack<typename Traits::Element>(low, high);
      }
    in_range = in_range && step_sum[mma_m][0] < 4096 && step_sum[mma_m][1] < 4096;
  }
  return in_range;
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_attention(AttentionArgs args, float scale) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStepKV = Traits::kStepKV, kStages = Traits::kStages, kMmaM = Traits::kMmaM;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(smem);        // [kBlockQ][kHeadDim]
  Element* K_smem = Q_smem + kBlockQ * kHeadDim;             // [kStages][kBlockKV][kHeadDim]
  Element* V_smem = K_smem + kStages * kBlockKV * kHeadDim;  // [kStages][kBlockKV][kHeadDim]

  // Where this CTA stands: one tile of queries of one head of one batch entry.
  const int q_block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const int warp_row = warp_id * kMmaM * 16;  // the first of the query rows that this warp owns

  // What this thread copies first of each tile.
  const int copy_row = threadIdx.x / 16, copy_col = threadIdx.x % 16 * 8;
  const int copy_offset = smem_offset<Traits>(copy_row, copy_col);
  const Element* Q_gmem = args.Q.row<Element>(batch, head, q_block * kBlockQ + copy_row) + copy_col;
  const Element* K_gmem = args.K.row<Element>(batch, head, copy_row) + copy_col;
  const Element* V_gmem = args.V.row<Element>(batch, head, copy_row) + copy_col;

  // What this lane reads first of each tile.
  const int Q_lane = smem_offset<Traits>(warp_row + lane_id % 16, lane_id / 16 * 8);
  const int K_lane = smem_offset<Traits>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
  const int V_lane = smem_offset<Traits>(lane_id % 16, lane_id / 16 * 8);

  // In each 16-row mma tile a lane holds parts of two rows: lane_id / 4, and that + 8. `half` tells them apart. The
  // last index of an array of fragments counts a lane's registers of one A, B or D.
  float O_rmem[kMmaM][kHeadDim / 8][4] = {};  // [mma_m][mma_n][D], not normalised
  float row_max[kMmaM][2];                    // [mma_m][half], of scale · S so far
  float row_sum[kMmaM][2] = {};               // [mma_m][half], of this lane's 2^(scale · S - row_max) so far
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m) row_max[mma_m][0] = row_max[mma_m][1] = -INFINITY;

  // Copy Q and the first K and V.
  copy_tile<Traits, kBlockQ>(Q_smem + copy_offset, Q_gmem, args.Q.row_stride);
  copy_tile<Traits, kBlockKV>(K_smem + copy_offset, K_gmem, args.K.row_stride);
  copy_tile<Traits, kBlockKV>(V_smem + copy_offset, V_gmem, args.V.row_stride);
  cp_async_commit();
  cp_async_wait<0>();  // this thread's copies have arrived
  __syncthreads();     // and so have those of all other threads

  std::uint32_t Q_rmem[kHeadDim / 16][kMmaM][4];  // [mma_k][mma_m][A]
#pragma unroll
  for (int mma_k = 0; mma_k < kHeadDim / 16; ++mma_k) load_Q_fragments<Traits>(Q_rmem[mma_k], Q_smem, Q_lane, mma_k);

  // For each K/V tile:
  for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {
    // Copy the next K and V. The offsets are those of a tile's buffers in K_smem and V_smem, counted in elements.
    const int buffer = kv_row / kBlockKV % 2 * kBlockKV * kHeadDim, next_buffer = kBlockKV * kHeadDim - buffer;
    cp_async_wait<0>();  // this thread's copies of K and V have arrived
    __syncthreads();     // and so have those of all other threads; all warps are done with the tile before
    if (kv_row + kBlockKV < args.seq_len_kv) {
      copy_tile<Traits, kBlockKV>(K_smem + next_buffer + copy_offset, K_gmem, args.K.row_stride);
      copy_tile<Traits, kBlockKV>(V_smem + next_buffer + copy_offset, V_gmem, args.V.row_stride);
      cp_async_commit();
    }

    // For each step of 16 keys:
#pragma unroll
    for (int step = 0; step < kBlockKV; step += kStepKV) {
      // Multiples of 8 rows may be added before the XOR, which only moves chunks within a row.
      const int K_step = K_lane + buffer + step * kHeadDim;  // what this lane reads first of the step's K
      const int V_step = V_lane + buffer + step * kHeadDim;  // and of its V

      // S = Q Kᵀ.
      float S_rmem[kMmaM][kStepKV / 8][4] = {};  // [mma_m][mma_n][D]
      std::uint32_t K_rmem[2][2][2];             // [buffer][mma_n][B]
      load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);
#pragma unroll
      for (int mma_k = 0; mma_k < kHeadDim / 16; ++mma_k) {
        if (mma_k + 1 < kHeadDim / 16) load_K_fragments<Traits>(K_rmem[(mma_k + 1) % 2], K_smem, K_step, mma_k + 1, 0);
#pragma unroll
        for (int mma_n = 0; mma_n < kStepKV / 8; ++mma_n)
#pragma unroll
          for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
            mma_m16n8k16<Element>(S_rmem[mma_m][mma_n], Q_rmem[mma_k][mma_m], K_rmem[mma_k % 2][mma_n]);
      }

      // The first piece of V comes before the softmax, so that P V need not wait for it.
      std::uint32_t V_rmem[2][2][2];  // [buffer][mma_n % 2][B]
      load_V_fragments<Traits>(V_rmem[0], V_smem, V_step, 0, 0);

      // Online softmax, and P to 16 bits. O and the row sums are relative to the maximum of some step before this one.
      std::uint32_t P_rmem[kMmaM][kStepKV / 16][4];  // [mma_m][mma_k][A]
      float step_sum[kMmaM][2];                      // [mma_m][half], of this lane's P
      bool in_range = exponentials<Traits>(P_rmem, step_sum, S_rmem, row_max, scale);
      // All lanes decide together, since the branch shuffles. It is taken the first time: row_max = -inf, so the sums are
      // infinite or NaN.
      if (!__all_sync(0xffffffff, in_range)) {
        // They move to the new maximum, and P with them.
#pragma unroll
        for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float step_max = -INFINITY;
#pragma unroll
            for (int mma_n = 0; mma_n < kStepKV / 8; ++mma_n)
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) step_max = fmaxf(step_max, S_rmem[mma_m][mma_n][i]);
            const float new_max = fmaxf(row_max[mma_m][half], group_max(step_max) * scale);
            const float rescale = exp2_approx(row_max[mma_m][half] - new_max);  // the first time 2^-inf = 0
            row_max[mma_m][half] = new_max;
            row_sum[mma_m][half] *= rescale;
#pragma unroll
            for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) O_rmem[mma_m][mma_n][i] *= rescale;
          }
        exponentials<Traits>(P_rmem, step_sum, S_rmem, row_max, scale);
      }
#pragma unroll
      for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
        for (int half = 0; half < 2; ++half) row_sum[mma_m][half] += step_sum[mma_m][half];

      // O += P V.
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; mma_n += 2) {
        const int buffer = mma_n / 2 % 2;
        if (mma_n + 2 < kHeadDim / 8) load_V_fragments<Traits>(V_rmem[1 - buffer], V_smem, V_step, 0, mma_n + 2);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
            mma_m16n8k16<Element>(O_rmem[mma_m][mma_n + n], P_rmem[mma_m][0], V_rmem[buffer][n]);
      }
    }
  }

  // Normalise and store O. A lane's elements are pairs, 4 bytes each; by way of shared memory it stores 16 bytes at a
  // time. O goes where this warp's rows of Q were: no other warp uses them any more, so a __syncwarp() is enough.
  Element* O_smem = Q_smem;  // [kBlockQ][kHeadDim]
  __syncwarp();              // all lanes have read their fragments of Q
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse_sum = 1 / group_sum(row_sum[mma_m][half]);
      const int row = warp_row + mma_m * 16 + half * 8 + lane_id / 4;
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n) {
        const float* O = &O_rmem[mma_m][mma_n][2 * half];
        *reinterpret_cast<std::uint32_t*>(&O_smem[smem_offset<Traits>(row, mma_n * 8 + lane_id % 4 * 2)]) =
            pack<Element>(O[0] * inverse_sum, O[1] * inverse_sum);
      }
    }
  __syncwarp();  // the warp's rows of O are complete

  Element* O_gmem = args.O.row<Element>(batch, head, q_block * kBlockQ);  // [kBlockQ][kHeadDim]
#pragma unroll
  for (int i = 0; i < kMmaM * 8; ++i) {  // two rows at a time: 16 lanes write one row's 256 bytes
    const int row = warp_row + i * 2 + lane_id / 16;
    const int col = lane_id % 16 * 8;
    *reinterpret_cast<uint4*>(&O_gmem[row * args.O.row_stride + col]) =
        *reinterpret_cast<const uint4*>(&O_smem[smem_offset<Traits>(row, col)]);
  }
}

template <typename Traits>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const auto kernel = flash_attention<Traits>;
  // More than 48 KB of shared memory per CTA must be asked for.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(args.seq_len / Traits::kBlockQ, args.heads, args.batch);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(args, scale);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("128x32", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("128x32", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v14
