// head_dims
//
// Idea        Rows of Q and K have 64, 96, 128, 192 or 256 elements, and those of V and O as many, or 128 beside 192. Registers
//             decide the query tile: for 16 rows, O takes head_dim_v / 2 registers of each lane and Q head_dim / 4, so beyond
//             128 a warp owns 16 rows and not 32. Shared memory decides the rest.
// Changed     The swizzle permutes only four chunks if rows are not multiples of 128 bytes. 16, 8 or 4 threads copy a row.
// Prediction  128 as before. 64 has all exponentials but half of the mma: 0.8 of 128's TFLOP/s. With 16 rows per warp, a
//             fragment of K or V serves one mma and not two: 0.75 of it for 192 and 256, and for 192 with 128.

#include <algorithm>
#include <cfloat>
#include <numeric>

#include "convert.h"
#include "copy_or_zero.h"
#include "hints.h"
#include "philox.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::head_dims {

constexpr int kChunk = 8;  // elements in 16 bytes, the most that a thread moves at once

template <typename Element_, int kHeadDim_, int kMmaM_, int kBlockKV_, int kStages_, int kHeadDimV_ = kHeadDim_>
struct Traits {
  using Element = Element_;
  static constexpr int kMmaM = kMmaM_;  // 16-row mma tiles that a warp owns
  static constexpr int kNumWarps = 8;
  static constexpr int kBlockQ = kNumWarps * kMmaM * 16;              // query rows per CTA
  static constexpr int kBlockKV = kBlockKV_;                          // keys and values per tile
  static constexpr int kStepKV = 16;                                  // keys and values per step
  static constexpr int kStages = kStages_;                            // tiles in the ring, each with K and V
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;  // elements in a row of Q and K, and of V and O
  static constexpr int kCopyLanes = std::gcd(std::gcd(kHeadDim, kHeadDimV) / kChunk, 16);  // threads that copy a row
  static constexpr int kStageSize = kBlockKV * (kHeadDim + kHeadDimV);  // elements in a stage: K and V
  // If a lane's sum of P reaches this, the row needs a new maximum. Below it, each P is far from 65,504, the largest
  // fp16 number; any limit up to that would do.
  static constexpr float kMostSum = 4096;
  // The ring, and two barriers of 8 bytes per stage.
  static constexpr int kSmemBytes = kStages * kStageSize * sizeof(Element) + kStages * 2 * 8;
  static_assert(kStages >= 2 && kBlockKV % (2 * kStepKV) == 0);  // a tile is copied in the middle of the previous one
};

// The offset of element (row, col) of a tile in shared memory, counted in elements from the start of the tile. The XOR
// permutes the 16-byte chunks of a row (06 has the picture): only four if rows of 192 bytes begin in bank 0 and 16 in turn.
template <int kHeadDim>
constexpr int kSwizzled = kHeadDim % (8 * kChunk) == 0 ? 8 : 4;
template <int kHeadDim>
__device__ int smem_offset(int row, int col) {
  const int chunk = (col / kChunk) ^ (row / (8 / kSwizzled<kHeadDim>) % kSwizzled<kHeadDim>);
  return row * kHeadDim + chunk * kChunk + col % kChunk;
}

// The same for a fragment that starts at (row, col), both constants; lane_offset is where this lane reads the
// fragment at (0, 0). Rows are multiples of 8, so they do not affect the XOR and are added. Columns are multiples of
// 16: within the columns that the XOR permutes, they are applied as an XOR themselves; beyond those, they are added.
// Whatever is added becomes an immediate in the load instruction.
template <int kHeadDim>
__device__ int fragment_offset(int lane_offset, int row, int col) {
  constexpr int kCols = kSwizzled<kHeadDim> * kChunk;  // columns that the XOR permutes
  return (lane_offset ^ col % kCols) + row * kHeadDim + col / kCols * kCols;
}

// kCopyLanes neighbouring threads copy one row, 16 bytes at a time; a thread's next row is kRowsAtOnce further on.
template <typename Traits>
constexpr int kRowsAtOnce = Traits::kNumWarps * 32 / Traits::kCopyLanes;

// Starts copying a thread's share of kRows rows to shared memory, from the last row to the first. tile_smem points to the
// thread's first row, tile_gmem to its last; tile_gmem moves back to the preceding tile. From the first row on, `rows` exist.
template <typename Traits, int kRows, int kHeadDim, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element*& tile_gmem, std::int64_t row_stride, int rows) {
  static_assert(kRowsAtOnce<Traits> % 8 == 0, "all rows of a thread are swizzled alike");
#pragma unroll
  for (int row = kRows - kRowsAtOnce<Traits>; row >= 0;
       row -= kRowsAtOnce<Traits>, tile_gmem -= kRowsAtOnce<Traits> * row_stride)
    for (int col = 0; col < kHeadDim; col += Traits::kCopyLanes * kChunk)
      cp_async_16_or_zero(&tile_smem[row * kHeadDim + col], tile_gmem + col, row < rows);
}

// In each ldmatrix, lanes 0–7 supply the row addresses of the first 8×8 matrix, lanes 8–15 of the second, and so on.

// B = Kᵀ[16 of head_dim][16 keys], for mma_n and mma_n + 1. Two matrices, side by side along head_dim, form the B of
// one mma_n, and four matrices form the B of two.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_K_fragments(std::uint32_t (&K_rmem)[2][2], const Element* K_smem, int lane_offset, int mma_k,
                                 int mma_n) {
  ldmatrix_x4(K_rmem[0][0], K_rmem[0][1], K_rmem[1][0], K_rmem[1][1],
              &K_smem[fragment_offset<Traits::kHeadDim>(lane_offset, mma_n * 8, mma_k * 16)]);
}

// B = V[16 keys][16 of head_dim], for mma_n and mma_n + 1. Two matrices, one below the other along the keys, form the B
// of one mma_n. Transposed on the way, they give each lane two neighbouring keys in a register.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_V_fragments(std::uint32_t (&V_rmem)[2][2], const Element* V_smem, int lane_offset, int mma_k,
                                 int mma_n) {
  ldmatrix_x4_trans(V_rmem[0][0], V_rmem[0][1], V_rmem[1][0], V_rmem[1][1],
                    &V_smem[fragment_offset<Traits::kHeadDimV>(lane_offset, mma_k * 16, mma_n * 8)]);
}

constexpr float kLog2e = 1.44269504f;  // log2(e): exp(x) = 2^(x · log2(e))

// The hyperbolic tangent, 1 - 2 / (exp(2x) + 1), to about 2^-22. tanh.approx has 2^-11: with a cap of 50, 1/40.
__device__ inline float tanh_from_exp2(float x) { return 1 - __fdividef(2, exp2_approx(2 * kLog2e * x) + 1); }

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float group_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Four lanes share a row, and each holds 16 bytes of it in four registers. Afterwards, lane j has register j of each lane:
//
//   lane 0  a0 a1 a2 a3      a0 b0 c0 d0
//   lane 1  b0 b1 b2 b3  →   a1 b1 c1 d1
//   lane 2  c0 c1 c2 c3      a2 b2 c2 d2
//   lane 3  d0 d1 d2 d3      a3 b3 c3 d3
//
// Two lanes whose numbers differ in one bit exchange x of the upper lane for y of the lower lane.
__device__ inline void exchange(std::uint32_t& x, std::uint32_t& y, int lane_id, int bit) {
  const bool upper = lane_id & bit;
  const std::uint32_t got = __shfl_xor_sync(0xffffffff, upper ? x : y, bit);
  (upper ? x : y) = got;
}
__device__ inline void transpose_in_group(uint4& v, int lane_id) {
  exchange(v.x, v.y, lane_id, 1);
  exchange(v.z, v.w, lane_id, 1);
  exchange(v.x, v.z, lane_id, 2);
  exchange(v.y, v.w, lane_id, 2);
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

// Clears the halves of P, two neighbouring keys, whose bytes of `bits` are not below the number of weights kept of 256. The
// bytes are those from the first on. `limits` is that number plus 0x7fff, in both halves: less a byte, bit 15 says whether the
// byte is below. As no P is negative, the other 15 bits suffice to clear one.
__device__ inline std::uint32_t drop(std::uint32_t P, std::uint32_t bits, int first_byte, std::uint32_t limits) {
  const std::uint32_t bytes = __byte_perm(bits, 0, first_byte == 0 ? 0x4140 : 0x4342);  // each in 16 bits
  const std::uint32_t kept = (limits - bytes) & 0x80008000;
  return P & (kept - (kept >> 15));
}

// Waits until a phase of the barrier has ended: the first if parity is 0, the second if it is 1, the third if 0, and so on.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_test_wait(barrier, parity)) continue;
  __syncwarp();  // lanes may leave the loop at different times, and ldmatrix and mma need the whole warp (.aligned)
}

// A query tile in the list: its head, counted across all batch entries, its first row, and the lengths of its sequence.
// If all of its rows are padding, seq_len_kv is 0: they see no key. Packed sequences form a single batch entry, in which
// this one begins with row first_q of Q and O, and with row first_kv of K and V.
struct __align__(32) QTile {
  int head, first_row, seq_len, seq_len_kv, first_q, first_kv;
  int sequence;     // number of its batch entry, or of its packed sequence
  int num_q_tiles;  // in the list
};

// Lists the query tiles by the number of keys that they need, from the most to the fewest. All heads are alike. Each
// CTA, of one warp, counts the tiles of a head that come before its own, and enters its own for every head. lengths and
// lengths_kv [batch] are the rows in use of each batch entry, or nullptr if all are. offsets and offsets_kv [batch + 1] are
// where packed sequences begin and end, or nullptr.
template <typename Traits>
__global__ void list_q_tiles(AttentionArgs args, QTile* q_tiles, const int* lengths, const int* lengths_kv,
                             const int* offsets, const int* offsets_kv, int right, int width) {
  constexpr int kBlockQ = Traits::kBlockQ;
  const int tiles_per_sequence = (args.seq_len - 1) / kBlockQ + 1;
  const auto tile_of_first_head = [&](int i) {
    const int sequence = i / tiles_per_sequence, first_row = i % tiles_per_sequence * kBlockQ;
    // Packed sequences all belong to the first batch entry.
    if (offsets != nullptr) {
      const int q = offsets[sequence], kv = offsets_kv[sequence];
      return QTile{0, first_row, offsets[sequence + 1] - q, offsets_kv[sequence + 1] - kv, q, kv, sequence};
    }
    const int queries = lengths != nullptr ? lengths[sequence] : args.seq_len;
    const int keys = lengths_kv != nullptr ? lengths_kv[sequence] : args.seq_len_kv;
    return QTile{sequence * args.heads, first_row, queries, first_row < queries ? keys : 0, 0, 0, sequence};
  };
  const auto needed_keys_of = [&](const QTile& tile) {
    const int end = tile.first_row + 1 + right + tile.seq_len_kv - tile.seq_len;  // of the keys that the first row sees
    return min(end + kBlockQ - 1, tile.seq_len_kv) - max(end - width, 0);
  };
  const auto is_listed = [&](const QTile& tile) { return offsets == nullptr || tile.first_row < tile.seq_len; };
  const int own = blockIdx.x, num_tiles = gridDim.x;
  const QTile tile = tile_of_first_head(own);
  if (!is_listed(tile)) return;
  // Count the tiles of a head that come before its own, and all that are listed.
  int before = 0, all = 0;
  for (int first = 0; first < num_tiles; first += 32) {
    const int other = first + threadIdx.x;
    const QTile other_tile = tile_of_first_head(min(other, num_tiles - 1));
    const bool counts = other < num_tiles && is_listed(other_tile);
    const int more_keys = needed_keys_of(other_tile) - needed_keys_of(tile);
    before += __popc(__ballot_sync(0xffffffff, counts && (more_keys > 0 || (more_keys == 0 && other < own))));
    all += __popc(__ballot_sync(0xffffffff, counts));
  }
  for (int head = threadIdx.x; head < args.heads; head += 32)
    q_tiles[before * args.heads + head] = {tile.head + head, tile.first_row, tile.seq_len,  tile.seq_len_kv,
                                           tile.first_q,     tile.first_kv,  tile.sequence, all * args.heads};
}

// num_q_tiles counts all query tiles if there is no list. L_gmem [batch][heads][seq_len] is nullptr if not wanted.
// If kScores, a score is changed: softcap [0 for none], alibi_slopes and sinks [heads], or nullptr, as in ExtendedArgs.
// If sequences are packed, `total` counts their queries, and L_gmem is [heads][total]; otherwise it is 0.
// If kDropout, `keep` of 256 weights stay on average, by the mask of dropout_seed and dropout_offset.
// q_tiles is the list of query tiles, or nullptr if all sequences are equally long. If kWindow, query i sees `width` keys,
// if they exist; the last one is `right` keys beyond its own.
template <typename Traits, bool kWindow, bool kScores, bool kDropout>
__global__ void __launch_bounds__(Traits::kNumWarps * 32)
    flash_attention(AttentionArgs args, int heads_per_kv_head, int right, int width, const QTile* q_tiles,
                    float softcap, const float* alibi_slopes, const float* sinks, int keep, std::uint64_t dropout_seed,
                    std::uint32_t dropout_offset, float* L_gmem, float scale, int num_q_tiles, int total, int zero) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kStepKV = Traits::kStepKV;
  constexpr int kHeadDim = Traits::kHeadDim, kHeadDimV = Traits::kHeadDimV, kMmaM = Traits::kMmaM;
  constexpr int kLaneChunks = kHeadDim / kChunk / 4;  // chunks of a row of Q that each of its four lanes loads
  constexpr int kStages = Traits::kStages, kStageSize = Traits::kStageSize;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* K_smem = reinterpret_cast<Element*>(smem);  // [kStages][kBlockKV][kHeadDim]; in each stage first K, then V
  Element* V_smem = K_smem + kBlockKV * kHeadDim;      // [kStages][kBlockKV][kHeadDimV]
  std::uint64_t* full = reinterpret_cast<std::uint64_t*>(K_smem + kStages * kStageSize);  // [kStages]: copied
  std::uint64_t* empty = full + kStages;                                                  // [kStages]: read by all

  // The head of a query tile, counted across all batch entries, and its first row. Without a list, query tiles are
  // numbered head by head; if kWindow, from the last tile of every head, which sees the most keys, to the first of every
  // head.
  const int q_tiles_per_head = (args.seq_len - 1) / kBlockQ + 1, num_heads = args.heads * args.batch;
  const auto head_of = [&](int q_tile) {
    if (q_tiles != nullptr) return q_tiles[q_tile].head;
    return kWindow ? q_tile % num_heads : q_tile / q_tiles_per_head;
  };
  const auto first_row_of = [&](int q_tile) {
    if (q_tiles != nullptr) return q_tiles[q_tile].first_row;
    return (kWindow ? q_tiles_per_head - 1 - q_tile / num_heads : q_tile % q_tiles_per_head) * kBlockQ;
  };
  // The lengths of its sequence.
  const auto queries_of = [&](int q_tile) { return q_tiles != nullptr ? q_tiles[q_tile].seq_len : args.seq_len; };
  const auto keys_of = [&](int q_tile) { return q_tiles != nullptr ? q_tiles[q_tile].seq_len_kv : args.seq_len_kv; };
  const auto first_q_of = [&](int q_tile) { return q_tiles != nullptr ? q_tiles[q_tile].first_q : 0; };
  const auto first_kv_of = [&](int q_tile) { return q_tiles != nullptr ? q_tiles[q_tile].first_kv : 0; };
  const auto row_of = [&](const Tensor& tensor, int q_tile, int row, int sharing_heads = 1) {
    return tensor.row<Element>(head_of(q_tile) / args.heads, head_of(q_tile) % args.heads / sharing_heads, row);
  };

  if (q_tiles != nullptr) num_q_tiles = q_tiles->num_q_tiles;
  if (blockIdx.x >= num_q_tiles) return;  // without tiles of padding, there may be fewer tiles than CTAs

  // The shuffle tells the compiler that a warp's lanes agree, so values based on warp_id need no register in each lane.
  const int warp_id = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane_id = threadIdx.x % 32;
  const int warp_row = warp_id * kMmaM * 16;  // the first of the query rows that this warp owns

  // This thread's first chunk of each tile.
  const int copy_row = threadIdx.x / Traits::kCopyLanes;
  const int copy_col = threadIdx.x % Traits::kCopyLanes * kChunk;
  const int K_copy = smem_offset<kHeadDim>(copy_row, copy_col);
  const int V_copy = smem_offset<kHeadDimV>(copy_row, copy_col);

  // This lane's first chunk of each tile. Left alone, the compiler recomputes both in every step.
  const int K_lane = keep_in_register(smem_offset<kHeadDim>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8));
  const int V_lane = keep_in_register(smem_offset<kHeadDimV>(lane_id % 16, lane_id / 16 * 8));

  // Row r of a query tile sees keys before this one, which need not exist.
  const auto end_of = [&](int q_tile, int r) {
    return keys_of(q_tile) + (kWindow ? first_row_of(q_tile) + r + 1 + right - queries_of(q_tile) : 0);
  };
  // The first and the last key that are needed, and their tiles. Even if no row sees a key, one step is computed.
  const auto last_key_of = [&](int q_tile, int r) { return max(min(end_of(q_tile, r), keys_of(q_tile)), 1) - 1; };
  const auto first_key_of = [&](int q_tile, int r) {
    return kWindow ? max(min(end_of(q_tile, r) - width, last_key_of(q_tile, r)), 0) : 0;
  };
  const auto last_kv_tile_of = [&](int q_tile) { return last_key_of(q_tile, kBlockQ - 1) / kBlockKV; };

  // Each thread arrives at full when its own copies have arrived, and at empty when it has read its fragments.
  if (threadIdx.x < 2 * kStages) mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);
  __syncthreads();  // the barriers are initialised; this is the last time that all warps wait for each other

  // Copies this thread's share of tile `kv_tile` of K and V, and arrives at full when the copies have completed.
  const Element *K_gmem, *V_gmem;
  const auto copy_KV_tile = [&](int stage, int kv_tile, int keys) {
    const int rows = keys - kv_tile * kBlockKV - copy_row;
    copy_tile<Traits, kBlockKV, kHeadDim>(K_smem + stage * kStageSize + K_copy, K_gmem, args.K.row_stride, rows);
    copy_tile<Traits, kBlockKV, kHeadDimV>(V_smem + stage * kStageSize + V_copy, V_gmem, args.V.row_stride, rows);
    cp_async_mbarrier_arrive(&full[stage]);
  };

  // Prepares for a query tile: K and V will be copied from its last tile on, and each lane prefetches a row of Q into L2.
  const auto prepare_q_tile = [&](int q_tile) {
    const int row = max(min(first_row_of(q_tile) + warp_row + lane_id % (kMmaM * 16), queries_of(q_tile) - 1), 0);
    const Element* Q_gmem = row_of(args.Q, q_tile, first_q_of(q_tile) + row);
    for (int col = 0; col < kHeadDim; col += 128 / sizeof(Element)) prefetch_to_L2(&Q_gmem[col]);
    const int last_row = (last_kv_tile_of(q_tile) + 1) * kBlockKV - kRowsAtOnce<Traits> + copy_row;  // may not exist
    K_gmem = row_of(args.K, q_tile, first_kv_of(q_tile) + last_row, heads_per_kv_head) + copy_col;
    V_gmem = row_of(args.V, q_tile, first_kv_of(q_tile) + last_row, heads_per_kv_head) + copy_col;
  };

  // Loads this lane's share of Q: the four lanes of a row take its 16-byte chunks in turn. The last row replaces later ones.
  uint4 Q_chunks[kMmaM][2][kLaneChunks];  // [mma_m][half][chunk / 4]
  const auto load_Q = [&](int q_tile) {
    const Element* Q_gmem = row_of(args.Q, q_tile, first_q_of(q_tile)) + lane_id % 4 * kChunk;
    const int first_row = first_row_of(q_tile) + warp_row + lane_id / 4, last_row = max(queries_of(q_tile), 1) - 1;
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kLaneChunks; ++i)
          Q_chunks[mma_m][half][i] = *reinterpret_cast<const uint4*>(
              &Q_gmem[min(first_row + mma_m * 16 + half * 8, last_row) * args.Q.row_stride + 4 * i * kChunk]);
  };

  load_Q(blockIdx.x);
  prepare_q_tile(blockIdx.x);
  copy_KV_tile(0, last_kv_tile_of(blockIdx.x), keys_of(blockIdx.x));

  // For each of this CTA's query tiles:
  int first_ring_tile = 0;  // number of this query tile's first K/V tile, counted across all query tiles
#pragma unroll 1
  for (int q_tile = blockIdx.x, next_q_tile; q_tile < num_q_tiles; q_tile = next_q_tile) {
    // Longest first: the CTA that had the longest tile of a round gets the shortest one of the next.
    next_q_tile = q_tile + (kWindow || q_tiles != nullptr ? 2 * (gridDim.x - q_tile % gridDim.x) - 1 : gridDim.x);
    const bool is_last = next_q_tile >= num_q_tiles;
    const int seq_len = queries_of(q_tile), seq_len_kv = keys_of(q_tile);
    const int head = head_of(q_tile) % args.heads,
              warp_distance = first_row_of(q_tile) + warp_row + seq_len_kv - seq_len;
    const float scale_to_cap = args.softmax_scale / softcap;
    // The head and the lane's first row, by which its random bits are found. Each lane makes those of one of its four rows.
    const int dropout_head = q_tiles != nullptr ? q_tiles[q_tile].sequence * args.heads + head : head_of(q_tile);
    const int dropout_row = first_row_of(q_tile) + warp_row + lane_id % 4 * 8 + lane_id / 4;
    const float slope = kScores && alibi_slopes != nullptr ? alibi_slopes[head] : 0;
    const float sink = kScores && sinks != nullptr ? sinks[head] * kLog2e : -INFINITY;

    // In each 16-row mma tile, a lane holds parts of two rows, lane_id / 4 and lane_id / 4 + 8; `half` selects one.
    float O_rmem[kMmaM][kHeadDimV / 8][4] = {};  // [mma_m][mma_n][D], not normalised
    float row_max[kMmaM][2];                     // [mma_m][half], maximum m of scale · S when last computed
    float row_sum[kMmaM][2] = {};                // [mma_m][half], sum l of this lane's 2^(scale · S - row_max) so far
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m) row_max[mma_m][0] = row_max[mma_m][1] = -FLT_MAX;

    // Chunks of Q to fragments.
    std::uint32_t Q_rmem[kHeadDim / 16][kMmaM][4];  // [mma_k][mma_m][A]
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kLaneChunks; ++i) {
          uint4 chunk = Q_chunks[mma_m][half][i];
          transpose_in_group(chunk, lane_id);
          Q_rmem[2 * i][mma_m][half] = chunk.x;
          Q_rmem[2 * i][mma_m][half + 2] = chunk.y;
          Q_rmem[2 * i + 1][mma_m][half] = chunk.z;
          Q_rmem[2 * i + 1][mma_m][half + 2] = chunk.w;
        }

    // What one step passes on to the next.
    std::uint32_t P_rmem[kMmaM][kStepKV / 16][4];  // [mma_m][mma_k][A]
    std::uint32_t V_rmem[2][2][2];                 // [buffer][mma_n % 2][B]: the first piece of V
    int V_step;                                    // this lane's first chunk of the step's V
    // The first half of a step: S and its softmax. Its keys and values are in this stage, and kv_row is its first key.
    // Multiples of 8 rows may be added before the XOR, which only moves chunks within a row. `tie` is 0. `cut` says whether
    // the window may begin or end in it.
    const int warp_end = end_of(q_tile, warp_row);
    const auto start_step = [&](int stage, int tie, int kv_row, bool cut) {
      const int K_step = (K_lane + stage * kStageSize + kv_row % kBlockKV * kHeadDim) ^ tie;  // its first chunk of K
      V_step = V_lane + stage * kStageSize + kv_row % kBlockKV * kHeadDimV;

      // S = Q Kᵀ.
      float S_rmem[kMmaM][kStepKV / 8][4] = {};  // [mma_m][mma_n][D]
      std::uint32_t K_rmem[2][2][2];             // [buffer][mma_n % 2][B]
      constexpr int kPiecesK = kStepKV / 16;     // pieces of K for one mma_k, of 16 keys each
      load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);
#pragma unroll
      for (int piece = 0; piece < kHeadDim / 16 * kPiecesK; ++piece) {
        const int mma_k = piece / kPiecesK, next = piece + 1, next_mma_k = next / kPiecesK;
        if (next_mma_k < kHeadDim / 16)
          load_K_fragments<Traits>(K_rmem[next % 2], K_smem, K_step, next_mma_k, next % kPiecesK * 2);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
            mma_m16n8k16<Element>(S_rmem[mma_m][piece % kPiecesK * 2 + n], Q_rmem[mma_k][mma_m], K_rmem[piece % 2][n]);
      }

      // Load the first piece of V before the softmax, so that P V need not wait for it.
      load_V_fragments<Traits>(V_rmem[0], V_smem, V_step, 0, 0);

      // Change the scores. Distances are those from the key at the end of the query's causal mask.
      const int first_distance = warp_distance + lane_id / 4 - lane_id % 4 * 2 - kv_row;
#pragma unroll
      for (int mma_m = 0; mma_m < (kScores ? kMmaM : 0); ++mma_m)
#pragma unroll
        for (int mma_n = 0; mma_n < kStepKV / 8; ++mma_n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& S = S_rmem[mma_m][mma_n][i];
            S = softcap > 0 ? softcap * tanh_from_exp2(S * scale_to_cap) : S * args.softmax_scale;
            S -= slope * fabsf(static_cast<float>(first_distance) + (mma_m * 16 + i / 2 * 8 - mma_n * 8 - i % 2));
          }

      // Online softmax, and P to 16 bits. O and the row sums are relative to the maximum of some earlier step.
      float new_sum[kMmaM][2];  // [mma_m][half], sum of this lane's P
      bool in_range = exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);
      // All lanes must decide together. The branch is taken when row_max, at first the lowest finite number, makes the sums
      // infinite, and for a step that may be cut.
      if (!__all_sync(0xffffffff, in_range && !cut)) {
        // Mask keys that a row does not see, before the maximum. If it sees none, row_max stays finite, and P is 0.
#pragma unroll
        for (int mma_m = 0; mma_m < (cut ? kMmaM : 0); ++mma_m)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row_end = warp_end + (kWindow ? mma_m * 16 + i / 2 * 8 + lane_id / 4 : 0);
#pragma unroll
            for (int mma_n = 0; mma_n < kStepKV / 8; ++mma_n) {
              const int key = kv_row + mma_n * 8 + lane_id % 4 * 2 + i % 2;
              if (key >= min(row_end, seq_len_kv) || (kWindow && key < row_end - width))
                S_rmem[mma_m][mma_n][i] = -INFINITY;
            }
          }

        // Make O, the row sums and P relative to the new maximum.
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
            for (int mma_n = 0; mma_n < kHeadDimV / 8; ++mma_n)
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) O_rmem[mma_m][mma_n][i] *= rescale;  // O = O · r
          }
        exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);
      }
#pragma unroll
      for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
        for (int half = 0; half < 2; ++half) row_sum[mma_m][half] += new_sum[mma_m][half];  // l += Σ P

      // Drop weights, after the sum of all.
      if (kDropout) {
        static_assert(kMmaM <= 2 && kStepKV == kDropoutKeys, "a step has one block for each of a lane's four rows");
        const auto [x, y, z, w] =
            dropout_bits(dropout_seed, dropout_offset, dropout_head, dropout_row, kv_row / kDropoutKeys);
        uint4 bits = {x, y, z, w};
        transpose_in_group(bits, lane_id);  // now one word of each row
        const std::uint32_t of_rows[] = {bits.x, bits.y, bits.z, bits.w}, limits = (0x7fff + keep) * 0x00010001u;
#pragma unroll
        for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            P_rmem[mma_m][0][i] = drop(P_rmem[mma_m][0][i], of_rows[2 * mma_m + i % 2], i / 2 * 2, limits);
      }
    };

    // O += P V: the second half of a step.
    const auto finish_step = [&] {
      constexpr int kPiecesV = kHeadDimV / 16;  // pieces of V for one mma_k, of 16 columns each
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
    };
    // During tile `kv_tile`, copies the one before; during the first, the last one for the next query tile. Waits for its
    // buffer.
    const int first_kv_tile = first_key_of(q_tile, 0) / kBlockKV;
    const auto copy_next = [&](int ring_tile, int kv_tile) {
      const int next_stage = (ring_tile + 1) % kStages;
      if (kv_tile == first_kv_tile && !is_last) prepare_q_tile(next_q_tile);
      if (kv_tile != first_kv_tile || !is_last) {
        wait(&empty[next_stage], (ring_tile + 1) / kStages % 2 ^ 1);
        if (kv_tile != first_kv_tile)
          copy_KV_tile(next_stage, kv_tile - 1, seq_len_kv);
        else
          copy_KV_tile(next_stage, last_kv_tile_of(next_q_tile), keys_of(next_q_tile));
      }
    };
    // Tiles that only other warps read: copy the next one, and release it.
    const int first_step = first_key_of(q_tile, warp_row) / kStepKV * kStepKV;
    const int last_step = last_key_of(q_tile, warp_row + kMmaM * 16 - 1) / kStepKV * kStepKV;
    const int ring_tile_0 = first_ring_tile + last_kv_tile_of(q_tile);  // that of K/V tile 0, if it had one
    const int last_ring_tile = ring_tile_0 - first_kv_tile;
    const int warp_ring_tile = ring_tile_0 - last_step / kBlockKV;  // this warp's first
    const auto pass_tiles = [&](int from, int until) {
      for (int ring_tile = from; ring_tile < until; ++ring_tile) {
        copy_next(ring_tile, ring_tile_0 - ring_tile);
        mbarrier_arrive(&empty[ring_tile % kStages]);
      }
    };
    pass_tiles(first_ring_tile, warp_ring_tile);
    // The first step, of the last keys. If it is in the first half of a tile, copy the next one now.
    wait(&full[warp_ring_tile % kStages], warp_ring_tile / kStages % 2);
    start_step(warp_ring_tile % kStages, 0, last_step, true);
    if (last_step % kBlockKV < kBlockKV / 2) copy_next(warp_ring_tile, last_step / kBlockKV);

    const auto step = [&](int kv_row, bool cut) {
      const int ring_tile = ring_tile_0 - kv_row / kBlockKV, stage = ring_tile % kStages;
      const bool is_first_step = kv_row % kBlockKV == kBlockKV - kStepKV;
      if (is_first_step) wait(&full[stage], ring_tile / kStages % 2);
      // In the middle of a tile, copy the next one, which may be the first for the next query tile.
      if (kv_row % kBlockKV == kBlockKV / 2 - kStepKV) copy_next(ring_tile, kv_row / kBlockKV);
      // P V of the previous step, and S of this one. S pretends to need a result of O += P V, as in 16: `zero` is 0. With this
      // one, the mmas of S alternate with those of P V; with others, S comes last and waits for itself.
      finish_step();
      const int tie = __float_as_int(O_rmem[kWindow ? kMmaM - 1 : 0][kHeadDimV / 8 - (kWindow ? 1 : 3)][3]) & zero;
      start_step(stage, tie, kv_row, cut);
      if (is_first_step) mbarrier_arrive(&empty[(ring_tile - 1) % kStages]);  // previous tile has been read
    };
    // For each further step of 16 keys, from the end to the start. The window's end cuts at most a warp's first three steps,
    // and its beginning cuts those before the first key of the last row.
    int kv_row = last_step - kStepKV, cut_from = max(last_step - 2 * kStepKV, first_step);
    const int whole_from = max(warp_end + kMmaM * 16 - 1 - width, first_step);
    static_assert(kMmaM * 16 <= 2 * kStepKV);
    do {
#pragma unroll 1
      for (; kWindow && kv_row >= cut_from; kv_row -= kStepKV) step(kv_row, true);
#pragma unroll 1
      for (; kv_row >= (kWindow ? whole_from : 0); kv_row -= kStepKV) step(kv_row, false);
      cut_from = first_step;
    } while (kWindow && kv_row >= first_step);

    // Store L, before the next Q needs the registers of row_max.
    const int first_row = first_row_of(q_tile) + warp_row + lane_id / 4;
    const int num_rows = total > 0 ? seq_len : args.seq_len;  // a packed sequence has no padding
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + mma_m * 16 + half * 8;
        row_sum[mma_m][half] = group_sum(row_sum[mma_m][half]);  // l
        float L = row_max[mma_m][half] + log2f(row_sum[mma_m][half]);
        if (kScores && row_sum[mma_m][half] > 0) {  // a sink takes weight only if the row sees a key
          const float larger = fmaxf(L, sink);
          L = larger + log2f(exp2_approx(L - larger) + exp2_approx(sink - larger));
          row_sum[mma_m][half] += exp2_approx(sink - row_max[mma_m][half]);  // infinite if O is negligible
        }
        if (L_gmem != nullptr && row < num_rows && lane_id % 4 == 0)
          L_gmem[std::int64_t{head_of(q_tile)} * (total > 0 ? total : args.seq_len) + first_q_of(q_tile) + row] =
              row < seq_len ? L * 0.693147181f : -INFINITY;  // log(2)
      }
    // Load the next Q while O is finished. At the end, this Q is reloaded without effect: an `if` would cost 64 registers.
    load_Q(is_last ? q_tile : next_q_tile);
    finish_step();
    // The tiles after a warp's last step, which only other warps read. The warp's own last one is released first.
    const int warp_last_ring_tile = ring_tile_0 - first_step / kBlockKV;
    if (first_step % kBlockKV >= kBlockKV / 2) copy_next(warp_last_ring_tile, first_step / kBlockKV);
    mbarrier_arrive(&empty[warp_last_ring_tile % kStages]);
    pass_tiles(warp_last_ring_tile + 1, last_ring_tile + 1);
    first_ring_tile = last_ring_tile + 1;

    // Normalise and store O. The four lanes of a row exchange pairs of elements, so that each stores 16 bytes at a time.
    Element* O_gmem = row_of(args.O, q_tile, first_q_of(q_tile));
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + mma_m * 16 + half * 8;
        const float inverse_sum =
            row_sum[mma_m][half] > 0 ? (kDropout ? 256.0f / keep : 1) / row_sum[mma_m][half] : 0;  // 1 / l
        const auto pair = [&](int mma_n) {
          const float* O = &O_rmem[mma_m][mma_n][2 * half];
          return pack<Element>(O[0] * inverse_sum, O[1] * inverse_sum);
        };
#pragma unroll
        for (int i = 0; i < kHeadDimV / kChunk / 4; ++i) {
          uint4 chunk = {pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3)};
          transpose_in_group(chunk, lane_id);
          if (row >= seq_len) chunk = {};
          if (row < num_rows)
            *reinterpret_cast<uint4*>(&O_gmem[row * args.O.row_stride + (4 * i + lane_id % 4) * kChunk]) = chunk;
        }
      }
  }
}

template <typename Traits>
std::size_t list_bytes(const AttentionProblem& problem) {
  if (problem.lengths.empty() && problem.lengths_kv.empty()) return 0;
  return ((problem.seq_len - 1) / Traits::kBlockQ + 1) * problem.heads * problem.batch * sizeof(QTile);
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  const bool is_window = args.causal || args.window_left >= 0 || args.window_right >= 0;
  const bool changes_scores = args.softcap > 0 || args.alibi_slopes != nullptr || args.sinks != nullptr;
  // With dropout, a problem without a window has one that hides nothing.
  const auto kernel =
      args.dropout_keep < 256
          ? changes_scores ? flash_attention<Traits, true, true, true> : flash_attention<Traits, true, false, true>
      : changes_scores
          ? is_window ? flash_attention<Traits, true, true, false> : flash_attention<Traits, false, true, false>
      : is_window ? flash_attention<Traits, true, false, false>
                  : flash_attention<Traits, false, false, false>;
  // More than 48 KB of shared memory per CTA must be requested explicitly.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  // Launch as many CTAs as the GPU runs at a time, but no more than there are query tiles.
  int device, num_sms, per_sm;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, Traits::kNumWarps * 32, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const int num_q_tiles = ((args.seq_len - 1) / Traits::kBlockQ + 1) * args.heads * args.batch;
  const int grid = std::min(num_q_tiles, num_sms * per_sm);
  const float scale = (changes_scores ? 1 : args.softmax_scale) * kLog2e;  // exp(softmax_scale · S) = 2^(scale · S)
  // Query i sees the keys from i + seq_len_kv - seq_len - left to i + seq_len_kv - seq_len + right.
  const int left = args.window_left < 0 ? args.seq_len_kv : args.window_left;
  const int right = args.causal ? 0 : args.window_right < 0 ? args.seq_len : args.window_right;
  const bool is_list = args.lengths != nullptr || args.lengths_kv != nullptr || args.offsets != nullptr;
  QTile* q_tiles = is_list ? static_cast<QTile*>(args.workspace) : nullptr;
  if (is_list)
    list_q_tiles<Traits><<<num_q_tiles / args.heads, 32, 0, stream>>>(
        args, q_tiles, args.lengths, args.lengths_kv, args.offsets, args.offsets_kv, right, left + right + 1);
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(
      args, args.heads / args.kv_heads, right, left + right + 1, q_tiles, args.softcap, args.alibi_slopes, args.sinks,
      args.dropout_keep, args.dropout_seed, args.dropout_offset, args.log_sum_exp, scale, num_q_tiles, args.total, 0);
  return cudaGetLastError();
}

template <typename Traits>
auto configuration(const char* name) {
  return flash_ladder::configuration<Traits>(name, launch<Traits>, list_bytes<Traits>);
}

const Registration registration({
    .source = __FILE__,
    .extends = "dropout",
    .solves = {.head_dim_v = true,
               .causal = true,
               .any_length = true,
               .kv_heads = true,
               .window = true,
               .lengths = true,
               .packed = true,
               .scores = true,
               .dropout = true,
               .log_sum_exp = true},
    // Of each head_dim, one fits in the 99 KB of shared memory that a CTA gets on sm_86 and sm_89.
    .configurations = {configuration<Traits<__half, 64, 2, 128, 3>>("256x128"),
                       configuration<Traits<__nv_bfloat16, 64, 2, 128, 3>>("256x128"),
                       configuration<Traits<__half, 96, 2, 128, 2>>("256x128"),
                       configuration<Traits<__nv_bfloat16, 96, 2, 128, 2>>("256x128"),
                       configuration<Traits<__half, 128, 2, 128, 2>>("256x128"),
                       configuration<Traits<__nv_bfloat16, 128, 2, 128, 2>>("256x128"),
                       configuration<Traits<__half, 128, 2, 64, 3>>("256x64"),
                       configuration<Traits<__nv_bfloat16, 128, 2, 64, 3>>("256x64"),
                       configuration<Traits<__half, 192, 1, 64, 2>>("128x64"),
                       configuration<Traits<__nv_bfloat16, 192, 1, 64, 2>>("128x64"),
                       configuration<Traits<__half, 192, 1, 64, 2, 128>>("128x64"),
                       configuration<Traits<__nv_bfloat16, 192, 1, 64, 2, 128>>("128x64"),
                       configuration<Traits<__half, 256, 1, 64, 2>>("128x64"),
                       configuration<Traits<__nv_bfloat16, 256, 1, 64, 2>>("128x64"),
                       configuration<Traits<__half, 256, 1, 32, 3>>("128x32"),
                       configuration<Traits<__nv_bfloat16, 256, 1, 32, 3>>("128x32")},
});

}  // namespace flash_ladder::head_dims
