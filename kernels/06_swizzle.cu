// 06 · swizzle
//
// Idea        A row of a tile is 256 bytes, so the eight rows that one fragment load touches start in the same bank.
//             Store the 16-byte chunk c of row r at chunk c ^ (r % 8) instead: the same column of eight rows is now in
//             eight different chunks, and therefore in eight different groups of four banks.
// Changed     smem_offset(), which every access to shared memory goes through. The rest is as in 05.
// Prediction  Shared-memory wavefronts fall 8x for fragments of Q and K and 4x for V, to one per load. Version 05 waits
//             for little else: 4x in TFLOP/s. The cost is one LOP3 per address.

#include "convert.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v06 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;   // query rows per CTA
  static constexpr int kBlockKV = 64;  // keys and values per iteration
  static constexpr int kHeadDim = 128;
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kNumWarps = 4;
  static constexpr int kMmaM = kBlockQ / (kNumWarps * 16);  // 16-row mma tiles that a warp owns: 1, and 2 from 11 on
  static constexpr int kSmemBytes = (kBlockQ + 2 * kBlockKV) * kHeadDim * sizeof(Element);  // Q, K and V
  static_assert(kBlockQ == kNumWarps * kMmaM * 16, "each warp owns whole mma tiles");
  static_assert(kChunksPerRow % 8 == 0, "the XOR permutes eight chunks");
};

// The offset of element (row, col) of a tile in shared memory, counted in elements from the start of the tile. Rows of
// 256 bytes follow one another, but the 16-byte chunks of a row are permuted. Where the first eight chunks go:
//
// clang-format off
//              chunk   0   1   2   3   4   5   6   7
//   row 0   goes to    0   1   2   3   4   5   6   7      A fragment load touches one column of this table at a time:
//   row 1              1   0   3   2   5   4   7   6      the same chunk of eight rows. Without the XOR, the eight
//   row 2              2   3   0   1   6   7   4   5      entries of a column would be equal: the same four banks, eight
//   row 3              3   2   1   0   7   6   5   4      times over. With it, they all differ: 8 × 4 banks, each once.
//   row 4              4   5   6   7   0   1   2   3
//   row 5              5   4   7   6   1   0   3   2      The rows of the table are permutations too, so a copy that
//   row 6              6   7   4   5   2   3   0   1      writes a whole row still uses each bank equally often.
//   row 7              7   6   5   4   3   2   1   0      Chunks 8 to 15 do the same, 128 bytes further on.
// clang-format on
template <typename Traits>
__device__ int smem_offset(int row, int col) {
  constexpr int kChunk = Traits::kChunk;
  const int chunk = (col / kChunk) ^ (row % 8);
  return row * Traits::kHeadDim + chunk * kChunk + col % kChunk;
}

// Starts copying kRows rows of kHeadDim elements from global to shared memory, 16 bytes per thread at a time. The whole CTA
// takes part: 16 neighbouring threads read one row.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
  constexpr int kChunk = Traits::kChunk, kChunksPerRow = Traits::kChunksPerRow;
  constexpr int kNumThreads = Traits::kNumWarps * 32;
#pragma unroll
  for (int i = 0; i < kRows * kChunksPerRow / kNumThreads; ++i) {
    const int row = (i * kNumThreads + threadIdx.x) / kChunksPerRow;
    const int col = (i * kNumThreads + threadIdx.x) % kChunksPerRow * kChunk;
    cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);
  }
}

// Fragments are loaded from Q_smem [kBlockQ][kHeadDim], K_smem [kBlockKV][kHeadDim] and V_smem [kBlockKV][kHeadDim].
// common/ptx.h shows which lane holds which elements; `group` and `pair` have the same meaning there. A 32-bit load of a
// warp touches eight rows (Q, K), a 16-bit load touches four (V), and each takes 16 bytes of each row.

// A = Q[the warp's rows][16 of head_dim]. Each register of A takes two neighbours along head_dim, one 32-bit load.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_Q_fragments(std::uint32_t (&Q_rmem)[Traits::kMmaM][4], const Element* Q_smem, int warp_row,
                                 int mma_k) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int mma_m = 0; mma_m < Traits::kMmaM; ++mma_m)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp_row + mma_m * 16 + i % 2 * 8 + group;
      const int col = mma_k * 16 + i / 2 * 8 + pair;
      Q_rmem[mma_m][i] = *reinterpret_cast<const std::uint32_t*>(&Q_smem[smem_offset<Traits>(row, col)]);
    }
}

// B = Kᵀ[16 of head_dim][all keys of the tile]. Each register of B takes two neighbours along head_dim, as for Q.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_K_fragments(std::uint32_t (&K_rmem)[Traits::kBlockKV / 8][2], const Element* K_smem, int mma_k) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kBlockKV / 8; ++mma_n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = mma_n * 8 + group;
      const int col = mma_k * 16 + i * 8 + pair;
      K_rmem[mma_n][i] = *reinterpret_cast<const std::uint32_t*>(&K_smem[smem_offset<Traits>(key, col)]);
    }
}

// B = V[16 keys][all of head_dim]. Each register of B takes two neighbouring keys, a row apart, with two 16-bit loads.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_V_fragments(std::uint32_t (&V_rmem)[Traits::kHeadDim / 8][2], const Element* V_smem, int mma_k) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const auto* V_bits = reinterpret_cast<const std::uint16_t*>(V_smem);
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = mma_k * 16 + i * 8 + pair;
      const int col = mma_n * 8 + group;
      const std::uint32_t low = V_bits[smem_offset<Traits>(key, col)];
      const std::uint32_t high = V_bits[smem_offset<Traits>(key + 1, col)];
      V_rmem[mma_n][i] = high << 16 | low;
    }
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float group_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_attention(AttentionArgs args) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kMmaM = Traits::kMmaM;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(smem);  // [kBlockQ][kHeadDim]
  Element* K_smem = Q_smem + kBlockQ * kHeadDim;       // [kBlockKV][kHeadDim]
  Element* V_smem = K_smem + kBlockKV * kHeadDim;      // [kBlockKV][kHeadDim]

  // What this CTA computes: one tile of queries of one head of one batch entry.
  const int q_tile = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const int warp_row = warp_id * kMmaM * 16;  // the first of the query rows that this warp owns

  const Element* Q_gmem = args.Q.row<Element>(batch, head, q_tile * kBlockQ);  // [kBlockQ][kHeadDim]
  const Element* K_gmem = args.K.row<Element>(batch, head, 0);                 // [seq_len_kv][kHeadDim]
  const Element* V_gmem = args.V.row<Element>(batch, head, 0);                 // [seq_len_kv][kHeadDim]

  // In each 16-row mma tile, a lane holds parts of two rows, lane_id / 4 and lane_id / 4 + 8; `half` selects one of
  // them. The last index of a fragment array selects one of a lane's registers of A, B or D.
  float O_rmem[kMmaM][kHeadDim / 8][4] = {};  // [mma_m][mma_n][D], not normalised
  float row_max[kMmaM][2];                    // [mma_m][half], maximum m of the scores so far
  float row_sum[kMmaM][2] = {};               // [mma_m][half], sum l of exp(score - row_max) so far
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m) row_max[mma_m][0] = row_max[mma_m][1] = -INFINITY;

  // Copy Q. There is no commit here, so Q becomes part of the group of the first K.
  copy_tile<Traits, kBlockQ>(Q_smem, Q_gmem, args.Q.row_stride);

  // For each K/V tile:
  for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {
    // Copy K and V.
    __syncthreads();  // all warps are done with the previous iteration's tiles
    copy_tile<Traits, kBlockKV>(K_smem, K_gmem + kv_row * args.K.row_stride, args.K.row_stride);
    cp_async_commit();
    copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride);
    cp_async_commit();
    cp_async_wait<1>();  // this thread's copies of K and, the first time, Q have arrived; those of V may not have
    __syncthreads();     // and so have the copies of all other threads

    // S = Q Kᵀ.
    float S_rmem[kMmaM][kBlockKV / 8][4] = {};  // [mma_m][mma_n][D]
    std::uint32_t Q_rmem[kMmaM][4];             // [mma_m][A], of one mma_k
    std::uint32_t K_rmem[kBlockKV / 8][2];      // [mma_n][B], of one mma_k
#pragma unroll
    for (int mma_k = 0; mma_k < kHeadDim / 16; ++mma_k) {
      load_Q_fragments<Traits>(Q_rmem, Q_smem, warp_row, mma_k);
      load_K_fragments<Traits>(K_rmem, K_smem, mma_k);
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
        for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
          mma_m16n8k16<Element>(S_rmem[mma_m][mma_n], Q_rmem[mma_m], K_rmem[mma_n]);
    }

    // Online softmax. O and the row sums are relative to the old maximum; rescale them to the new one.
    float rescale[kMmaM][2];  // [mma_m][half], r = exp(old m - new m)
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float new_max = row_max[mma_m][half];
#pragma unroll
        for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            S_rmem[mma_m][mma_n][i] *= args.softmax_scale;
            new_max = fmaxf(new_max, S_rmem[mma_m][mma_n][i]);
          }
        new_max = group_max(new_max);                                       // of the whole row
        rescale[mma_m][half] = exp_approx(row_max[mma_m][half] - new_max);  // r; the first time, exp(-inf) = 0
        row_max[mma_m][half] = new_max;                                     // m
      }

#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
        for (int i = 0; i < 4; ++i) O_rmem[mma_m][mma_n][i] *= rescale[mma_m][i / 2];  // O = O · r

#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_sum = 0;
#pragma unroll
        for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            S_rmem[mma_m][mma_n][i] = exp_approx(S_rmem[mma_m][mma_n][i] - row_max[mma_m][half]);  // now it is P
            tile_sum += S_rmem[mma_m][mma_n][i];
          }
        row_sum[mma_m][half] = row_sum[mma_m][half] * rescale[mma_m][half] + group_sum(tile_sum);  // l
      }

    // P to 16 bits. Two neighbouring accumulators of S, 16 rows × 16 keys, become one fragment A of P V: each lane
    // already holds the elements that it needs.
    std::uint32_t P_rmem[kMmaM][kBlockKV / 16][4];  // [mma_m][mma_k][A]
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int mma_k = 0; mma_k < kBlockKV / 16; ++mma_k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* S = S_rmem[mma_m][2 * mma_k + i / 2];
          P_rmem[mma_m][mma_k][i] = pack<Element>(S[i % 2 * 2], S[i % 2 * 2 + 1]);  // two neighbouring keys
        }

    // O += P V.
    cp_async_wait<0>();                     // this thread's copies of V have arrived
    __syncthreads();                        // and so have the copies of all other threads
    std::uint32_t V_rmem[kHeadDim / 8][2];  // [mma_n][B], of one mma_k
#pragma unroll
    for (int mma_k = 0; mma_k < kBlockKV / 16; ++mma_k) {
      load_V_fragments<Traits>(V_rmem, V_smem, mma_k);
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
        for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
          mma_m16n8k16<Element>(O_rmem[mma_m][mma_n], P_rmem[mma_m][mma_k], V_rmem[mma_n]);
    }
  }

  // Normalise and store O. A lane holds its elements in pairs of 4 bytes; going through shared memory, it stores 16
  // bytes at a time. O replaces this warp's rows of Q, which no other warp uses any more, so a __syncwarp() is enough.
  Element* O_smem = Q_smem;  // [kBlockQ][kHeadDim]
  __syncwarp();              // all lanes have read their fragments of Q for the last time
#pragma unroll
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse_sum = 1 / row_sum[mma_m][half];  // 1 / l
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
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(args);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .configurations = {configuration<Traits<__half>>("64x64", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("64x64", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v06
