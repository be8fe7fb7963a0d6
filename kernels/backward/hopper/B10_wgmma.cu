// B10 · wgmma
//
// Idea        With mma, each warp loads its operands from shared memory into registers, and four warps load the same Q and dO:
//             90 bytes per score. A wgmma reads its operands from shared memory itself, B once for all four warps: 30 bytes.
// Changed     From B08: the five products are wgmmas, of one warpgroup that owns 64 keys. P and dS are operands from registers
//             as before, and dQ takes both operands transposed from shared memory. Tiles are stored in halves of head_dim with
//             the 128-byte swizzle, and a fence makes what threads have copied or stored visible to the tensor cores.
// Prediction  Shared memory no longer limits the kernel. Now the products wait for P and dS, and for dQ to be added, whenever
//             the other CTA of the SM does not fill the time: 1.5x of B08's TFLOP/s.

#include "convert.h"
#include "gradients.h"
#include "hopper/tma.h"
#include "hopper/warpgroup.h"
#include "hopper/wgmma_transposed.h"
#include "host/backward.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vB10 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;   // query rows per iteration
  static constexpr int kBlockKV = 64;  // keys and values per CTA
  static constexpr int kHeadDim = 128;
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kNumWarps = 4;  // one warpgroup
  static constexpr int kNumThreads = kNumWarps * 32;
  static constexpr int kConvertedRows = kNumThreads / kChunksPerRow;  // per CTA of convert_dQ
  // K, V, Q, dO and dS, and in fp32 L and D.
  static constexpr int kSmemBytes =
      (2 * (kBlockKV + kBlockQ) * kHeadDim + kBlockKV * kBlockQ) * sizeof(Element) + 2 * kBlockQ * sizeof(float);
  static_assert(kBlockKV == 64 && kBlockQ == 64, "the rows of one wgmma, of Sᵀ and of dQ");
};

// The workspace holds D, [batch][heads][seq_len], then the sums of dQ, both in fp32. Of the sums, each 16 rows form a block, in
// the order in which the registers of a warp hold them: [batch][heads][seq_len / 16][mma_n][D][lane].
__device__ inline float* row_of_D(const AttentionArgs& args, int batch, int head) {
  return static_cast<float*>(args.workspace) + (batch * args.heads + head) * std::int64_t{args.seq_len};
}
template <typename Traits>
__device__ float* block_of_dQ(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  const std::int64_t size_of_D = std::int64_t{args.batch} * args.heads * args.seq_len;
  float* dQ = static_cast<float*>(args.workspace) + size_of_D;
  return dQ + ((batch * args.heads + head) * std::int64_t{args.seq_len} + row) * Traits::kHeadDim;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// The offset of element (row, col) of a tile of kRows rows in shared memory, counted in elements from the start of the
// tile, [2][kRows][64], or [kRows][64] for dS. The XOR is the 128-byte swizzle; hopper/wgmma.h has the picture.
template <int kRows>
__device__ int smem_offset(int row, int col) {
  constexpr int kCols = 64, kChunk = 8;  // a row is 128 bytes; the XOR permutes its chunks of 16
  const int chunk = ((col / kChunk) ^ row) % 8;
  return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;
}

// Starts copying kRows rows of kHeadDim elements from global to shared memory, 16 bytes per thread at a time. The whole CTA
// takes part: 16 neighbouring threads read one row.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
#pragma unroll
  for (int i = 0; i < kRows * Traits::kChunksPerRow / Traits::kNumThreads; ++i) {
    const int row = (i * Traits::kNumThreads + threadIdx.x) / Traits::kChunksPerRow;
    const int col = (i * Traits::kNumThreads + threadIdx.x) % Traits::kChunksPerRow * Traits::kChunk;
    cp_async_16(&tile_smem[smem_offset<kRows>(row, col)], &tile_gmem[row * row_stride + col]);
  }
}

// Starts copying kCount floats, 16 bytes per thread.
template <int kCount>
__device__ void copy_floats(float* smem, const float* gmem) {
  if (threadIdx.x < kCount / 4) cp_async_16(&smem[threadIdx.x * 4], &gmem[threadIdx.x * 4]);
}

// Starts S = A Bᵀ, for two tiles [2][64][64]: Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ. Each wgmma takes 16 columns of head_dim, 32 bytes;
// each half of head_dim has four such groups.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_S(float (&S)[Traits::kBlockQ / 8][4], const Element* A_smem, const Element* B_smem) {
  const std::uint64_t A = matrix_descriptor(A_smem, 0, 1024), B = matrix_descriptor(B_smem, 0, 1024);
  pin(S);
  __syncwarp();  // lanes may get here at different times, and wgmma needs the whole warp (.aligned)
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 16; ++mma_k)
    wgmma<Element>(S, advance(A, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32),
                   advance(B, mma_k / 4 * Traits::kBlockQ * 128 + mma_k % 4 * 32), mma_k > 0);
  wgmma_commit();
}

// Starts C += P B, for P in registers and a tile B [2][kBlockQ][64]: dV += Pᵀ dO, and dK += dSᵀ Q. Each wgmma takes 16 queries,
// which are rows of 128 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_dKV(float (&C)[Traits::kHeadDim / 8][4], std::uint32_t (&P)[Traits::kBlockQ / 16][4],
                          const Element* B_smem) {
  const std::uint64_t B = matrix_descriptor(B_smem, Traits::kBlockQ * 128, 1024);
  pin(C);
  pin(P);
  __syncwarp();
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k)
    wgmma<Element>(C, P[mma_k], advance(B, mma_k * 16 * 128), true);
  wgmma_commit();
}

// Starts dQ = dS K, for dSᵀ [kBlockKV][64] and K [2][kBlockKV][64]. Each wgmma takes 16 keys, rows of 128 bytes of either tile.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_dQ(float (&dQ)[Traits::kHeadDim / 8][4], const Element* dS_smem, const Element* K_smem) {
  const std::uint64_t dS = matrix_descriptor(dS_smem, 0, 1024),
                      K = matrix_descriptor(K_smem, Traits::kBlockKV * 128, 1024);
  pin(dQ);
  __syncwarp();
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 16; ++mma_k)
    wgmma_transposed<Element>(dQ, advance(dS, mma_k * 16 * 128), advance(K, mma_k * 16 * 128), mma_k > 0);
  wgmma_commit();
}

// Rounds P to 16 bits. Two neighbouring accumulators, 16 keys × 16 queries, become one fragment A of Pᵀ dO: each lane
// already holds the elements that it needs.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void pack_fragments(std::uint32_t (&P)[Traits::kBlockQ / 16][4], const float (&S)[Traits::kBlockQ / 8][4]) {
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &S[2 * mma_k + i / 2][i % 2 * 2];  // two neighbouring queries
      P[mma_k][i] = pack<Element>(pair[0], pair[1]);
    }
}

// Stores a warp's 16 rows of dK or dV, 16 bytes at a time. On their way they replace its rows of a tile in shared memory.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void store_rows(Element* gmem, std::int64_t row_stride, const float (&C)[Traits::kHeadDim / 8][4],
                           float scale, Element* tile_smem, int first_row) {
  const int lane_id = threadIdx.x % 32, group = lane_id / 4, pair = lane_id % 4 * 2;
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<std::uint32_t*>(
          &tile_smem[smem_offset<Traits::kBlockKV>(first_row + half * 8 + group, mma_n * 8 + pair)]) =
          pack<Element>(C[mma_n][2 * half] * scale, C[mma_n][2 * half + 1] * scale);
  __syncwarp();  // the warp's rows are complete
#pragma unroll
  for (int i = 0; i < 16; i += 32 / Traits::kChunksPerRow) {  // two rows at a time: 16 lanes write one row
    const int row = first_row + i + lane_id / Traits::kChunksPerRow;
    const int col = lane_id % Traits::kChunksPerRow * Traits::kChunk;
    *reinterpret_cast<uint4*>(&gmem[row * row_stride + col]) =
        *reinterpret_cast<const uint4*>(&tile_smem[smem_offset<Traits::kBlockKV>(row, col)]);
  }
}

// D = rowsum(dO ∘ O): 16 rows per warp. The sums are the diagonal of O dOᵀ, computed by the mmas that compute dPᵀ: if a row
// sees only one key, O is that row of V, and dP - D must be exactly 0. The tensor cores do 16 times the work, but the
// loads take longer. Then the CTA sets its rows of the sums of dQ to 0.
template <typename Traits>
__global__ void row_sums(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z, first_query = blockIdx.x * Traits::kBlockQ;
  const int warp_row = threadIdx.x / 32 * 16, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, first_query + warp_row);  // [16][kHeadDim]
  const Element* O_gmem = args.O.row<Element>(batch, head, first_query + warp_row);         // [16][kHeadDim]
  const auto load = [&](const Element* gmem, std::int64_t row_stride, int half, int col) {
    return *reinterpret_cast<const std::uint32_t*>(&gmem[(half * 8 + group) * row_stride + col + pair]);
  };
  float sums[2][4] = {};  // [half][D]
#pragma unroll
  for (int col = 0; col < Traits::kHeadDim; col += 16) {
    std::uint32_t O_rmem[4];  // [A]
#pragma unroll
    for (int i = 0; i < 4; ++i) O_rmem[i] = load(O_gmem, args.O.row_stride, i % 2, col + i / 2 * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t dO_rmem[2] = {load(dO_gmem, gradients.dO.row_stride, half, col),
                                        load(dO_gmem, gradients.dO.row_stride, half, col + 8)};  // [B]
      mma_m16n8k16<Element>(sums[half], O_rmem, dO_rmem);
    }
  }
  // Of each half, a lane holds two columns of one row. The diagonal is where one of them has the row's number.
  if (group / 2 == pair / 2)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      row_of_D(args, batch, head)[first_query + warp_row + half * 8 + group] =
          group % 2 ? sums[half][2 * half + 1] : sums[half][2 * half];

  float* sums_gmem = block_of_dQ<Traits>(args, batch, head, first_query);  // kBlockQ rows
  for (int i = threadIdx.x; i < Traits::kBlockQ * Traits::kHeadDim; i += Traits::kNumThreads) sums_gmem[i] = 0;
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumThreads) flash_gradients(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* K_smem = reinterpret_cast<Element*>(uniform_smem(smem));        // [2][kBlockKV][64]
  Element* V_smem = K_smem + kBlockKV * kHeadDim;                          // [2][kBlockKV][64]
  Element* Q_smem = V_smem + kBlockKV * kHeadDim;                          // [2][kBlockQ][64]
  Element* dO_smem = Q_smem + kBlockQ * kHeadDim;                          // [2][kBlockQ][64]
  Element* dS_smem = dO_smem + kBlockQ * kHeadDim;                         // [kBlockKV][kBlockQ]: dSᵀ
  float* L_smem = reinterpret_cast<float*>(dS_smem + kBlockKV * kBlockQ);  // [kBlockQ]
  float* D_smem = L_smem + kBlockQ;                                        // [kBlockQ]

  // What this CTA computes: one tile of keys of one head of one batch entry.
  const int kv_row = blockIdx.x * kBlockKV, head = blockIdx.y, batch = blockIdx.z;
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const int warp_row = threadIdx.x / 32 * 16;  // the first of the rows that this warp owns, of keys and of dQ
  const Element* Q_gmem = args.Q.row<Element>(batch, head, 0);         // [seq_len][kHeadDim]
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, 0);  // [seq_len][kHeadDim]
  const float* L_gmem = gradients.log_sum_exp + (batch * args.heads + head) * std::int64_t{args.seq_len};  // [seq_len]
  const float* D_gmem = row_of_D(args, batch, head);                                                       // [seq_len]
  // [seq_len / 16][mma_n][D][32]: the sums of dQ, from this lane's first element on
  float* sums_gmem = block_of_dQ<Traits>(args, batch, head, warp_row) + threadIdx.x % 32;

  float dK_rmem[kHeadDim / 8][4] = {}, dV_rmem[kHeadDim / 8][4] = {};  // [mma_n][D], 16 keys × kHeadDim

  // Starts copying Q, L, dO and D.
  const auto copy_queries = [&](std::int64_t q_row) {
    copy_tile<Traits, kBlockQ>(Q_smem, Q_gmem + q_row * args.Q.row_stride, args.Q.row_stride);
    copy_floats<kBlockQ>(L_smem, L_gmem + q_row);
    copy_tile<Traits, kBlockQ>(dO_smem, dO_gmem + q_row * gradients.dO.row_stride, gradients.dO.row_stride);
    copy_floats<kBlockQ>(D_smem, D_gmem + q_row);
    cp_async_commit();
  };

  // Copy K and V. There is no commit here, so they become part of the first group.
  copy_tile<Traits, kBlockKV>(K_smem, args.K.row<Element>(batch, head, kv_row), args.K.row_stride);
  copy_tile<Traits, kBlockKV>(V_smem, args.V.row<Element>(batch, head, kv_row), args.V.row_stride);
  copy_queries(0);

  // For each Q/dO tile:
  for (std::int64_t q_row = 0; q_row < args.seq_len; q_row += kBlockQ) {
    cp_async_wait<0>();   // this thread's copies have arrived
    fence_proxy_async();  // the tensor cores are about to read them
    __syncthreads();      // and so have the copies of all other threads

    // Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
    float S_rmem[kBlockQ / 8][4], dP_rmem[kBlockQ / 8][4];  // [mma_n][D], 16 keys × kBlockQ
    start_S<Traits>(S_rmem, K_smem, Q_smem);
    start_S<Traits>(dP_rmem, V_smem, dO_smem);
    wgmma_wait<0>();
    pin(S_rmem);
    pin(dP_rmem);

    // P = exp(S - L), and dS = P ∘ (dP - D). Columns of an accumulator are queries.
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockQ / 8; ++mma_n) {
      const float2 L = *reinterpret_cast<const float2*>(&L_smem[mma_n * 8 + pair]);
      const float2 D = *reinterpret_cast<const float2*>(&D_smem[mma_n * 8 + pair]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        S_rmem[mma_n][i] = exp_approx(S_rmem[mma_n][i] * args.softmax_scale - (i % 2 ? L.y : L.x));  // now it is P
        dP_rmem[mma_n][i] = S_rmem[mma_n][i] * (dP_rmem[mma_n][i] - (i % 2 ? D.y : D.x));            // now it is dS
      }
    }

    // P and dS to 16 bits.
    std::uint32_t P_rmem[kBlockQ / 16][4], dS_rmem[kBlockQ / 16][4];  // [mma_k][A]
    pack_fragments<Traits>(P_rmem, S_rmem);
    pack_fragments<Traits>(dS_rmem, dP_rmem);

    // dS to shared memory. All warps are done with the previous one, because they have passed the barrier above.
#pragma unroll
    for (int mma_k = 0; mma_k < kBlockQ / 16; ++mma_k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp_row + i % 2 * 8 + group, query = mma_k * 16 + i / 2 * 8 + pair;
        *reinterpret_cast<std::uint32_t*>(&dS_smem[smem_offset<kBlockKV>(key, query)]) = dS_rmem[mma_k][i];
      }
    fence_proxy_async();  // the tensor cores are about to read dS

    // dV += Pᵀ dO, and dK += dSᵀ Q.
    start_dKV<Traits>(dV_rmem, P_rmem, dO_smem);
    start_dKV<Traits>(dK_rmem, dS_rmem, Q_smem);

    // dQ += dS K, in memory, where other CTAs add to the same elements.
    __syncthreads();                 // dS is complete
    float dQ_rmem[kHeadDim / 8][4];  // [mma_n][D], 16 queries × kHeadDim
    start_dQ<Traits>(dQ_rmem, dS_smem, K_smem);
    wgmma_wait<1>();  // dV and dK are complete
    pin(dV_rmem);
    pin(dK_rmem);
    __syncthreads();  // all warps are done with Q, dO, L and D
    if (q_row + kBlockQ < args.seq_len) copy_queries(q_row + kBlockQ);
    wgmma_wait<0>();
    pin(dQ_rmem);
#pragma unroll
    for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i) atomicAdd(&sums_gmem[q_row * kHeadDim + (mma_n * 4 + i) * 32], dQ_rmem[mma_n][i]);
  }

  // Store dK and dV.
  __syncthreads();  // all warps have read K for the last time
  store_rows<Traits>(gradients.dK.row<Element>(batch, head, kv_row), gradients.dK.row_stride, dK_rmem,
                     args.softmax_scale, K_smem, warp_row);
  store_rows<Traits>(gradients.dV.row<Element>(batch, head, kv_row), gradients.dV.row_stride, dV_rmem, 1, V_smem,
                     warp_row);
}

// Converts the sums of dQ: eight columns of a row per thread, which come from one accumulator. Of its registers, the four lanes
// from 4 · group on hold two neighbouring columns each.
template <typename Traits>
__global__ void convert_dQ(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z, mma_n = threadIdx.x % Traits::kChunksPerRow;
  const int query = blockIdx.x * Traits::kConvertedRows + threadIdx.x / Traits::kChunksPerRow;
  const int half = query % 16 / 8, group = query % 8;
  const float* sums_gmem = block_of_dQ<Traits>(args, batch, head, query / 16 * 16) + (mma_n * 4 + half * 2) * 32;
  const float4 even = *reinterpret_cast<const float4*>(&sums_gmem[group * 4]);      // columns 0, 2, 4, 6
  const float4 odd = *reinterpret_cast<const float4*>(&sums_gmem[32 + group * 4]);  // columns 1, 3, 5, 7
  const auto pack_scaled = [&](float low, float high) {
    return pack<Element>(low * args.softmax_scale, high * args.softmax_scale);
  };
  reinterpret_cast<uint4*>(gradients.dQ.row<Element>(batch, head, query))[mma_n] = make_uint4(
      pack_scaled(even.x, odd.x), pack_scaled(even.y, odd.y), pack_scaled(even.z, odd.z), pack_scaled(even.w, odd.w));
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  return problem.batch * problem.heads * problem.seq_len * (1 + Traits::kHeadDim) * sizeof(float);
}

template <typename Traits>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumThreads;
  const auto kernel = flash_gradients<Traits>;
  // More than 48 KB of shared memory has to be requested.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const Gradients& gradients = args.gradients;
  row_sums<Traits>
      <<<dim3(args.seq_len / Traits::kBlockQ, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients);
  kernel<<<dim3(args.seq_len_kv / Traits::kBlockKV, args.heads, args.batch), kNumThreads, Traits::kSmemBytes, stream>>>(
      args, gradients);
  convert_dQ<Traits><<<dim3(args.seq_len / Traits::kConvertedRows, args.heads, args.batch), kNumThreads, 0, stream>>>(
      args, gradients);
  return cudaGetLastError();
}

const BackwardRegistration registration({
    .source = __FILE__,
    .architecture = Architecture::sm_90a,
    .deterministic = false,  // the CTAs of a head add to dQ in any order
    .configurations = {configuration<Traits<__half>>("64x64", backward_launch<launch<Traits<__half>>>,
                                                     workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("64x64", backward_launch<launch<Traits<__nv_bfloat16>>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vB10
