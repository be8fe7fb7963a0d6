// backward_hopper_wide_heads
//
// Idea        Rows may also have 192 or 256 elements. dK and dV of 64 keys then take 192 or 256 registers of a warpgroup's
//             threads. So both warpgroups own the same 64 keys, and half of the columns of dK and dV each. These need all of
//             P and dS, of which a warpgroup computes half, for 32 queries. The halves are exchanged through shared memory,
//             where dS is anyway.
// Changed     kSplit, the number of warpgroups that own the same keys. If it is 2, P is stored beside dS, and both are loaded
//             after the barrier; only then does dV begin. Values may have 128 elements beside 192.
// Prediction  Up to 128 as before. Beyond, the products S and dP, two fifths of the work, take 3/2 of the time: a wgmma with 32
//             columns reads 3 KB of shared memory in 24 cycles, for 16 of the tensor cores. And no product of its own hides the
//             exponentials of a warpgroup. At seq_len 4096 without a mask, 256 reaches 0.75 of 128's TFLOP/s, 192 0.7, and with
//             values of 128 0.65.

#include <numeric>

#include "convert.h"
#include "gradients.h"
#include "hopper/bulk_copy.h"
#include "hopper/mbarrier.h"
#include "hopper/tma.h"
#include "hopper/warpgroup.h"
#include "hopper/wide_heads.h"
#include "host/backward.h"
#include "philox.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::backward_hopper_wide_heads {

template <typename Element_, int kHeadDim_, int kHeadDimV_ = kHeadDim_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;                                  // query rows per iteration
  static constexpr int kSplit = kHeadDim_ > 128 ? 2 : 1;              // warpgroups that own the same keys
  static constexpr int kBlockKV = 128 / kSplit;                       // keys and values per CTA
  static constexpr int kQueries = kBlockQ / kSplit;                   // of which a warpgroup computes S and dP
  static constexpr int kStages = 2;                                   // buffers for tiles of Q, dO and dS
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;  // elements in a row of Q and K, and of V and O
  static constexpr int kCols = columns_of_parts(kHeadDim / 2);        // in a part of a tile of Q, K, V or dO
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kNumWarps = 8;  // two warpgroups
  static constexpr int kNumThreads = kNumWarps * 32;
  static constexpr int kSumsThreads = kBlockQ * 2;                       // per CTA of row_sums: a warp for 16 rows
  static constexpr int kConvertedRows = 32;                              // per CTA of convert_dQ
  static constexpr int kdQThreads = kConvertedRows / 2 * kChunksPerRow;  // of such a CTA
  static constexpr int kKVSize = kBlockKV * kHeadDim;          // elements in a tile of K, and the room for one of V
  static constexpr int kQSize = kBlockQ * kHeadDim;            // elements in a tile of Q, and the room for one of dO
  static constexpr int kdSSize = kSplit * kBlockKV * kBlockQ;  // elements: if kSplit is 2, P follows
  // K, V, Q, dO and dS, in fp32 L and D, and the barriers.
  static constexpr int kSmemBytes = (2 * kKVSize + kStages * (2 * kQSize + kdSSize)) * sizeof(Element) +
                                    kStages * 2 * kBlockQ * sizeof(float) + (1 + kStages) * 8;
  static_assert(kBlockKV * kSplit == kNumWarps * 16 && kBlockQ == 64, "a warpgroup owns the rows of a wgmma of Sᵀ");
};

// seq_len, rounded up to whole tiles.
template <typename Traits>
__host__ __device__ std::int64_t padded(unsigned seq_len) {
  return (seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ * Traits::kBlockQ;
}

// The number of queries and of keys of each batch entry, [batch], in device memory; nullptr: all rows. If sequences are packed,
// starts and starts_kv [batch + 1] say where each begins and the one before it ends. L has `rows` per head.
struct Lengths {
  const int *queries, *keys, *starts, *starts_kv;
  std::int64_t rows;
};

// Of a batch entry, the number of keys, and where its queries are in tiles. The last tile ends with the last query, at position
// end - 1. So the first `before` rows of the first tile are no queries, and position p is query p - before.
struct Sequence {
  int keys, before, end;
};
template <typename Traits>
__device__ Sequence sequence_of(const AttentionArgs& args, const Lengths& lengths, int batch) {
  const int queries = lengths.queries != nullptr ? lengths.queries[batch] : args.seq_len;
  const int end = padded<Traits>(queries);
  return {lengths.keys != nullptr ? lengths.keys[batch] : args.seq_len_kv, end - queries, end};
}

// Where the positions of a packed sequence begin in the workspace: it has up to 63 more of them than queries.
template <typename Traits>
__host__ __device__ std::int64_t first_position_of(std::int64_t sequence, std::int64_t first_row) {
  return (first_row / Traits::kBlockQ + sequence) * Traits::kBlockQ;
}

// Makes a packed sequence the only batch entry of the arguments, except for Q, K and V, which only TMA reads. Returns the
// number of the batch entry.
template <typename Traits, typename Element = typename Traits::Element>
__device__ int select_sequence(AttentionArgs& args, Gradients& gradients, const Lengths& lengths, int sequence) {
  if (lengths.starts == nullptr) return sequence;
  const int first = lengths.starts[sequence], first_kv = lengths.starts_kv[sequence];
  args.batch = 1;
  args.seq_len = lengths.starts[sequence + 1] - first;
  args.seq_len_kv = lengths.starts_kv[sequence + 1] - first_kv;
  args.O.data = args.O.row<Element>(0, 0, first);
  gradients.dO.data = gradients.dO.row<Element>(0, 0, first);
  gradients.dQ.data = gradients.dQ.row<Element>(0, 0, first);
  gradients.dK.data = gradients.dK.row<Element>(0, 0, first_kv);
  gradients.dV.data = gradients.dV.row<Element>(0, 0, first_kv);
  gradients.log_sum_exp += first;
  args.workspace = static_cast<float*>(args.workspace) +
                   args.heads * first_position_of<Traits>(sequence, first) * (2 + Traits::kHeadDim);
  return 0;
}

// By position, the workspace holds L and D, [batch][heads][padded seq_len] each, then the sums of dQ, all in fp32. Of the sums,
// each 16 rows form a block, in the order in which the registers of a warp hold them:
// [batch][heads][padded seq_len / 16][mma_n][lane][D].
template <typename Traits>
__device__ float* row_of_L(const AttentionArgs& args, int batch, int head) {
  return static_cast<float*>(args.workspace) + (batch * args.heads + head) * padded<Traits>(args.seq_len);
}
template <typename Traits>
__device__ float* row_of_D(const AttentionArgs& args, int batch, int head) {
  return row_of_L<Traits>(args, args.batch + batch, head);
}
template <typename Traits>
__device__ float* block_of_dQ(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  float* dQ = row_of_L<Traits>(args, 2 * args.batch, 0);
  return dQ + ((batch * args.heads + head) * padded<Traits>(args.seq_len) + row) * Traits::kHeadDim;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
constexpr float kLog2e = 1.44269504f;  // log2(e)
__device__ inline float exp_approx(float x) { return exp2_approx(x * kLog2e); }

// The offset of element (row, col) of a tile of kRows rows in shared memory, counted in elements from the start of the
// tile, [parts][kRows][kCols]. The XOR is the swizzle of 128 bytes if kCols is 64; hopper/gradient_head_dims.h has the others.
template <int kRows, int kCols>
__device__ int smem_offset(int row, int col) {
  constexpr int kChunk = 8, kChunks = kCols / kChunk;  // the XOR permutes a row's chunks of 16 bytes
  const int chunk = ((col / kChunk) ^ (row / (8 / kChunks))) % kChunks;
  return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;
}

// Waits until a phase of the barrier has ended: the first if parity is 0, the second if it is 1, the third if 0, and so on.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) continue;
}

// Starts S = A Bᵀ, for 64 rows of A [parts][kBlockKV][kCols] and for B [parts][kBlockQ][kCols]: Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
// Each wgmma takes 16 of kHeadDim columns, 32 bytes.
template <typename Traits, int kHeadDim, typename Element = typename Traits::Element>
__device__ void start_S(float (&S)[Traits::kQueries / 8][4], const Element* A_smem, const Element* B_smem) {
  constexpr int kCols = Traits::kCols, kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV;
  const std::uint64_t A = descriptor_of_parts<kCols>(A_smem, kBlockKV), B = descriptor_of_parts<kCols>(B_smem, kBlockQ);
  pin(S);
  __syncwarp();  // lanes may get here at different times, and wgmma needs the whole warp (.aligned)
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < kHeadDim / 16; ++mma_k)
    wgmma<Element>(S, advance_columns<kCols>(A, mma_k, kBlockKV), advance_columns<kCols>(B, mma_k, kBlockQ), mma_k > 0);
  wgmma_commit();
}

// Starts C += P B, for P in registers and a tile B [parts][kBlockQ][kCols]: dV += Pᵀ dO, and dK += dSᵀ Q. Each wgmma takes 16
// queries, which are rows of B.
template <typename Traits, int kMmaN, typename Element = typename Traits::Element>
__device__ void start_dKV(float (&C)[kMmaN][4], std::uint32_t (&P)[Traits::kBlockQ / 16][4], const Element* B_smem) {
  const std::uint64_t B = descriptor_of_parts<Traits::kCols>(B_smem, Traits::kBlockQ);
  pin(C);
  pin(P);
  __syncwarp();
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k)
    wgmma<Element>(C, P[mma_k], advance(B, mma_k * 16 * Traits::kCols * 2), true);
  wgmma_commit();
}

// Starts half of the columns of dQ = dS K, for dSᵀ [kSplit][kBlockKV][kQueries] and half of the parts of K,
// [parts / 2][kBlockKV][kCols]. Each wgmma takes 16 keys, rows of either tile.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_dQ(float (&dQ)[Traits::kHeadDim / 16][4], const Element* dS_smem, const Element* K_smem) {
  const std::uint64_t dS = descriptor_of_parts<Traits::kQueries>(dS_smem, Traits::kBlockKV);
  const std::uint64_t K = descriptor_of_parts<Traits::kCols>(K_smem, Traits::kBlockKV);
  pin(dQ);
  __syncwarp();
  wgmma_fence();
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 16; ++mma_k)
    wgmma_transposed<Element>(dQ, advance(dS, mma_k * 16 * Traits::kQueries * 2),
                              advance(K, mma_k * 16 * Traits::kCols * 2), mma_k > 0);
  wgmma_commit();
}

// Rounds P to 16 bits. Two neighbouring accumulators, 16 keys × 16 queries, become one fragment A of Pᵀ dO: each lane
// already holds the elements that it needs. Those whose bit of `kept`, 4 · mma_n + D, is 0 become 0.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void pack_fragments(std::uint32_t (&P)[Traits::kBlockQ / 16][4], const float (&S)[Traits::kQueries / 8][4],
                               std::uint32_t kept = ~0u) {
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kQueries / 16; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &S[2 * mma_k + i / 2][i % 2 * 2];    // two neighbouring queries
      const std::uint32_t bits = kept >> (mma_k * 8 + i * 2);  // from the pair's on
      P[mma_k][i] = pack<Element>(bits & 1 ? pair[0] : 0, bits & 2 ? pair[1] : 0);
    }
}

// Stores a warp's 16 rows of dK or dV, 16 bytes at a time. On their way they replace its rows of a tile in shared memory. From
// the tile's first row on, `rows` exist.
template <typename Traits, int kMmaN, typename Element = typename Traits::Element>
__device__ void store_rows(Element* gmem, std::int64_t row_stride, const float (&C)[kMmaN][4], float scale,
                           Element* tile_smem, int first_row, int rows) {
  const int lane_id = threadIdx.x % 32, group = lane_id / 4, pair = lane_id % 4 * 2;
#pragma unroll
  for (int mma_n = 0; mma_n < kMmaN; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<std::uint32_t*>(
          &tile_smem[smem_offset<Traits::kBlockKV, Traits::kCols>(first_row + half * 8 + group, mma_n * 8 + pair)]) =
          pack<Element>(C[mma_n][2 * half] * scale, C[mma_n][2 * half + 1] * scale);
  __syncwarp();  // the warp's rows are complete
#pragma unroll
  for (int i = 0; i < 16; i += 32 / kMmaN) {  // kMmaN lanes write one row
    const int row = first_row + i + lane_id / kMmaN, col = lane_id % kMmaN * Traits::kChunk;
    if (row < rows && lane_id < 32 / kMmaN * kMmaN)
      *reinterpret_cast<uint4*>(&gmem[row * row_stride + col]) =
          *reinterpret_cast<const uint4*>(&tile_smem[smem_offset<Traits::kBlockKV, Traits::kCols>(row, col)]);
  }
}

// D = rowsum(dO ∘ O): 16 rows per warp. The sums are the diagonal of O dOᵀ, computed by the mmas that compute dPᵀ: if a row
// sees only one key, O is that row of V, and dP - D must be exactly 0. The tensor cores do 16 times the work, but the
// loads take longer. Then the CTA copies L, and sets its rows of the sums of dQ to 0.
template <typename Traits>
__global__ void row_sums(AttentionArgs args, Gradients gradients, Lengths lengths) {
  using Element = typename Traits::Element;
  const int batch = select_sequence<Traits>(args, gradients, lengths, blockIdx.z);
  const int head = blockIdx.y, first_position = blockIdx.x * Traits::kBlockQ;
  const Sequence sequence = sequence_of<Traits>(args, lengths, batch);
  if (first_position >= sequence.end) return;  // nothing reads these positions
  const int first_query = first_position - sequence.before;
  const int warp_row = threadIdx.x / 32 * 16, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, first_query);  // [kBlockQ][kHeadDim]
  const Element* O_gmem = args.O.row<Element>(batch, head, first_query);         // [kBlockQ][kHeadDim]
  const auto load = [&](const Element* gmem, std::int64_t row_stride, int half, int col) {
    // The first row stands in for those before it. Their P is 0, so their D does not matter, unless it is NaN.
    const int row = max(warp_row + half * 8 + group, -first_query);
    return *reinterpret_cast<const std::uint32_t*>(&gmem[row * row_stride + col + pair]);
  };
  float sums[2][4] = {};  // [half][D]
#pragma unroll
  for (int col = 0; col < Traits::kHeadDimV; col += 16) {
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
      row_of_D<Traits>(args, batch, head)[first_position + warp_row + half * 8 + group] =
          group % 2 ? sums[half][2 * half + 1] : sums[half][2 * half];

  // L becomes +inf where a query does not exist or sees no key. Then P = exp(S - L) is 0.
  if (const int query = first_query + threadIdx.x; threadIdx.x < Traits::kBlockQ) {
    const float* L_gmem = gradients.log_sum_exp + (batch * args.heads + head) * lengths.rows;
    const float L = query >= 0 ? L_gmem[query] : -INFINITY;
    row_of_L<Traits>(args, batch, head)[first_position + threadIdx.x] = L == -INFINITY ? INFINITY : L;
  }

  // The sums of dQ begin with 0.
  float* sums_gmem = block_of_dQ<Traits>(args, batch, head, first_position);  // kBlockQ rows
  for (int i = threadIdx.x; i < Traits::kBlockQ * Traits::kHeadDim; i += Traits::kSumsThreads) sums_gmem[i] = 0;
}

// P = exp(scale · S - L). If kScores, S is changed before: scale_to_cap is 0 without a cap c, and otherwise such that exp(2x)
// for x = softmax_scale · S / c is 2^(scale_to_cap · S); `slopes` [heads] is nullptr without ALiBi.
// If kDropout, `keep` of 256 weights stay on average, according to dropout_seed and dropout_offset.
// Query i sees the keys from i + keys - queries - left to i + keys - queries + right, if they exist.
template <typename Traits, bool kScores, bool kDropout>
__global__ void __launch_bounds__(Traits::kNumThreads)
    flash_gradients(const __grid_constant__ CUtensorMap Q_map, const __grid_constant__ CUtensorMap dO_map,
                    const __grid_constant__ CUtensorMap K_map, const __grid_constant__ CUtensorMap V_map,
                    AttentionArgs args, Gradients gradients, int left, int right, int kv_heads, Lengths lengths,
                    float scale, float scale_to_cap, const float* slopes, unsigned keep, std::uint64_t dropout_seed,
                    std::uint32_t dropout_offset) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStages = Traits::kStages, kHeadDimV = Traits::kHeadDimV, kCols = Traits::kCols;
  constexpr int kSplit = Traits::kSplit, kQueries = Traits::kQueries;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* K_smem = reinterpret_cast<Element*>(uniform_smem(smem));               // [parts][kBlockKV][kCols]
  Element* V_smem = K_smem + Traits::kKVSize;                                     // [parts][kBlockKV][kCols]
  Element* Q_smem = V_smem + Traits::kKVSize;                                     // [kStages][parts][kBlockQ][kCols]
  Element* dO_smem = Q_smem + kStages * Traits::kQSize;                           // [kStages][parts][kBlockQ][kCols]
  Element* dS_smem = dO_smem + kStages * Traits::kQSize;                          // [kStages]: dSᵀ; if kSplit is 2, Pᵀ
  float* L_smem = reinterpret_cast<float*>(dS_smem + kStages * Traits::kdSSize);  // [kStages][kBlockQ]
  float* D_smem = L_smem + kStages * kBlockQ;                                     // [kStages][kBlockQ]
  std::uint64_t* KV_full = reinterpret_cast<std::uint64_t*>(D_smem + kStages * kBlockQ);  // copied
  std::uint64_t* Q_full = KV_full + 1;                                                    // [kStages]: with L, dO and D

  // What this CTA computes: one tile of keys of one head of K and V of one batch entry.
  const int batch = select_sequence<Traits>(args, gradients, lengths, blockIdx.z);
  const int kv_row = blockIdx.x * kBlockKV, kv_head = blockIdx.y;
  if (kv_row >= args.seq_len_kv) return;  // beyond the packed sequence
  // The maps are those of all sequences. In the maps of Q and dO, a batch entry begins with each row.
  const int Q_entry = lengths.starts != nullptr ? lengths.starts[blockIdx.z] : batch;
  const int first_key = lengths.starts_kv != nullptr ? lengths.starts_kv[blockIdx.z] : 0;
  const int heads_per_kv = args.heads / kv_heads;
  const int warpgroup = uniform_warp_id() / 4;
  // Of a tile, the first query for which this warpgroup computes S, and its first columns of dK and dV: 0 if kSplit is 1.
  const int first_S = warpgroup * kQueries % kBlockQ;
  const int first_dK = warpgroup * kHeadDim / kSplit % kHeadDim, first_dV = warpgroup * kHeadDimV / kSplit % kHeadDimV;
  const int group = threadIdx.x % 32 / 4, pair = first_S + threadIdx.x % 4 * 2;
  const int warp_row = threadIdx.x / 32 * 16 % kBlockKV;               // the first of the keys that this warp owns
  const Element* K_rows = K_smem + warpgroup * 64 % kBlockKV * kCols;  // the warpgroup's rows of each part
  const Element* V_rows = V_smem + warpgroup * 64 % kBlockKV * kCols;
  const Sequence sequence = sequence_of<Traits>(args, lengths, batch);
  const int num_keys = sequence.keys - kv_row;  // from the first of the tile on
  // The positions of the first and the last query that see key kv_row, if they exist: one further on for each further key.
  const int first_query = sequence.end - num_keys - right;
  const int last_query = first_query + right + left;
  // Of the queries that see one of the tile's keys, the first row of their first tile, and the row after the last of them.
  const int first_q_row = max(first_query, 0) / kBlockQ * kBlockQ;
  const int end_q_row = min(last_query + kBlockKV, sequence.end);
  const float factor = kDropout ? 256.0f / keep : 1;       // of the weights that are kept
  const int last_head = (kv_head + 1) * heads_per_kv - 1;  // of Q, that reads this head of K and V
  // [heads][padded seq_len / 16][mma_n][32][D]: the sums of dQ, from this lane's first element on
  float* sums_gmem =
      block_of_dQ<Traits>(args, batch, 0, warp_row % 64) + warpgroup * (kHeadDim / 16 * 32 * 4) + threadIdx.x % 32 * 4;

  float dK_rmem[kHeadDim / kSplit / 8][4] = {}, dV_rmem[kHeadDimV / kSplit / 8][4] = {};  // [mma_n][D], of 16 keys

  // A barrier's phase ends when the thread that issues the copies has arrived and the announced bytes have been copied.
  if (threadIdx.x == 0) {
    mbarrier_init(KV_full, 1);
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(&Q_full[stage], 1);
    fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are initialised

  // Only thread 0 calls this: copies Q, L, dO and D of a head. Rows before the first one arrive as zeros, and count as bytes.
  const auto copy_queries = [&](int head, int q_row, int stage) {
    std::uint64_t* full = &Q_full[stage];
    mbarrier_arrive_expect_tx(full, kBlockQ * ((kHeadDim + kHeadDimV) * sizeof(Element) + 2 * sizeof(float)));
    tma_load(Q_smem + stage * Traits::kQSize, Q_map, q_row - sequence.before, head, Q_entry, full);
    tma_load(dO_smem + stage * Traits::kQSize, dO_map, q_row - sequence.before, head, Q_entry, full);
    const float *L_gmem = row_of_L<Traits>(args, batch, head), *D_gmem = row_of_D<Traits>(args, batch, head);
    bulk_load(L_smem + stage * kBlockQ, L_gmem + q_row, kBlockQ * sizeof(float), full);
    bulk_load(D_smem + stage * kBlockQ, D_gmem + q_row, kBlockQ * sizeof(float), full);
  };
  // Copy K and V, and the first tile of queries if there is one. A CTA must not end while a copy is in flight.
  int head = kv_head * heads_per_kv, q_row = first_q_row;
  if (end_q_row <= sequence.before || num_keys <= 0) head = last_head + 1;  // no query sees a key: no iteration
  if (threadIdx.x == 0 && head <= last_head) {
    mbarrier_arrive_expect_tx(KV_full, kBlockKV * (kHeadDim + kHeadDimV) * sizeof(Element));
    tma_load(K_smem, K_map, first_key + kv_row, kv_head, batch, KV_full);
    tma_load(V_smem, V_map, first_key + kv_row, kv_head, batch, KV_full);
    copy_queries(head, q_row, 0);
  }
  if (head <= last_head) wait(KV_full, 0);

  // K and V beyond the last key become zeros: dQ += dS K multiplies what is there by 0, and dP = V dOᵀ keeps a NaN in its row.
  if (head <= last_head && num_keys < kBlockKV) {
    for (int i = num_keys * Traits::kChunksPerRow + threadIdx.x; i < kBlockKV * Traits::kChunksPerRow;
         i += Traits::kNumThreads) {
      const int row = i / Traits::kChunksPerRow, col = i % Traits::kChunksPerRow * Traits::kChunk;
      const int offset = smem_offset<kBlockKV, kCols>(row, col);
      *reinterpret_cast<uint4*>(&K_smem[offset]) = *reinterpret_cast<uint4*>(&V_smem[offset]) = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async();  // the tensor cores are about to read them
    __syncthreads();      // the zeros are complete
  }

  // For each Q/dO tile, of each head of Q:
#pragma unroll 1
  for (int step = 0; head <= last_head; ++step) {
    const int stage = step % kStages;
    const Element *Q = Q_smem + stage * Traits::kQSize, *dO = dO_smem + stage * Traits::kQSize;
    Element *dS = dS_smem + stage * Traits::kdSSize, *P = dS + kBlockKV * kBlockQ;
    wait(&Q_full[stage], step / kStages % 2);

    // Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
    float S_rmem[kQueries / 8][4], dP_rmem[kQueries / 8][4];  // [mma_n][D], 16 keys × kQueries
    start_S<Traits, kHeadDim>(S_rmem, K_rows, Q + first_S * kCols);
    start_S<Traits, kHeadDimV>(dP_rmem, V_rows, dO + first_S * kCols);

    // Random bits of 64 queries, or 32, for the warp's 16 keys, in the place of its part of dS, which begins with query
    // first_S. A lane needs a word of each of its queries, with the bytes of both of its keys. Bit 4 · mma_n + D of `kept`
    // says whether a weight is kept.
    std::uint32_t kept = ~0u;
    if (kDropout) {
      static_assert(kDropoutKeys == 16, "a block is for the keys of a warp");
      uint4* bits_smem = reinterpret_cast<uint4*>(&dS[threadIdx.x / 32 * 16 * kQueries]) - first_S;
      for (int query = first_S + threadIdx.x % 32; query < first_S + kQueries; query += 32) {
        const auto [x, y, z, w] = dropout_bits(dropout_seed, dropout_offset, blockIdx.z * args.heads + head,
                                               q_row - sequence.before + query, (kv_row + warp_row) / kDropoutKeys);
        bits_smem[query] = make_uint4(x, y, z, w);
      }
      __syncwarp();  // the bits are complete
      kept = 0;
#pragma unroll
      for (int i = 0; i < kQueries / 4; ++i) {  // of the i-th of the lane's queries, for keys `group` and group + 8
        const auto* words = reinterpret_cast<const std::uint32_t*>(&bits_smem[i / 2 * 8 + pair + i % 2]);
        const std::uint32_t bytes = words[group / 2] >> group % 2 * 8;
        kept |= (bytes % 256 < keep) << (i / 2 * 4 + i % 2) | (bytes / 65536 % 256 < keep) << (i / 2 * 4 + 2 + i % 2);
      }
      __syncwarp();  // dS may take their place
    }
    wgmma_wait<1>();
    pin(S_rmem);

    // dP - D, once dP is complete.
    const auto subtract_D = [&] {
#pragma unroll
      for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n) {
        const float2 D = *reinterpret_cast<const float2*>(&D_smem[stage * kBlockQ + mma_n * 8 + pair]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (kDropout) dP_rmem[mma_n][i] = kept >> (mma_n * 4 + i) & 1 ? dP_rmem[mma_n][i] * factor : 0;
          dP_rmem[mma_n][i] -= i % 2 ? D.y : D.x;
        }
      }
    };
    // Change the scores, and multiply dP - D by the derivative. With r = 1 / (exp(2x) + 1), tanh(x) is 1 - 2r, and its
    // derivative 4r(1 - r). Distances are those from the query that sees the key at the end of its causal mask.
    if (kScores) {
      wgmma_wait<0>();
      pin(dP_rmem);
      subtract_D();
      const float slope = slopes != nullptr ? __fdividef(slopes[head], scale) : 0;
      const float distance = q_row + pair - (first_query + right + warp_row + group);  // of the first score
#pragma unroll
      for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (scale_to_cap > 0) {
            const float r = __fdividef(1, exp2_approx(S_rmem[mma_n][i] * scale_to_cap) + 1);
            S_rmem[mma_n][i] = 1 - 2 * r;
            dP_rmem[mma_n][i] *= 4 * r * (1 - r);
          }
          S_rmem[mma_n][i] -= slope * fabsf(distance + (mma_n * 8 + i % 2 - i / 2 * 8));
        }
    }

    // Hide the keys outside a query's window, and those that do not exist: P = 0, and so is dS.
    if (num_keys < kBlockKV || q_row < first_query + kBlockKV - 1 || q_row + kBlockQ - 1 > last_query)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = warp_row + half * 8 + group;
        // Of this tile's queries, the first and the last one that see the key.
        const int first = key < num_keys ? first_query + key - q_row : kBlockQ, last = last_query + key - q_row;
#pragma unroll
        for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int query = mma_n * 8 + pair + i;
            if (query < first || query > last) S_rmem[mma_n][2 * half + i] = -INFINITY;
          }
      }

    // P = exp(S - L), while dP is computed. Columns of an accumulator are queries.
#pragma unroll
    for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n) {
      const float2 L = *reinterpret_cast<const float2*>(&L_smem[stage * kBlockQ + mma_n * 8 + pair]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        S_rmem[mma_n][i] = exp_approx(S_rmem[mma_n][i] * scale - (i % 2 ? L.y : L.x));  // now it is P
    }

    // dV += Pᵀ dO.
    std::uint32_t P_rmem[kBlockQ / 16][4], dS_rmem[kBlockQ / 16][4];  // [mma_k][A]
    pack_fragments<Traits>(P_rmem, S_rmem, kept);
    if constexpr (kSplit == 1) start_dKV<Traits>(dV_rmem, P_rmem, dO);
    wgmma_wait<kSplit == 1 ? 1 : 0>();
    pin(dP_rmem);

    // dS = P ∘ (dP - D), while dV is computed.
    if (!kScores) subtract_D();
#pragma unroll
    for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dP_rmem[mma_n][i] *= S_rmem[mma_n][i];
    pack_fragments<Traits>(dS_rmem, dP_rmem);

    // dS to shared memory, and P if kSplit is 2. All warps are done with the previous tiles of this stage, because they have
    // passed the barrier below since.
    const auto offset_of = [&](int query) {  // for the fragment of 16 queries from this one on
      // Lanes 0–7 supply the addresses of keys 0–7 at the lower eight queries, lanes 8–15 of keys 8–15, and so on.
      return smem_offset<kBlockKV, kQueries>(warp_row + threadIdx.x % 16, query + threadIdx.x % 32 / 16 * 8);
    };
#pragma unroll
    for (int mma_k = 0; mma_k < kQueries / 16; ++mma_k) {
      stmatrix_x4(&dS[offset_of(first_S + mma_k * 16)], dS_rmem[mma_k]);
      if (kSplit == 2) stmatrix_x4(&P[offset_of(first_S + mma_k * 16)], P_rmem[mma_k]);
    }
    fence_proxy_async();  // the tensor cores are about to read dS

    // dQ += dS K, in memory, where other CTAs add to the same elements.
    __syncthreads();  // dS is complete, and all warps are done with the previous Q, dO, L and D
    const std::int64_t sums_row = head * padded<Traits>(args.seq_len) + q_row;  // of this tile
    q_row += kBlockQ;
    if (q_row >= end_q_row) {
      q_row = first_q_row;
      ++head;
    }
    if (threadIdx.x == 0 && head <= last_head) copy_queries(head, q_row, (step + 1) % kStages);
    // If the other warpgroup has computed half of P and dS, load them, and start dV += Pᵀ dO.
    if constexpr (kSplit == 2) {
#pragma unroll
      for (int mma_k = 0; mma_k < kBlockQ / 16; ++mma_k) {
        ldmatrix_x4(P_rmem[mma_k], &P[offset_of(mma_k * 16)]);
        ldmatrix_x4(dS_rmem[mma_k], &dS[offset_of(mma_k * 16)]);
      }
      start_dKV<Traits>(dV_rmem, P_rmem, dO + first_dV * kBlockQ);
    }
    float dQ_rmem[kHeadDim / 16][4];  // [mma_n][D], 16 queries × half of kHeadDim
    start_dQ<Traits>(dQ_rmem, dS, K_smem + warpgroup * (Traits::kKVSize / 2));
    start_dKV<Traits>(dK_rmem, dS_rmem, Q + first_dK * kBlockQ);
    wgmma_wait<1>();
    pin(dV_rmem);
    pin(dQ_rmem);
#pragma unroll
    for (int mma_n = 0; mma_n < kHeadDim / 16; ++mma_n)
      atomicAdd(reinterpret_cast<float4*>(&sums_gmem[sums_row * kHeadDim + mma_n * 32 * 4]),
                make_float4(dQ_rmem[mma_n][0], dQ_rmem[mma_n][1], dQ_rmem[mma_n][2], dQ_rmem[mma_n][3]));
    wgmma_wait<0>();
    pin(dK_rmem);
  }

  // Store dK and dV.
  __syncthreads();  // all warps have read K for the last time
  store_rows<Traits>(gradients.dK.row<Element>(batch, kv_head, kv_row) + first_dK, gradients.dK.row_stride, dK_rmem,
                     args.softmax_scale, K_smem + first_dK * kBlockKV, warp_row, args.seq_len_kv - kv_row);
  store_rows<Traits>(gradients.dV.row<Element>(batch, kv_head, kv_row) + first_dV, gradients.dV.row_stride, dV_rmem,
                     factor, V_smem + first_dV * kBlockKV, warp_row, args.seq_len_kv - kv_row);
}

// Converts the sums of dQ: eight columns of the rows `group` and group + 8 of a block per thread. The four lanes 4 · group to
// 4 · group + 3 have two neighbouring columns of both rows each, in one accumulator.
template <typename Traits>
__global__ void convert_dQ(AttentionArgs args, Gradients gradients, Lengths lengths) {
  using Element = typename Traits::Element;
  const int batch = select_sequence<Traits>(args, gradients, lengths, blockIdx.z);
  const int head = blockIdx.y, mma_n = threadIdx.x % Traits::kChunksPerRow;
  const int row = threadIdx.x / Traits::kChunksPerRow, group = row % 8;
  const int first_position = blockIdx.x * Traits::kConvertedRows + row / 8 * 16;
  const float* sums_gmem = block_of_dQ<Traits>(args, batch, head, first_position) + (mma_n * 32 + group * 4) * 4;
  const Sequence sequence = sequence_of<Traits>(args, lengths, batch);
  std::uint32_t dQ_rmem[2][4];  // [half][lane]
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    float4 sums{};  // padding has none
    if (first_position < sequence.end) sums = *reinterpret_cast<const float4*>(&sums_gmem[lane * 4]);
    dQ_rmem[0][lane] = pack<Element>(sums.x * args.softmax_scale, sums.y * args.softmax_scale);
    dQ_rmem[1][lane] = pack<Element>(sums.z * args.softmax_scale, sums.w * args.softmax_scale);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int query = first_position + half * 8 + group - sequence.before;
    if (query < 0) query += gridDim.x * Traits::kConvertedRows;  // the zeros before the first query go to the end
    if (query < args.seq_len)
      reinterpret_cast<uint4*>(gradients.dQ.row<Element>(batch, head, query))[mma_n] =
          make_uint4(dQ_rmem[half][0], dQ_rmem[half][1], dQ_rmem[half][2], dQ_rmem[half][3]);
  }
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  const std::int64_t rows = std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  const std::int64_t positions =
      problem.packed ? first_position_of<Traits>(problem.batch, rows) : problem.batch * padded<Traits>(problem.seq_len);
  return problem.heads * positions * (2 + Traits::kHeadDim) * sizeof(float);
}

template <typename Traits>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumThreads;
  const Gradients& gradients = args.gradients;
  cudaError_t error = cudaSuccess;
  const bool is_packed = args.offsets != nullptr;
  const int entries = is_packed ? args.total : args.batch, entries_kv = is_packed ? 1 : args.batch;
  const int rows_kv = is_packed ? args.total_kv : args.seq_len_kv;
  const auto map_of = [&](Tensor tensor, int entries, int heads, int rows, int box_rows, int cols = Traits::kHeadDim) {
    // If packed, batch entry b of Q and dO begins with row b: the next one is a row further on.
    if (is_packed) tensor.batch_stride = tensor.row_stride;
    CUtensorMap map;
    if (error == cudaSuccess) error = encode_parts<Traits>(map, tensor, cols, entries, heads, rows, box_rows);
    return map;
  };
  const CUtensorMap Q_map = map_of(args.Q, entries, args.heads, args.seq_len, Traits::kBlockQ);
  const CUtensorMap dO_map =
      map_of(gradients.dO, entries, args.heads, args.seq_len, Traits::kBlockQ, Traits::kHeadDimV);
  const CUtensorMap K_map = map_of(args.K, entries_kv, args.kv_heads, rows_kv, Traits::kBlockKV);
  const CUtensorMap V_map = map_of(args.V, entries_kv, args.kv_heads, rows_kv, Traits::kBlockKV, Traits::kHeadDimV);
  const bool changes_scores = args.softcap > 0 || args.alibi_slopes != nullptr;  // a sink is in L, and only there
  auto kernel = changes_scores ? flash_gradients<Traits, true, false> : flash_gradients<Traits, false, false>;
  if (args.dropout_keep < 256)
    kernel = changes_scores ? flash_gradients<Traits, true, true> : flash_gradients<Traits, false, true>;
  // exp(softmax_scale · S - L), and with a cap, exp(softcap · tanh(…) - L).
  const float scale = args.softcap > 0 ? args.softcap : args.softmax_scale;
  const float scale_to_cap = args.softcap > 0 ? 2 * kLog2e * args.softmax_scale / args.softcap : 0;
  // More than 48 KB of shared memory has to be requested.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const int q_tiles = padded<Traits>(args.seq_len) / Traits::kBlockQ;
  const int kv_tiles = (args.seq_len_kv - 1) / Traits::kBlockKV + 1;
  const int groups = q_tiles * Traits::kBlockQ / Traits::kConvertedRows;  // of rows of dQ
  const int left = args.window_left < 0 ? args.seq_len_kv : args.window_left;
  const int right = args.causal ? 0 : args.window_right < 0 ? args.seq_len : args.window_right;
  const Lengths lengths = {args.lengths, args.lengths_kv, args.offsets, args.offsets_kv,
                           is_packed ? args.total : args.seq_len};
  row_sums<Traits>
      <<<dim3(q_tiles, args.heads, args.batch), Traits::kSumsThreads, 0, stream>>>(args, gradients, lengths);
  kernel<<<dim3(kv_tiles, args.kv_heads, args.batch), kNumThreads, Traits::kSmemBytes, stream>>>(
      Q_map, dO_map, K_map, V_map, args, gradients, left, right, args.kv_heads, lengths, scale, scale_to_cap,
      args.alibi_slopes, args.dropout_keep, args.dropout_seed, args.dropout_offset);
  convert_dQ<Traits><<<dim3(groups, args.heads, args.batch), Traits::kdQThreads, 0, stream>>>(args, gradients, lengths);
  return cudaGetLastError();
}

template <typename Traits>
auto configuration(const char* name) {
  return flash_ladder::configuration<Traits>(name, backward_launch<launch<Traits>>, workspace_bytes<Traits>);
}

const BackwardRegistration registration({
    .source = __FILE__,
    .extends = "backward_hopper_head_dims",
    .architecture = Architecture::sm_90a,
    .deterministic = false,  // the CTAs of a head add to dQ in any order
    .solves = {.head_dim_v = true,
               .causal = true,
               .any_length = true,
               .kv_heads = true,
               .window = true,
               .lengths = true,
               .packed = true,
               .scores = true,
               .dropout = true},
    .configurations =  // head_dim, and that of V and O if it is another one
    {configuration<Traits<__half, 64>>("64x128"), configuration<Traits<__nv_bfloat16, 64>>("64x128"),
     configuration<Traits<__half, 96>>("64x128"), configuration<Traits<__nv_bfloat16, 96>>("64x128"),
     configuration<Traits<__half, 96, 64>>("64x128"), configuration<Traits<__nv_bfloat16, 96, 64>>("64x128"),
     configuration<Traits<__half, 128>>("64x128"), configuration<Traits<__nv_bfloat16, 128>>("64x128"),
     configuration<Traits<__half, 192>>("64x64"), configuration<Traits<__nv_bfloat16, 192>>("64x64"),
     configuration<Traits<__half, 192, 128>>("64x64"), configuration<Traits<__nv_bfloat16, 192, 128>>("64x64"),
     configuration<Traits<__half, 256>>("64x64"), configuration<Traits<__nv_bfloat16, 256>>("64x64")},
});

}  // namespace flash_ladder::backward_hopper_wide_heads
