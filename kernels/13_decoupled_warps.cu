// 13 · decoupled_warps
//
// Idea        A CTA-wide barrier makes every warp wait for the slowest one, twice per tile. Let each warp wait only for
//             what it needs: mbarriers in shared memory count the threads whose copies of a tile have arrived (full) and
//             the threads that have read it (empty). Tiles go round a ring of buffers, so one warp can be ahead of another.
// Changed     The copies: K and V of a tile go to one buffer of the ring, in the middle of the previous tile. Waits for
//             full and empty replace __syncthreads() in the loop. A tile has 64 keys, which are read in two steps of
//             32, because there are no registers for a larger S and P. A second configuration has eight warps.
// Prediction  Barrier stalls disappear from the loop. But the two CTAs of an SM were out of step already: while one
//             waited, the other had work. 1.08x.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v13 {

template <typename Element_, int kNumWarps_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = kNumWarps_ * 32;  // query rows per CTA
  static constexpr int kBlockKV = 64;              // keys and values per tile
  static constexpr int kStepKV = 32;               // keys and values per step
  static constexpr int kStages = 2;                // tiles in the ring, each with K and V
  static constexpr int kHeadDim = 128;
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kNumWarps = kNumWarps_;
  static constexpr int kMmaM = kBlockQ / (kNumWarps * 16);    // 16-row mma tiles that a warp owns: here 2
  static constexpr int kStageSize = 2 * kBlockKV * kHeadDim;  // elements in a stage: K and V
  // If a lane's sum of P reaches this, the row needs a new maximum. Below it, each P is far from 65,504, the largest
  // fp16 number; any limit up to that would do.
  static constexpr float kMostSum = 4096;
  // Q, the ring, and two barriers of 8 bytes per stage.
  static constexpr int kSmemBytes = (kBlockQ * kHeadDim + kStages * kStageSize) * sizeof(Element) + kStages * 2 * 8;
  static_assert(kBlockQ == kNumWarps * kMmaM * 16, "each warp owns whole mma tiles");
  static_assert(kChunksPerRow % 8 == 0, "the XOR permutes eight chunks");
  static_assert(kStages >= 2 && kStepKV % 16 == 0 &&
                kBlockKV % (2 * kStepKV) == 0);  // a tile is copied in the middle of the previous one
};

// The offset of element (row, col) of a tile in shared memory, counted in elements from the start of the tile. Rows of
// 256 bytes follow one another, and the XOR permutes the 16-byte chunks of a row; 06 has the picture.
template <typename Traits>
__device__ int smem_offset(int row, int col) {
  constexpr int kChunk = Traits::kChunk;
  const int chunk = (col / kChunk) ^ (row % 8);
  return row * Traits::kHeadDim + chunk * kChunk + col % kChunk;
}

// The same for a fragment that starts at (row, col), both constants; lane_offset is where this lane reads the
// fragment at (0, 0). Rows are multiples of 8, so they do not affect the XOR and are added. Columns are multiples of
// 16: within the 64 columns that the XOR permutes, they are applied as an XOR themselves; beyond those, they are added.
// Whatever is added becomes an immediate in the load instruction.
template <typename Traits>
__device__ int fragment_offset(int lane_offset, int row, int col) {
  constexpr int kSwizzled = 8 * Traits::kChunk;  // columns that the XOR permutes
  return (lane_offset ^ col % kSwizzled) + row * Traits::kHeadDim + col / kSwizzled * kSwizzled;
}

// How the CTA divides up a tile that it copies, 16 bytes per thread at a time: 16 neighbouring threads read one row,
// and a thread's next row is kRowsAtOnce further on.
template <typename Traits>
constexpr int kRowsAtOnce = Traits::kNumWarps * 32 / Traits::kChunksPerRow;

// Starts copying a thread's share of kRows rows of kHeadDim elements from global to shared memory. Both pointers point
// to the thread's first row; tile_gmem is advanced to the start of the next tile.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element*& tile_gmem, std::int64_t row_stride) {
  static_assert(kRowsAtOnce<Traits> % 8 == 0, "all rows of a thread are swizzled alike");
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce<Traits>, tile_gmem += kRowsAtOnce<Traits> * row_stride)
    cp_async_16(&tile_smem[row * Traits::kHeadDim], tile_gmem);
}

// Fragments are loaded from Q_smem [kBlockQ][kHeadDim], K_smem [kBlockKV][kHeadDim] and V_smem [kBlockKV][kHeadDim].
// In each ldmatrix, lanes 0–7 supply the row addresses of the first 8×8 matrix, lanes 8–15 of the second, and so on.

// A = Q[the warp's rows][16 of head_dim]. The four matrices are the quarters of A: rows 0–7 and 8–15 at the lower eight
// of head_dim, then the same rows at the upper eight.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_Q_fragments(std::uint32_t (&Q_rmem)[Traits::kMmaM][4], const Element* Q_smem, int lane_offset,
                                 int mma_k) {
#pragma unroll
  for (int mma_m = 0; mma_m < Traits::kMmaM; ++mma_m) {
    std::uint32_t(&A)[4] = Q_rmem[mma_m];
    ldmatrix_x4(A[0], A[1], A[2], A[3], &Q_smem[fragment_offset<Traits>(lane_offset, mma_m * 16, mma_k * 16)]);
  }
}

// B = Kᵀ[16 of head_dim][16 keys], for mma_n and mma_n + 1. Two matrices, side by side along head_dim, form the B of
// one mma_n, and four matrices form the B of two.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_K_fragments(std::uint32_t (&K_rmem)[2][2], const Element* K_smem, int lane_offset, int mma_k,
                                 int mma_n) {
  ldmatrix_x4(K_rmem[0][0], K_rmem[0][1], K_rmem[1][0], K_rmem[1][1],
              &K_smem[fragment_offset<Traits>(lane_offset, mma_n * 8, mma_k * 16)]);
}

// B = V[16 keys][16 of head_dim], for mma_n and mma_n + 1. Two matrices, one below the other along the keys, form the B
// of one mma_n. Transposed on the way, they give each lane two neighbouring keys in a register.
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

// Computes P = 2^(scale · S - row_max), rounded to 16 bits, and this lane's sums of it. Two neighbouring accumulators of
// S, 16 rows × 16 keys, become one fragment A of P V: each lane already holds the elements that it needs. Returns whether
// all sums are below kMostSum; infinities and NaNs are not.
template <typename Traits>
__device__ bool exponentials(std::uint32_t (&P_rmem)[Traits::kMmaM][Traits::kStepKV / 16][4],
                             float (&new_sum)[Traits::kMmaM][2],
                             const float (&S_rmem)[Traits::kMmaM][Traits::kStepKV / 8][4],
                             const float (&row_max)[Traits::kMmaM][2], float scale) {
  bool in_range = true;
#pragma unroll
  for (int mma_m = 0; mma_m < Traits::kMmaM; ++mma_m) {
    new_sum[mma_m][0] = new_sum[mma_m][1] = 0;
#pragma unroll
    for (int mma_k = 0; mma_k < Traits::kStepKV / 16; ++mma_k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        const float* S = &S_rmem[mma_m][2 * mma_k + i / 2][2 * half];
        const float low = exp2_approx(S[0] * scale - row_max[mma_m][half]);
        const float high = exp2_approx(S[1] * scale - row_max[mma_m][half]);
        new_sum[mma_m][half] += low + high;
        P_rmem[mma_m][mma_k][i] = pack<typename Traits::Element>(low, high);  // two neighbouring keys
      }
    in_range = in_range && new_sum[mma_m][0] < Traits::kMostSum && new_sum[mma_m][1] < Traits::kMostSum;
  }
  return in_range;
}

// Waits until a phase of the barrier has ended: the first if parity is 0, the second if it is 1, the third if 0, and so on.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_test_wait(barrier, parity)) {
  }
  __syncwarp();  // lanes may leave the loop at different times, and ldmatrix and mma need the whole warp (.aligned)
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_attention(AttentionArgs args, float scale) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStepKV = Traits::kStepKV, kMmaM = Traits::kMmaM;
  constexpr int kStages = Traits::kStages, kStageSize = Traits::kStageSize;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(smem);  // [kBlockQ][kHeadDim]
  Element* K_smem = Q_smem + kBlockQ * kHeadDim;       // [kStages][kBlockKV][kHeadDim]; in each stage first K, then V
  Element* V_smem = K_smem + kBlockKV * kHeadDim;      // [kStages][kBlockKV][kHeadDim]
  std::uint64_t* full = reinterpret_cast<std::uint64_t*>(K_smem + kStages * kStageSize);  // [kStages]: copied
  std::uint64_t* empty = full + kStages;                                                  // [kStages]: read by all

  // What this CTA computes: one tile of queries of one head of one batch entry.
  const int q_tile = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const int warp_row = warp_id * kMmaM * 16;  // the first of the query rows that this warp owns

  // This thread's first chunk of each tile.
  const int copy_row = threadIdx.x / Traits::kChunksPerRow;
  const int copy_col = threadIdx.x % Traits::kChunksPerRow * Traits::kChunk;
  const int copy_offset = smem_offset<Traits>(copy_row, copy_col);
  const Element* Q_gmem = args.Q.row<Element>(batch, head, q_tile * kBlockQ + copy_row) + copy_col;
  const Element* K_gmem = args.K.row<Element>(batch, head, copy_row) + copy_col;
  const Element* V_gmem = args.V.row<Element>(batch, head, copy_row) + copy_col;

  // This lane's first chunk of each tile.
  const int Q_lane = smem_offset<Traits>(warp_row + lane_id % 16, lane_id / 16 * 8);
  const int K_lane = smem_offset<Traits>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
  const int V_lane = smem_offset<Traits>(lane_id % 16, lane_id / 16 * 8);

  // In each 16-row mma tile, a lane holds parts of two rows, lane_id / 4 and lane_id / 4 + 8; `half` selects one of
  // them. The last index of a fragment array selects one of a lane's registers of A, B or D.
  float O_rmem[kMmaM][kHeadDim / 8][4] = {};  // [mma_m][mma_n][D], not normalised
  float row_max[kMmaM][2];                    // [mma_m][half], maximum m of scale · S when last computed
  float row_sum[kMmaM][2] = {};               // [mma_m][half], sum l of this lane's 2^(scale · S - row_max) so far
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m) row_max[mma_m][0] = row_max[mma_m][1] = -INFINITY;

  // Each thread arrives at full when its own copies have arrived, and at empty when it has read its fragments.
  if (threadIdx.x < 2 * kStages) mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);
  __syncthreads();  // the barriers are initialised; this is the last time that all warps wait for each other

  // Copies this thread's share of the next tile of K and V, and arrives at full when the copies have completed.
  const auto copy_KV_tile = [&](int stage) {
    copy_tile<Traits, kBlockKV>(K_smem + stage * kStageSize + copy_offset, K_gmem, args.K.row_stride);
    copy_tile<Traits, kBlockKV>(V_smem + stage * kStageSize + copy_offset, V_gmem, args.V.row_stride);
    cp_async_mbarrier_arrive(&full[stage]);
  };

  // Copy Q and the first K and V. When they have arrived, so has Q.
  copy_tile<Traits, kBlockQ>(Q_smem + copy_offset, Q_gmem, args.Q.row_stride);
  copy_KV_tile(0);

  // For each K/V tile:
  for (int kv_tile = 0; kv_tile < args.seq_len_kv / kBlockKV; ++kv_tile) {
    const int stage = kv_tile % kStages, next_stage = (kv_tile + 1) % kStages;
    wait(&full[stage], kv_tile / kStages % 2);

    // For each step of kStepKV keys:
#pragma unroll 1
    for (int step_row = 0; step_row < kBlockKV; step_row += kStepKV) {
      // Multiples of 8 rows may be added before the XOR, which only moves chunks within a row.
      const int K_step = K_lane + stage * kStageSize + step_row * kHeadDim;  // this lane's first chunk of the step's K
      const int V_step = V_lane + stage * kStageSize + step_row * kHeadDim;  // and of its V

      // In the middle of a tile, copy the next one. Its buffer holds an older tile, so wait until all warps have read
      // it. The first time, the buffer is empty and the wait ends at once.
      if (step_row == kBlockKV / 2 && (kv_tile + 1) * kBlockKV < args.seq_len_kv) {
        wait(&empty[next_stage], (kv_tile + 1) / kStages % 2 ^ 1);
        copy_KV_tile(next_stage);
      }

      // S = Q Kᵀ.
      float S_rmem[kMmaM][kStepKV / 8][4] = {};  // [mma_m][mma_n][D]
      std::uint32_t Q_rmem[2][kMmaM][4];         // [buffer][mma_m][A], of one mma_k
      std::uint32_t K_rmem[2][2][2];             // [buffer][mma_n % 2][B]
      constexpr int kPiecesK = kStepKV / 16;     // pieces of K for one mma_k, of 16 keys each
      load_Q_fragments<Traits>(Q_rmem[0], Q_smem, Q_lane, 0);
      load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);
#pragma unroll
      for (int piece = 0; piece < kHeadDim / 16 * kPiecesK; ++piece) {
        const int mma_k = piece / kPiecesK, next = piece + 1, next_mma_k = next / kPiecesK;
        if (next_mma_k < kHeadDim / 16) {
          if (next_mma_k > mma_k) load_Q_fragments<Traits>(Q_rmem[next_mma_k % 2], Q_smem, Q_lane, next_mma_k);
          load_K_fragments<Traits>(K_rmem[next % 2], K_smem, K_step, next_mma_k, next % kPiecesK * 2);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
            mma_m16n8k16<Element>(S_rmem[mma_m][piece % kPiecesK * 2 + n], Q_rmem[mma_k % 2][mma_m],
                                  K_rmem[piece % 2][n]);
      }

      // Load the first piece of V before the softmax, so that P V need not wait for it.
      std::uint32_t V_rmem[2][2][2];  // [buffer][mma_n % 2][B]
      load_V_fragments<Traits>(V_rmem[0], V_smem, V_step, 0, 0);

      // Online softmax, and P to 16 bits. O and the row sums are relative to the maximum of some earlier step.
      std::uint32_t P_rmem[kMmaM][kStepKV / 16][4];  // [mma_m][mma_k][A]
      float new_sum[kMmaM][2];                       // [mma_m][half], sum of this lane's P
      bool in_range = exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);
      // All lanes must decide together, because the branch contains shuffles. It is taken the first time, when row_max
      // = -inf makes the sums infinite or NaN.
      if (!__all_sync(0xffffffff, in_range)) {
        // Make O, the row sums and P relative to the new maximum. (12 says what a mask would require here.)
#pragma unroll
        for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float S_max = -INFINITY;
#pragma unroll
            for (int mma_n = 0; mma_n < kStepKV / 8; ++mma_n)
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) S_max = fmaxf(S_max, S_rmem[mma_m][mma_n][i]);
            const float new_max = fmaxf(row_max[mma_m][half], group_max(S_max) * scale);  // of the whole row
            const float rescale = exp2_approx(row_max[mma_m][half] - new_max);  // r; the first time, 2^-inf = 0
            row_max[mma_m][half] = new_max;                                     // m
            row_sum[mma_m][half] *= rescale;                                    // l = l · r
#pragma unroll
            for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) O_rmem[mma_m][mma_n][i] *= rescale;  // O = O · r
          }
        exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);
      }
#pragma unroll
      for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
        for (int half = 0; half < 2; ++half) row_sum[mma_m][half] += new_sum[mma_m][half];  // l += Σ P

      // O += P V.
      constexpr int kPiecesV = kHeadDim / 16;  // pieces of V for one mma_k, of 16 columns each
#pragma unroll
      for (int piece = 0; piece < kStepKV / 16 * kPiecesV; ++piece) {
        const int mma_k = piece / kPiecesV, next = piece + 1, next_mma_k = next / kPiecesV;
        if (next_mma_k < kStepKV / 16)
          load_V_fragments<Traits>(V_rmem[next % 2], V_smem, V_step, next_mma_k, next % kPiecesV * 2);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
            mma_m16n8k16<Element>(O_rmem[mma_m][piece % kPiecesV * 2 + n], P_rmem[mma_m][mma_k], V_rmem[piece % 2][n]);
      }
    }
    mbarrier_arrive(&empty[stage]);
  }

  // Normalise and store O. A lane holds its elements in pairs of 4 bytes; going through shared memory, it stores 16
  // bytes at a time. O replaces this warp's rows of Q, which no other warp uses any more, so a __syncwarp() is enough.
  Element* O_smem = Q_smem;  // [kBlockQ][kHeadDim]
  __syncwarp();              // all lanes have read their fragments of Q for the last time
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse_sum = 1 / group_sum(row_sum[mma_m][half]);  // 1 / l
      const int row = warp_row + mma_m * 16 + half * 8 + lane_id / 4;
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n) {
        const float* O = &O_rmem[mma_m][mma_n][2 * half];
        *reinterpret_cast<std::uint32_t*>(&O_smem[smem_offset<Traits>(row, mma_n * 8 + lane_id % 4 * 2)]) =
            pack<Element>(O[0] * inverse_sum, O[1] * inverse_sum);
      }
    }
  __syncwarp();  // the warp's rows of O are complete

  Element* O_gmem = args.O.row<Element>(batch, head, q_tile * kBlockQ);  // [kBlockQ][kHeadDim]
#pragma unroll
  for (int i = 0; i < kMmaM * 16; i += 32 / Traits::kChunksPerRow) {  // two rows at a time: 16 lanes write one row
    const int row = warp_row + i + lane_id / Traits::kChunksPerRow;
    const int col = lane_id % Traits::kChunksPerRow * Traits::kChunk;
    *reinterpret_cast<uint4*>(&O_gmem[row * args.O.row_stride + col]) =
        *reinterpret_cast<const uint4*>(&O_smem[smem_offset<Traits>(row, col)]);
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
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(args, scale);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half, 4>>("128x64", launch<Traits<__half, 4>>),
                       configuration<Traits<__nv_bfloat16, 4>>("128x64", launch<Traits<__nv_bfloat16, 4>>),
                       // For sm_80, where two CTAs of the first configuration do not fit in shared memory.
                       configuration<Traits<__half, 8>>("256x64", launch<Traits<__half, 8>>),
                       configuration<Traits<__nv_bfloat16, 8>>("256x64", launch<Traits<__nv_bfloat16, 8>>)},
});

}  // namespace flash_ladder::v13
