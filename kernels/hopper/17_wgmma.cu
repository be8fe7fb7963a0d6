// 17 · wgmma
//
// Idea        Hopper's tensor cores can do more than mma lets them. A wgmma is executed by four warps, a warpgroup, and
//             multiplies 64 rows at a time. It reads K and V from shared memory by itself, without ldmatrix, and Q too,
//             without registers, and it runs asynchronously while its warps continue.
// Changed     S = Q Kᵀ and O += P V are eight wgmmas each. Tiles are stored in shared memory in the layout that the
//             descriptors require: in halves of head_dim, with the 128-byte swizzle. A CTA is one warpgroup with 64
//             query rows, and its loop is like 08's: the next tile is copied while this one is used. The softmax is a
//             plain one again; hiding it, as 13 to 16 did, starts anew, by other means.
// Prediction  Slower than 16, which hides its softmax: the tensor cores are faster, but idle for more than half the
//             time, since nothing overlaps with the softmax. 0.85x.

#include "convert.h"
#include "hopper/tma.h"
#include "hopper/warpgroup.h"
#include "hopper/wgmma.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::v17 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;    // query rows per CTA: the rows of one wgmma
  static constexpr int kBlockKV = 128;  // keys and values per tile
  static constexpr int kStages = 2;     // tiles in the ring, each with K and V
  static constexpr int kHeadDim = 128;
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kNumWarps = 4;                  // one warpgroup
  static constexpr int kQSize = kBlockQ * kHeadDim;    // elements
  static constexpr int kKVSize = kBlockKV * kHeadDim;  // elements in a tile of K or V
  static constexpr int kSmemBytes = (kQSize + 2 * kStages * kKVSize) * sizeof(Element);
};

// The offset of element (row, col) of a tile of kRows rows in shared memory, counted in elements from the start of the
// tile, [2][kRows][64]. The XOR is the 128-byte swizzle; hopper/wgmma.h has the picture.
template <int kRows>
__device__ int smem_offset(int row, int col) {
  constexpr int kCols = 64, kChunk = 8;  // a row is 128 bytes; the XOR permutes its chunks of 16
  const int chunk = ((col / kChunk) ^ row) % 8;
  return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;
}

// Starts copying kRows rows of kHeadDim elements from global to shared memory, 16 bytes per thread at a time.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
  constexpr int kChunksPerRow = Traits::kHeadDim / Traits::kChunk;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunksPerRow; i += Traits::kNumWarps * 32) {
    const int row = i / kChunksPerRow, col = i % kChunksPerRow * Traits::kChunk;
    cp_async_16(&tile_smem[smem_offset<kRows>(row, col)], &tile_gmem[row * row_stride + col]);
  }
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

// Starts S = Q Kᵀ for this warpgroup's 64 rows of Q_smem [2][64][64] and for K_smem [2][kBlockKV][64]. Each wgmma takes
// 16 columns of head_dim, 32 bytes; each half of head_dim has four such groups.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_S(float (&S_rmem)[Traits::kBlockKV / 8][4], const Element* Q_smem, const Element* K_smem) {
  const std::uint64_t Q = matrix_descriptor(Q_smem, 0, 1024), K = matrix_descriptor(K_smem, 0, 1024);
  pin(S_rmem);
  __syncwarp();   // lanes may get here at different times, and wgmma needs the whole warp (.aligned)
  wgmma_fence();  // the softmax has read the previous S
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 16; ++mma_k)
    wgmma<Element>(S_rmem, advance(Q, mma_k / 4 * 64 * 128 + mma_k % 4 * 32),
                   advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32), mma_k > 0);
  wgmma_commit();
}

// Starts O += P V, or O = P V, with V_smem [2][kBlockKV][64]. Each wgmma takes 16 keys, which are rows of 128 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_PV(float (&O_rmem)[Traits::kHeadDim / 8][4], std::uint32_t (&P_rmem)[Traits::kBlockKV / 16][4],
                         const Element* V_smem, bool accumulate) {
  const std::uint64_t V = matrix_descriptor(V_smem, Traits::kBlockKV * 128, 1024);
  pin(O_rmem);
  pin(P_rmem);
  __syncwarp();
  wgmma_fence();  // P has been packed, and O rescaled
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 16; ++mma_k)
    wgmma<Element>(O_rmem, P_rmem[mma_k], advance(V, mma_k * 16 * 128), mma_k > 0 || accumulate);
  wgmma_commit();
}

// Online softmax: replaces S by 2^(scale · S - row_max) and sets new_sum to this lane's sums of it. All sums so far,
// and O, have to be multiplied by `rescale`, since row_max may have grown.
template <typename Traits>
__device__ void softmax(float (&S_rmem)[Traits::kBlockKV / 8][4], float (&row_max)[2], float (&new_sum)[2],
                        float (&rescale)[2], float scale) {
  float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kBlockKV / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* S = &S_rmem[mma_n][2 * half];
      tile_max[half] = fmaxf(tile_max[half], fmaxf(S[0], S[1]));
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float new_max = fmaxf(row_max[half], group_max(tile_max[half]) * scale);  // of the whole row
    rescale[half] = exp2_approx(row_max[half] - new_max);                           // r; the first time, 2^-inf = 0
    row_max[half] = new_max;                                                        // m
    new_sum[half] = 0;
  }
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kBlockKV / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* S = &S_rmem[mma_n][2 * half];
      S[0] = exp2_approx(S[0] * scale - row_max[half]);
      S[1] = exp2_approx(S[1] * scale - row_max[half]);
      new_sum[half] += S[0] + S[1];
    }
}

// P to 16 bits. Two neighbouring accumulators of S, 16 rows × 16 keys, become one fragment A of P V: each lane already holds
// the elements that it needs.
template <typename Traits>
__device__ void pack_P(std::uint32_t (&P_rmem)[Traits::kBlockKV / 16][4],
                       const float (&exp_rmem)[Traits::kBlockKV / 8][4]) {
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 16; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &exp_rmem[2 * mma_k + i / 2][i % 2 * 2];
      P_rmem[mma_k][i] = pack<typename Traits::Element>(pair[0], pair[1]);  // two neighbouring keys
    }
}

// Multiplies each row of O by its factor.
template <typename Traits>
__device__ void scale_rows(float (&O_rmem)[Traits::kHeadDim / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int i = 0; i < 4; ++i) O_rmem[mma_n][i] *= factor[i / 2];
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32, 1) flash_attention(AttentionArgs args, float scale) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStages = Traits::kStages, kKVSize = Traits::kKVSize;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(uniform_smem(smem));  // [2][kBlockQ][64]
  Element* K_smem = Q_smem + Traits::kQSize;                         // [kStages][2][kBlockKV][64]
  Element* V_smem = K_smem + kStages * kKVSize;                      // [kStages][2][kBlockKV][64]

  // What this CTA computes: one tile of queries of one head of one batch entry.
  const int q_row = blockIdx.x * kBlockQ, head = blockIdx.y, batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;

  const auto copy_KV_tile = [&](int kv_tile) {
    const int stage = kv_tile % kStages;
    copy_tile<Traits, kBlockKV>(K_smem + stage * kKVSize, args.K.row<Element>(batch, head, kv_tile * kBlockKV),
                                args.K.row_stride);
    copy_tile<Traits, kBlockKV>(V_smem + stage * kKVSize, args.V.row<Element>(batch, head, kv_tile * kBlockKV),
                                args.V.row_stride);
  };
  copy_tile<Traits, kBlockQ>(Q_smem, args.Q.row<Element>(batch, head, q_row), args.Q.row_stride);
  copy_KV_tile(0);
  cp_async_commit();

  // A lane holds parts of two rows, 16 · warp_id + lane_id / 4 and the row 8 further on; `half` selects one of them.
  float O_rmem[kHeadDim / 8][4];              // [mma_n][D], not normalised
  float S_rmem[kBlockKV / 8][4];              // [mma_n][D], later the exponentials
  std::uint32_t P_rmem[kBlockKV / 16][4];     // [mma_k][A]
  float row_max[2] = {-INFINITY, -INFINITY};  // [half], maximum m of scale · S so far
  float row_sum[2] = {}, new_sum[2];          // [half], this lane's sums of 2^(scale · S - row_max): so far, this tile
  float rescale[2];                           // [half], r

  // For each K/V tile:
  const int num_kv_tiles = args.seq_len_kv / kBlockKV;
#pragma unroll 1
  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int stage = kv_tile % kStages;
    cp_async_wait<0>();   // this thread's share of the tile has arrived
    fence_proxy_async();  // and is visible to the tensor cores,
    __syncthreads();      // and so are the shares of all other threads

    // S = Q Kᵀ. Copy the next tile while it is computed.
    start_S<Traits>(S_rmem, Q_smem, K_smem + stage * kKVSize);
    if (kv_tile + 1 < num_kv_tiles) copy_KV_tile(kv_tile + 1);
    cp_async_commit();
    wgmma_wait<0>();
    pin(S_rmem);

    // Online softmax, and P to 16 bits.
    softmax<Traits>(S_rmem, row_max, new_sum, rescale, scale);
    pack_P<Traits>(P_rmem, S_rmem);
    if (kv_tile > 0) scale_rows<Traits>(O_rmem, rescale);  // O = O · r
#pragma unroll
    for (int half = 0; half < 2; ++half) row_sum[half] = row_sum[half] * rescale[half] + new_sum[half];  // l

    // O += P V.
    start_PV<Traits>(O_rmem, P_rmem, V_smem + stage * kKVSize, kv_tile > 0);
    wgmma_wait<0>();
    pin(O_rmem);
    __syncthreads();  // the tile has been read: the next tile but one may replace it
  }

  // Normalise and store O.
  const float inverse_sum[2] = {1 / group_sum(row_sum[0]), 1 / group_sum(row_sum[1])};  // 1 / l
  scale_rows<Traits>(O_rmem, inverse_sum);
  Element* O_gmem = args.O.row<Element>(batch, head, q_row + warp_id * 16 + lane_id / 4) + lane_id % 4 * 2;
#pragma unroll
  for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<std::uint32_t*>(&O_gmem[half * 8 * args.O.row_stride + mma_n * 8]) =
          pack<Element>(O_rmem[mma_n][2 * half], O_rmem[mma_n][2 * half + 1]);
}

template <typename Traits>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const auto kernel = flash_attention<Traits>;
  // More than 48 KB of shared memory per CTA must be requested explicitly.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(args.seq_len / Traits::kBlockQ, args.heads, args.batch);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(args, scale);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .architecture = Architecture::sm_90a,
    .configurations = {configuration<Traits<__half>>("64x128", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("64x128", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::v17
