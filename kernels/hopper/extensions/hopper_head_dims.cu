// hopper_head_dims
//
// Idea        Rows of Q and K have 64, 96, 128, 192 or 256 elements, and those of V and O as many, or 128 beside 192. Registers
//             decide the tile: O needs head_dim_v / 2 of a thread's, and S, its exponentials and P 5/4 of the number of keys. It
//             has 160 with three consumers, 240 with two. The swizzle decides the layout: 96 columns are three parts of 32.
// Changed     Traits for each head_dim, and wgmmas for them (hopper/head_dims.h). With 256, one query tile fits in shared
//             memory and not two, so a CTA computes a single one, and does not prepare the next one meanwhile.
// Prediction  128 as before. At seq_len 4096 without a mask, 64 has all of 128's exponentials but half of its wgmmas: 0.75 of
//             its TFLOP/s; 96: 0.9. 192: the same as 128, with fewer exponentials but more bytes of K and V; with 128 columns of
//             V, the same. 256: 0.95, since nothing hides the beginning of a query tile; at seq_len 512, 0.8 of its speed at 4096.

#include <algorithm>
#include <cfloat>
#include <numeric>

#include "convert.h"
#include "hints.h"
#include "hopper/head_dims.h"
#include "hopper/mbarrier.h"
#include "hopper/tma.h"
#include "hopper/warpgroup.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::hopper_head_dims {

template <typename Element_, int kHeadDim_, int kConsumers_, int kBlockKV_, int kStages_, int kQBuffers_ = 2,
          int kHeadDimV_ = kHeadDim_>
struct Traits {
  using Element = Element_;
  static constexpr int kConsumers = kConsumers_;   // warpgroups that compute
  static constexpr int kBlockQ = kConsumers * 64;  // query rows per CTA: the rows of one wgmma for each of them
  static constexpr int kBlockKV = kBlockKV_;       // keys and values per tile
  static constexpr int kStages = kStages_;         // tiles in each of the rings of K and V
  static constexpr int kQBuffers = kQBuffers_;     // query tiles in shared memory: with one, a CTA computes no other
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;  // elements in a row of Q and K, and of V and O
  static constexpr int kCols = part_columns(kHeadDim);  // tiles of Q, K, V and O are stored in parts of so many columns
  static constexpr int kNumWarps = 4 + kConsumers * 4;  // the warpgroups of the producer and the consumers
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static constexpr int kQSize = kBlockQ * kHeadDim, kKSize = kBlockKV * kHeadDim, kVSize = kBlockKV * kHeadDimV;
  static constexpr float kMostSum = 4096;  // if a lane's sum of exponentials reaches this, the row needs a new maximum
  static constexpr int kRingsSize = kStages * (kKSize + kVSize), kNumBarriers = 4 + 4 * kStages;
  static_assert((kConsumers - 1) * ((63 + kBlockKV) / kBlockKV) < kStages, "a ring holds the tiles that are skipped");
  static constexpr int kSmemBytes = (kQBuffers * kQSize + kRingsSize) * sizeof(Element) + kNumBarriers * 8;
  static_assert(kHeadDimV <= kHeadDim && part_columns(kHeadDimV) == kCols, "O is stored in the place of Q");
};

// The offset of element (row, col) of a warpgroup's 64 rows of O in shared memory, in elements, [parts][64][kCols], swizzled.
template <int kCols>
__device__ int smem_offset(int row, int col) {
  constexpr int kRows = 64, kChunk = 8, kChunks = kCols / kChunk;  // the XOR permutes a row's chunks of 16 bytes
  const int chunk = ((col / kChunk) ^ (row / (8 / kChunks))) % kChunks;
  return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;
}

// Waits until a phase of the barrier has ended, the first or third or … if parity is 0.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) continue;
}

// The next buffer of a ring, and the parity of the phase to wait for. A producer begins as if one of parity 1 had ended.
template <int kStages>
struct PipelineState {
  int parity, stage = 0;
  __device__ void advance() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

constexpr float kLog2e = 1.44269504f;  // log2(e): exp(x) = 2^(x · log2(e))
// The hyperbolic tangent of x to about 2^-22, from 2 · log2(e) · x. tanh.approx has 2^-11: with a cap of 50, 1/40.
__device__ inline float tanh_from_log2(float x) { return 1 - __fdividef(2, exp2_approx(x) + 1); }

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float group_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Starts S = Q Kᵀ for this warpgroup's 64 rows of Q_smem and for K_smem, [parts][64] and [parts][kBlockKV] rows of kCols.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_S(float (&S_rmem)[Traits::kBlockKV / 8][4], const Element* Q_smem, const Element* K_smem) {
  constexpr int kCols = Traits::kCols, kSteps = kCols / 16, kRowBytes = kCols * 2;  // 16 columns at a time
  const std::uint64_t Q = part_descriptor<kCols>(Q_smem, 0), K = part_descriptor<kCols>(K_smem, 0);
  pin(S_rmem);
  __syncwarp();   // lanes may get here at different times, and wgmma needs the whole warp (.aligned)
  wgmma_fence();  // the softmax has read the previous S
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 16; ++mma_k)
    wgmma<Element>(S_rmem, advance(Q, mma_k / kSteps * 64 * kRowBytes + mma_k % kSteps * 32),
                   advance(K, mma_k / kSteps * Traits::kBlockKV * kRowBytes + mma_k % kSteps * 32), mma_k > 0);
  wgmma_commit();
}

// Starts O += P V, or O = P V, with V_smem [parts][kBlockKV][kCols], 16 keys at a time.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_PV(float (&O_rmem)[Traits::kHeadDimV / 8][4], std::uint32_t (&P_rmem)[Traits::kBlockKV / 16][4],
                         const Element* V_smem, bool accumulate) {
  constexpr int kRowBytes = Traits::kCols * 2;
  const std::uint64_t V = part_descriptor<Traits::kCols>(V_smem, Traits::kBlockKV * kRowBytes);
  pin(O_rmem);
  pin(P_rmem);
  __syncwarp();
  wgmma_fence();  // P has been packed, and O rescaled
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 16; ++mma_k)
    wgmma<Element>(O_rmem, P_rmem[mma_k], advance(V, mma_k * 16 * kRowBytes), mma_k > 0 || accumulate);
  wgmma_commit();
}

// The reference for a query tile's first exponentials, in place of a maximum. Scores around 0 give exponentials around 8.
constexpr float kFirstGuess = -3;
// Online softmax: exponentials 2^(scale · S - row_max), and new_sum, this lane's sums of them. All sums must be below
// kMostSum and, relative to a guess, at least the number of their keys, so that it is not above the maximum. Otherwise,
// row_max becomes the maximum, they are computed again, and older sums and O must be multiplied by `rescale`: returns true.
template <typename Traits>
__device__ bool softmax(float (&exp_rmem)[Traits::kBlockKV / 8][4], const float (&S_rmem)[Traits::kBlockKV / 8][4],
                        float (&row_max)[2], float (&new_sum)[2], float (&rescale)[2], float scale, bool is_first) {
  for (bool redo = false;; redo = true) {
    new_sum[0] = new_sum[1] = 0;
#pragma unroll
    for (int mma_n = 0; mma_n < Traits::kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* S = &S_rmem[mma_n][2 * half];
        float* exp = &exp_rmem[mma_n][2 * half];
        exp[0] = exp2_approx(S[0] * scale - row_max[half]);
        exp[1] = exp2_approx(S[1] * scale - row_max[half]);
        new_sum[half] += exp[0] + exp[1];
      }
    // All lanes must decide together, because what follows contains shuffles.
    const float least = is_first ? Traits::kBlockKV / 4 : 0;
    const bool in_range =
        new_sum[0] >= least && new_sum[0] < Traits::kMostSum && new_sum[1] >= least && new_sum[1] < Traits::kMostSum;
    if (redo || __all_sync(0xffffffff, in_range)) return redo;
    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int mma_n = 0; mma_n < Traits::kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i) tile_max[i / 2] = fmaxf(tile_max[i / 2], S_rmem[mma_n][i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float S_max = group_max(tile_max[half]) * scale;                    // of the whole row
      const float new_max = fmaxf(is_first ? -FLT_MAX : row_max[half], S_max);  // finite even if the row sees no key
      rescale[half] = exp2_approx(row_max[half] - new_max);                     // r
      row_max[half] = new_max;                                                  // m
    }
  }
}

// P to 16 bits. Two neighbouring accumulators of S become one fragment A of P V: each lane holds the elements that it needs.
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
__device__ void scale_rows(float (&O_rmem)[Traits::kHeadDimV / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDimV / 8; ++mma_n)
#pragma unroll
    for (int i = 0; i < 4; ++i) O_rmem[mma_n][i] *= factor[i / 2];
}

// Which keys a query sees: all; those up to its own; or those in a window.
enum class Mask { none, causal, window };

// A query tile in the list: its head, counted across all batch entries, its first row, and the lengths of its sequence.
// If all of its rows are padding, seq_len_kv is 0: they see no key. Packed sequences form a single batch entry, in which this
// one begins with row first_q of Q and O, and with row first_kv of K and V. num_q_tiles is the length of the list.
struct __align__(32) QTile {
  int head, first_row, seq_len, seq_len_kv, first_q, first_kv, num_q_tiles;
};

// Lists the query tiles by the number of keys that they need, from the most to the fewest. All heads are alike. Each CTA, of
// one warp, counts the tiles of a head that come before its own, and enters its own for every head. lengths and lengths_kv
// [batch] are the rows in use, or nullptr if all are; offsets [batch + 1], where packed sequences begin and end, or nullptr.
template <typename Traits>
__global__ void list_q_tiles(AttentionArgs args, QTile* q_tiles, const int* lengths, const int* lengths_kv,
                             const int* offsets, const int* offsets_kv, int width, int right) {
  constexpr int kBlockQ = Traits::kBlockQ;
  const int tiles_per_sequence = (args.seq_len + kBlockQ - 1) / kBlockQ;
  const auto excess_rows_of = [](int rows) { return ((rows + kBlockQ - 1) / kBlockQ * kBlockQ - rows) / 64 * 64; };
  const auto tile_of_first_head = [&](int i) {
    const int sequence = i / tiles_per_sequence, row = i % tiles_per_sequence * kBlockQ;
    if (offsets != nullptr) {  // packed sequences all belong to the first batch entry
      const int q = offsets[sequence], kv = offsets_kv[sequence], queries = offsets[sequence + 1] - q;
      return QTile{0, row - excess_rows_of(queries), queries, offsets_kv[sequence + 1] - kv, q, kv};
    }
    const int first_row = row - excess_rows_of(args.seq_len);
    const int queries = lengths != nullptr ? lengths[sequence] : args.seq_len;
    const int keys = lengths_kv != nullptr ? lengths_kv[sequence] : args.seq_len_kv;
    return QTile{sequence * args.heads, first_row, queries, max(first_row, 0) < queries ? keys : 0};
  };
  const auto needed_keys_of = [&](const QTile& tile) {
    const int end = tile.first_row + 1 + right + tile.seq_len_kv - tile.seq_len;  // of the keys that the first row sees
    return min(end + kBlockQ - 1, tile.seq_len_kv) - max(end - width, 0);
  };
  const auto is_listed = [&](const QTile& tile) { return offsets == nullptr || tile.first_row < tile.seq_len; };
  const QTile tile = tile_of_first_head(blockIdx.x);
  if (!is_listed(tile)) return;
  // Count the tiles of a head that come before its own, and all that are listed.
  int before = 0, all = 0;
  for (int first = 0; first < gridDim.x; first += 32) {
    const int other = first + threadIdx.x;
    const QTile other_tile = tile_of_first_head(min(other, gridDim.x - 1));
    const bool counts = other < gridDim.x && is_listed(other_tile);
    const int more_keys = needed_keys_of(other_tile) - needed_keys_of(tile);
    before += __popc(__ballot_sync(0xffffffff, counts && (more_keys > 0 || (more_keys == 0 && other < blockIdx.x))));
    all += __popc(__ballot_sync(0xffffffff, counts));
  }
  for (int head = threadIdx.x; head < args.heads; head += 32)
    q_tiles[before * args.heads + head] = {tile.head + head, tile.first_row, tile.seq_len,    tile.seq_len_kv,
                                           tile.first_q,     tile.first_kv,  all * args.heads};
}

// L_gmem [batch][heads][seq_len] is nullptr if it is not wanted. `group` heads of Q share one of K and V. A row sees at most
// `width` keys, the last of which is `right` places after its own; 0 places if causal. If kScores, S becomes
// tanh_from_log2(scale_to_cap · S) unless scale_to_cap is 0, and then loses `slopes` [heads] times the distance, in units of
// `scale`, the factor of S in the exponent; slopes and sinks [heads] are nullptr if there are none. If kLengths, q_tiles is
// the list of query tiles. If packed, sequences have `total` queries, and L_gmem is [heads][total]; otherwise, total is 0.
template <typename Traits, Mask kMask, bool kScores, bool kLengths = false>
__global__ void __launch_bounds__(Traits::kNumWarps * 32, 1)
    flash_attention(const __grid_constant__ CUtensorMap Q_map, const __grid_constant__ CUtensorMap K_map,
                    const __grid_constant__ CUtensorMap V_map, const __grid_constant__ CUtensorMap O_map,
                    AttentionArgs args, float* L_gmem, float scale, int num_q_tiles, int kv_stride, int group,
                    int width, int right, float scale_to_cap, const float* slopes, const float* sinks,
                    const QTile* q_tiles, int total) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStages = Traits::kStages, kKSize = Traits::kKSize, kVSize = Traits::kVSize;
  constexpr bool kMasked = kMask != Mask::none, kCausal = kMask == Mask::causal, kWindow = kMask == Mask::window;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(uniform_smem(smem));  // [kQBuffers][kConsumers][parts][64][kCols]
  Element* K_smem = Q_smem + Traits::kQBuffers * Traits::kQSize;     // [kStages][parts][kBlockKV][kCols]
  Element* V_smem = K_smem + kStages * kKSize;                       // [kStages][parts][kBlockKV][kCols]
  std::uint64_t* Q_full = reinterpret_cast<std::uint64_t*>(V_smem + kStages * kVSize);  // [2]: copied
  std::uint64_t* K_full = Q_full + 2;                                                   // [kStages]
  std::uint64_t* V_full = K_full + kStages;                                             // [kStages]
  std::uint64_t* K_empty = V_full + kStages;                                            // [kStages]: read by all
  std::uint64_t* V_empty = K_empty + kStages;                                           // [kStages]
  std::uint64_t* Q_empty = V_empty + kStages;                                           // [2]

  // Unless they are in the list, query tiles are placed head by head, then batch entry by batch entry. If masked, a head's last
  // one ends less than 64 rows after the last query. If causal, pairs are numbered in turn in two heads, or the last one alone.
  const int q_tiles_per_head = (args.seq_len + kBlockQ - 1) / kBlockQ, of_two_heads = 2 * q_tiles_per_head;
  const int excess_rows = kMasked ? (q_tiles_per_head * kBlockQ - args.seq_len) / 64 * 64 : 0;
  const auto place_of = [&](int q_tile) {
    const int i = q_tile % of_two_heads, first = q_tile - i, end = min(first + of_two_heads, num_q_tiles);
    return !kCausal ? q_tile : i % 2 == 0 ? first + q_tiles_per_head - 1 - i / 2 : end - q_tiles_per_head + i / 2;
  };
  const auto row_of = [&](int q_tile) {
    return kLengths ? q_tiles[q_tile].first_row : place_of(q_tile) % q_tiles_per_head * kBlockQ - excess_rows;
  };
  const auto head_of_all = [&](int q_tile) {  // counted across all batch entries
    return kLengths ? q_tiles[q_tile].head : place_of(q_tile) / q_tiles_per_head;
  };
  const auto head_of = [&](int q_tile) { return head_of_all(q_tile) % args.heads; };
  const auto batch_of = [&](int q_tile) { return head_of_all(q_tile) / args.heads; };
  // If causal, a CTA gets both query tiles of a pair, unless there is a CTA for each tile. With a window, a head's first tiles
  // are short; in each round, a CTA takes the next one's place, so that they go to all. In the list, the longest are first.
  const bool in_pairs = kCausal && gridDim.x < num_q_tiles;
  const int first_q_tile = in_pairs ? 2 * blockIdx.x : blockIdx.x;
  const auto next_of = [&](int q_tile) {
    // The CTA that had the longest tile of a round gets the shortest one of the next.
    if (kLengths) return q_tile + 2 * (gridDim.x - q_tile % gridDim.x) - 1;
    if (kWindow) return q_tile + ((q_tile + 1) % gridDim.x == 0 ? 1 : gridDim.x + 1);
    return q_tile + (!in_pairs ? gridDim.x : q_tile % 2 == 0 ? 1 : 2 * gridDim.x - 1);
  };
  // The lengths of a query tile's sequence.
  const auto queries_of = [&](int q_tile) { return kLengths ? q_tiles[q_tile].seq_len : args.seq_len; };
  const auto keys_of = [&](int q_tile) { return kLengths ? q_tiles[q_tile].seq_len_kv : args.seq_len_kv; };
  const auto first_q_of = [&](int q_tile) { return kLengths ? q_tiles[q_tile].first_q : 0; };
  const auto first_kv_of = [&](int q_tile) { return kLengths ? q_tiles[q_tile].first_kv : 0; };
  const bool is_packed = kLengths && total > 0;  // then no row is padding
  const auto rows_of = [&](int q_tile) { return is_packed ? queries_of(q_tile) : args.seq_len; };
  // If kLengths, its tiles of K and V, of which there is at least one, end at its last key. Keys are then counted by positions
  // in these tiles, and the first positions are those of zeros, before the first. Otherwise, a key's position is its number.
  const auto positions_of = [&](int q_tile) {
    const int keys = keys_of(q_tile);
    return kLengths ? (max(keys, 1) + kBlockKV - 1) / kBlockKV * kBlockKV : keys;
  };
  const auto zeros_of = [&](int q_tile) { return kLengths ? positions_of(q_tile) - keys_of(q_tile) : 0; };
  // Row r of a query tile sees the keys before end_of(q_tile, r), and with a window only the last `width` of them; the mask is
  // aligned with the last query and the last key.
  const auto end_of = [&](int q_tile, int r) {
    const int keys = positions_of(q_tile);
    return kMasked ? row_of(q_tile) + r + 1 + right + keys - queries_of(q_tile) : keys;
  };
  // The tile of K and V that a query tile starts at, even if no row sees a key: the first one to the right of the left edges of
  // all rows. If the window is wide enough, all rows see it whole. `last` is the end of the last row.
  const auto start_of = [&](int last, int keys) {
    const int right_of_edges = (last - width + kBlockKV - 1) / kBlockKV;
    return kWindow ? max(min(right_of_edges, (min(last, keys) - 1) / kBlockKV), 0) : 0;
  };
  // The tiles that rows with ends from `first` to `last` visit, in a query tile that starts at `start`.
  struct KVTiles {
    int begin, count;
  };
  const auto kv_tiles_of = [&](int first, int last, int start, int keys) {
    int begin = kWindow ? max(first - width, 0) / kBlockKV : 0;  // not after `start`
    if (kLengths) begin = min(begin, start);                     // which it would be if all rows are padding
    return KVTiles{begin, max((min(last, keys) + kBlockKV - 1) / kBlockKV, start + 1) - begin};
  };
  const int warp_id = uniform_warp_id(), lane_id = threadIdx.x % 32;
  if (kLengths) num_q_tiles = q_tiles->num_q_tiles;
  if (kLengths && blockIdx.x >= num_q_tiles) return;  // without tiles of padding, there may be fewer tiles than CTAs

  // A phase of `full` ends when the bytes have been copied, one of `empty` when each consumer's four warps arrived (Q: one).
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 + 2 * kStages; ++i) mbarrier_init(&Q_full[i], 1);                    // and those of K and V
    for (int i = 0; i < 2 * kStages; ++i) mbarrier_init(&K_empty[i], Traits::kConsumers * 4);  // and of V
    for (int i = 0; i < 2; ++i) mbarrier_init(&Q_empty[i], Traits::kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are initialised

  if (warp_id < 4) {
    // The producer: one thread.
    keep_registers<Traits::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    PipelineState<Traits::kQBuffers> Q_next{1};
    PipelineState<kStages> K_next{1}, V_next{1};
    const auto copy_Q = [&](int q_tile) {
      Element* tile_smem = Q_smem + Q_next.stage * Traits::kQSize;
      std::uint64_t* full = &Q_full[Q_next.stage];
      wait(&Q_empty[Q_next.stage], Q_next.parity);
      mbarrier_arrive_expect_tx(full, Traits::kQSize * sizeof(Element));
      for (int row = 0; row < kBlockQ; row += 64)
        tma_load(tile_smem + row * kHeadDim, Q_map, first_q_of(q_tile) + row_of(q_tile) + row, head_of(q_tile),
                 batch_of(q_tile), full);
      Q_next.advance();
    };
    // The head of K and V that a query tile needs, and the key at position 0: once per tile, because divisions take long.
    struct Source {
      int head, batch, first_key;
    };
    const auto copy = [&](PipelineState<kStages>& next, Element* ring_smem, int size, std::uint64_t* full,
                          std::uint64_t* empty, const CUtensorMap& map, const Source& from, int kv_tile) {
      const int stage = next.stage;
      wait(&empty[stage], next.parity);
      mbarrier_arrive_expect_tx(&full[stage], size * sizeof(Element));
      tma_load(ring_smem + stage * size, map, from.first_key + kv_tile * kBlockKV, from.head, from.batch, &full[stage]);
      next.advance();
    };
    const auto copy_K = [&](auto... which) { copy(K_next, K_smem, kKSize, K_full, K_empty, K_map, which...); };
    const auto copy_V = [&](auto... which) { copy(V_next, V_smem, kVSize, V_full, V_empty, V_map, which...); };
    // V is copied one step after K, because it is used one step later. Visits begin with the last tile and advance by
    // kv_stride, coprime to the number of tiles, wrapping round: each is visited once. If masked, they go back from the start.
    Source last_source{};
    int last_kv_tile = -1;
    for (int q_tile = first_q_tile; q_tile < num_q_tiles; q_tile = next_of(q_tile)) {
      copy_Q(q_tile);
      const Source source = {head_of(q_tile) / group, batch_of(q_tile) + first_kv_of(q_tile), -zeros_of(q_tile)};
      const int keys = positions_of(q_tile), last = end_of(q_tile, kBlockQ - 1), start = start_of(last, keys);
      const KVTiles kv_tiles = kv_tiles_of(end_of(q_tile, 0), last, start, keys);
      const int num_kv_tiles = kv_tiles.count, stride = kMasked ? num_kv_tiles - 1 : kv_stride;
      int kv_tile = kMasked ? start : num_kv_tiles - 1;
      for (int step = 0; step < num_kv_tiles; ++step) {
        copy_K(source, kv_tile);
        if (last_kv_tile >= 0) copy_V(last_source, last_kv_tile);
        last_source = source;
        last_kv_tile = kv_tile;
        kv_tile += kv_tile < kv_tiles.begin + num_kv_tiles - stride ? stride : stride - num_kv_tiles;
      }
    }
    copy_V(last_source, last_kv_tile);
    return;
  }

  // The consumers. Each computes 64 of the query rows.
  take_registers<Traits::kConsumerRegisters>();
  const int warpgroup_row = (warp_id / 4 - 1) * 64;
  PipelineState<Traits::kQBuffers> Q_next{0};
  PipelineState<kStages> K_next{0}, V_next{0};
  // Unless masked, the consumers alternate. Each waits at a barrier of its own, at which the previous one arrives.
  const int turn = 3 + warp_id / 4, next_turn = turn == 3 + Traits::kConsumers ? 4 : turn + 1;
  if (!kMasked && next_turn == 4) named_barrier_arrive(next_turn, 256);  // the first slot is the first consumer's
  const auto release = [&](std::uint64_t* barrier) {
    if (lane_id == 0) mbarrier_arrive(barrier);
  };
  // Releases a tile that other consumers read. Before it is copied, an arrival at `empty` would count for an older tile.
  const auto skip = [&](PipelineState<kStages>& next, std::uint64_t* full, std::uint64_t* empty) {
    wait(&full[next.stage], next.parity);
    release(&empty[next.stage]);
    next.advance();
  };

  // A lane holds parts of two of its warpgroup's rows, 16 · (warp_id % 4) + lane_id / 4 and 8 rows further on: `half` 0 and 1.
  float O_rmem[Traits::kHeadDimV / 8][4];         // [mma_n][D], not normalised
  float S_rmem[kBlockKV / 8][4];                  // [mma_n][D]
  float exp_rmem[kBlockKV / 8][4];                // [mma_n][D], its exponentials
  std::uint32_t P_rmem[kBlockKV / 16][4];         // [mma_k][A]
  float row_max[2] = {kFirstGuess, kFirstGuess};  // [half], maximum m of scale · S when last computed, or a guess
  float row_sum[2], new_sum[2],
      rescale[2];  // [half], this lane's sums of 2^(scale · S - row_max): so far, this tile; r

  // Releases Q's buffer once O's store has read it. Only the thread that issued the store does this.
  const bool is_leader = warp_id % 4 == 0 && lane_id == 0;
  const auto release_Q = [&](int buffer) {
    if (!is_leader) return;
    tma_store_wait_read();
    mbarrier_arrive(&Q_empty[buffer]);
  };
  int q_tile = first_q_tile, kv_tile = 0;
  // Of the query tile of the next S: the positions of keys, those of zeros, the end of this warpgroup's first row, its tiles.
  int keys = positions_of(q_tile), zeros = zeros_of(q_tile);
  int end = end_of(q_tile, warpgroup_row), start = start_of(end - warpgroup_row + kBlockQ - 1, keys);
  KVTiles kv_tiles = kv_tiles_of(end, kMasked ? end + 63 : end, start, keys);

  // Changes the scores. Distances are those from the key at the end of the query's causal mask.
  const auto slope_of = [&](int q_tile) {
    return kScores && slopes != nullptr ? __fdividef(slopes[head_of(q_tile)] * kLog2e, scale) : 0;
  };
  float slope = slope_of(q_tile);
  const auto change_scores = [&](int place) {
    // Comparing the float before the loop and keeping the result would occupy a register, and others would spill.
    if (kScores && keep_in_register(__float_as_int(scale_to_cap)) > 0)
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
        for (int i = 0; i < 4; ++i) S_rmem[mma_n][i] = tanh_from_log2(S_rmem[mma_n][i] * scale_to_cap);
    if (!kScores || slopes == nullptr) return;
    const float distance =
        end - 1 - right + warp_id % 4 * 16 + lane_id / 4 - lane_id % 4 * 2 - place * kBlockKV;  // of the first score
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i) S_rmem[mma_n][i] -= slope * fabsf(distance + (i / 2 * 8 - mma_n * 8 - i % 2));
  };

  // Masks S if it is cut: the scores of keys that a row does not see become -inf. `place` is the tile's position if masked;
  // else its place in the order of visits, in which the last tile, the only one that may be cut, comes first.
  const auto mask_if_cut = [&](int place) {
    const bool is_whole = kMasked ? (place + 1) * kBlockKV <= min(end, keys) : place > 0 || end % kBlockKV == 0;
    const bool has_padding = kLengths && (place * kBlockKV < zeros || end + 63 > keys + right);
    if (is_whole && !has_padding && (!kWindow || place * kBlockKV >= end + 63 - width)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row_end = end + warp_id % 4 * 16 + i / 2 * 8 + lane_id / 4;
      int last = kMasked ? min(row_end, keys) - place * kBlockKV : end % kBlockKV;
      if (kLengths && row_end > keys + right) last = 0;  // the row is padding
      const int first = (kLengths ? max(row_end - width, zeros) : row_end - width) - place * kBlockKV;
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
        if (const int key = mma_n * 8 + lane_id % 4 * 2 + i % 2; key >= last || (kWindow && key < first))
          S_rmem[mma_n][i] = -INFINITY;
    }
  };

  // The first step: S and its softmax.
  const auto Q_next_smem = [&] { return Q_smem + Q_next.stage * Traits::kQSize + warpgroup_row * kHeadDim; };
  wait(&Q_full[Q_next.stage], Q_next.parity);
  wait(&K_full[K_next.stage], K_next.parity);
  start_S<Traits>(S_rmem, Q_next_smem(), K_smem + K_next.stage * kKSize);
  wgmma_wait<0>();
  pin(S_rmem);
  release(&K_empty[K_next.stage]);
  K_next.advance();
  change_scores(start);
  mask_if_cut(start);
  softmax<Traits>(exp_rmem, S_rmem, row_max, row_sum, rescale, scale, true);
  pack_P<Traits>(P_rmem, exp_rmem);

  // For each step: its P V, and S and softmax of the next, which may be in the next query tile. kv_tile counts visits.
#pragma unroll 1
  while (true) {
    Element* tile_smem = Q_next_smem();  // [parts][64][kCols]: Q, and then O
    const int Q_buffer = Q_next.stage, num_kv_tiles = kv_tiles.count;
    const bool ends_q_tile = kv_tile == num_kv_tiles - 1;
    const bool is_last = ends_q_tile && next_of(q_tile) >= num_q_tiles;
    const bool is_stored = kv_tile == 0 && q_tile != first_q_tile;  // the previous query tile's O, a step ago
    // After the first tile comes the last one. Next to them are those that only other rows of the CTA see.
    const int first = end - warpgroup_row;
    const int num_hidden = kMasked && kv_tile == start - kv_tiles.begin
                               ? kv_tiles_of(first, first + kBlockQ - 1, start, keys).count - num_kv_tiles
                               : 0;
    for (int i = 0; i < num_hidden; ++i) skip(K_next, K_full, K_empty);
    if (ends_q_tile) {
      if (is_stored) release_Q(Q_buffer ^ 1);  // a query tile of one step: otherwise, the next Q would never arrive
      Q_next.advance();
      if (!is_last) wait(&Q_full[Q_next.stage], Q_next.parity);
      const int next_q_tile = kLengths && is_last ? q_tile : next_of(q_tile);  // which is in the list
      keys = positions_of(next_q_tile);
      zeros = zeros_of(next_q_tile);
      end = end_of(next_q_tile, warpgroup_row);
      start = start_of(end - warpgroup_row + kBlockQ - 1, keys);
      kv_tiles = kv_tiles_of(end, kMasked ? end + 63 : end, start, keys);
      slope = slope_of(next_q_tile);
    }

    // S = Q Kᵀ, and O += P V. Then wait only for S. After the last step, this S is not used.
    if (!is_last) wait(&K_full[K_next.stage], K_next.parity);
    if (!kMasked) named_barrier_sync(turn, 256);
    pin(O_rmem);
    pin(P_rmem);
    start_S<Traits>(S_rmem, Q_next_smem(), K_smem + K_next.stage * kKSize);
    wait(&V_full[V_next.stage], V_next.parity);
    start_PV<Traits>(O_rmem, P_rmem, V_smem + V_next.stage * kVSize, kv_tile > 0);
    if (!kMasked) named_barrier_arrive(next_turn, 256);
    wgmma_wait<1>();
    pin(S_rmem);
    if (!is_last) release(&K_empty[K_next.stage]);
    K_next.advance();
    if (is_stored && !ends_q_tile) release_Q(Q_buffer ^ 1);  // the last O: by now this need not wait
    const int next_place = start - 1 - kv_tile + (kWindow && start - kv_tile > kv_tiles.begin ? 0 : num_kv_tiles);
    change_scores(ends_q_tile ? start : next_place);
    mask_if_cut(ends_q_tile ? start : kMasked ? next_place : kv_tile + 1);

    // Store L: of this query tile, m and l are complete, and only O is not. Rows of the next one start afresh.
    if (ends_q_tile) {
      const float sink = kScores && sinks != nullptr ? sinks[head_of(q_tile)] * kLog2e : -INFINITY;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_sum[half] = group_sum(row_sum[half]);
        const int row = row_of(q_tile) + warpgroup_row + warp_id % 4 * 16 + half * 8 + lane_id / 4;
        const bool has_sink = kScores && row_sum[half] > 0;  // it takes weight only if the row sees a key
        const auto with_sink = [&](float L) {
          const float larger = fmaxf(L, sink);
          return !has_sink ? L : larger + log2f(exp2_approx(L - larger) + exp2_approx(sink - larger));
        };
        if (L_gmem != nullptr && row >= 0 && row < rows_of(q_tile) && lane_id % 4 == 0)
          L_gmem[std::int64_t{head_of_all(q_tile)} * (is_packed ? total : args.seq_len) + first_q_of(q_tile) + row] =
              with_sink(row_max[half] + log2f(row_sum[half])) * 0.693147181f;  // log(2)
        if (has_sink) row_sum[half] += exp2_approx(sink - row_max[half]);      // infinite if O is negligible
        row_max[half] = kFirstGuess;
      }
    }

    // Online softmax.
    const bool redo = softmax<Traits>(exp_rmem, S_rmem, row_max, new_sum, rescale, scale, ends_q_tile);

    wgmma_wait<0>();
    pin(O_rmem);
    pin(P_rmem);  // P V has read it
    release(&V_empty[V_next.stage]);
    V_next.advance();
    for (int i = 0; i < num_hidden; ++i) skip(V_next, V_full, V_empty);
    pack_P<Traits>(P_rmem, exp_rmem);

    if (!ends_q_tile) {
      if (redo) {
        scale_rows<Traits>(O_rmem, rescale);  // O = O · r
        row_sum[0] *= rescale[0];             // l = l · r
        row_sum[1] *= rescale[1];
      }
      row_sum[0] += new_sum[0];  // l += Σ P
      row_sum[1] += new_sum[1];
      ++kv_tile;
      continue;
    }

    // Normalise O, and store it through shared memory, in the place of Q, which this warpgroup has read for the last time.
    const float inverse_sum[2] = {row_sum[0] > 0 ? 1 / row_sum[0] : 0, row_sum[1] > 0 ? 1 / row_sum[1] : 0};  // 1 / l
    scale_rows<Traits>(O_rmem, inverse_sum);
    const int lane = keep_in_register(lane_id);  // otherwise these addresses occupy registers throughout the loop
#pragma unroll
    for (int i = 0; i < Traits::kHeadDimV / 16; ++i) {
      const auto pair = [&](int mma_n, int half) {
        return pack<Element>(O_rmem[mma_n][2 * half], O_rmem[mma_n][2 * half + 1]);
      };
      stmatrix_x4(&tile_smem[smem_offset<Traits::kCols>(warp_id % 4 * 16 + lane % 16, i * 16 + lane / 16 * 8)],
                  pair(2 * i, 0), pair(2 * i, 1), pair(2 * i + 1, 0), pair(2 * i + 1, 1));
    }
    fence_proxy_async();                                          // this thread's writes are visible to TMA,
    named_barrier_sync(warp_id / 4, 128);                         // and so are those of the whole warpgroup
    if (is_leader && row_of(q_tile) + warpgroup_row >= 0) {       // a box must not begin before the tensor
      const int end_q = first_q_of(q_tile) + queries_of(q_tile);  // of a packed sequence, where O_map's rows end
      tma_store(O_map, row_of(q_tile) + warpgroup_row + args.seq_len - rows_of(q_tile), head_of(q_tile),
                is_packed ? end_q : batch_of(q_tile), tile_smem);
      tma_store_commit();
    }
    if (is_last) break;
    row_sum[0] = new_sum[0];
    row_sum[1] = new_sum[1];
    q_tile = next_of(q_tile);
    kv_tile = 0;
  }
  if (!kMasked && turn == 4) named_barrier_sync(turn, 256);  // the last slot that it was given, which it does not need
  if (is_leader) tma_store_wait_read();                      // shared memory exists only as long as the CTA
}

// The bytes of the list. No configuration has query tiles of fewer than 128 rows.
std::size_t list_bytes(const AttentionProblem& problem) {
  if (problem.lengths.empty() && problem.lengths_kv.empty()) return 0;
  return ((problem.seq_len - 1) / 128 + 1) * problem.heads * problem.batch * sizeof(QTile);
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  // If packed, "batch entry" b of K and V begins with row b, and that of O ends before row b: the next one is a row further on.
  const bool is_packed = args.offsets != nullptr;
  const auto map_of = [&](Tensor tensor, int head_dim, int entries, int heads, int rows, int box_rows) {
    if (is_packed) tensor.batch_stride = tensor.row_stride;
    CUtensorMap map;
    if (error == cudaSuccess)
      error = encode_tensor_map<typename Traits::Element, Traits::kCols>(
          map, tensor, head_dim, is_packed ? entries : args.batch, heads, rows, box_rows);
    return map;
  };
  Tensor O = args.O;
  if (is_packed) O.data = O.row<typename Traits::Element>(0, 0, -args.seq_len);
  constexpr int kHeadDim = Traits::kHeadDim, kHeadDimV = Traits::kHeadDimV, kBlockKV = Traits::kBlockKV;
  const CUtensorMap Q_map = map_of(args.Q, kHeadDim, 1, args.heads, is_packed ? args.total : args.seq_len, 64);
  const CUtensorMap K_map = map_of(args.K, kHeadDim, args.total_kv, args.kv_heads, args.seq_len_kv, kBlockKV);
  const CUtensorMap V_map = map_of(args.V, kHeadDimV, args.total_kv, args.kv_heads, args.seq_len_kv, kBlockKV);
  const CUtensorMap O_map = map_of(O, kHeadDimV, args.total + 1, args.heads, args.seq_len, 64);
  // A side without a limit gets a limit that hides nothing.
  const int all = args.seq_len + args.seq_len_kv;
  const auto limit = [&](int keys) { return keys < 0 ? all : std::min(keys, all); };
  const int left = limit(args.window_left), right = args.causal ? 0 : limit(args.window_right);
  const bool has_list = args.lengths != nullptr || args.lengths_kv != nullptr || is_packed;
  const bool is_local = has_list || left < all || (right < all && !args.causal), is_causal = args.causal && !is_local;
  const bool changes_scores = args.softcap > 0 || args.alibi_slopes != nullptr || args.sinks != nullptr;
  auto kernel = is_causal ? flash_attention<Traits, Mask::causal, false> : flash_attention<Traits, Mask::none, false>;
  if (is_local) kernel = flash_attention<Traits, Mask::window, false>;
  if (changes_scores)
    kernel = is_causal ? flash_attention<Traits, Mask::causal, true> : flash_attention<Traits, Mask::window, true>;
  if (has_list)
    kernel = changes_scores ? flash_attention<Traits, Mask::window, true, true>
                            : flash_attention<Traits, Mask::window, false, true>;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  // Launch one CTA on each SM, but no more than there are query tiles, or pairs; with one buffer for Q, one per query tile.
  int device, num_sms;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int num_q_tiles = (args.seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ * args.heads * args.batch;
  const int most = is_causal && num_q_tiles > num_sms ? (num_q_tiles + 1) / 2 : num_q_tiles;
  const int grid = Traits::kQBuffers == 1 ? num_q_tiles : std::min(most, num_sms);
  // exp(softmax_scale · S) = 2^(scale · S), and with a cap, exp(softcap · tanh(…)) = 2^(scale · tanh(…)).
  const float scale = (args.softcap > 0 ? args.softcap : args.softmax_scale) * kLog2e;
  // Multiples of the golden ratio spread evenly. A stride coprime to the number of tiles reaches all of them.
  const int num_kv_tiles = (args.seq_len_kv + Traits::kBlockKV - 1) / Traits::kBlockKV;
  int kv_stride = std::max(1, static_cast<int>(0.618 * num_kv_tiles));
  while (std::gcd(kv_stride, num_kv_tiles) != 1) ++kv_stride;
  QTile* q_tiles = static_cast<QTile*>(args.workspace);
  if (has_list)
    list_q_tiles<Traits><<<num_q_tiles / args.heads, 32, 0, stream>>>(
        args, q_tiles, args.lengths, args.lengths_kv, args.offsets, args.offsets_kv, left + right + 1, right);
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(
      Q_map, K_map, V_map, O_map, args, args.log_sum_exp, scale, num_q_tiles, kv_stride, args.heads / args.kv_heads,
      left + right + 1, right, args.softcap > 0 ? 2 * kLog2e * args.softmax_scale / args.softcap : 0, args.alibi_slopes,
      args.sinks, q_tiles, args.total);
  return cudaGetLastError();
}

template <typename Traits>
auto configuration(const char* name) {
  return flash_ladder::configuration<Traits>(name, launch<Traits>, list_bytes);
}

const Registration registration({
    .source = __FILE__,
    .extends = "hopper_packed",
    .architecture = Architecture::sm_90a,
    .solves = {.head_dim_v = true,
               .causal = true,
               .any_length = true,
               .kv_heads = true,
               .window = true,
               .lengths = true,
               .packed = true,
               .scores = true,
               .log_sum_exp = true},
    .configurations = {configuration<Traits<__half, 64, 3, 80, 4>>("192x80"),
                       configuration<Traits<__nv_bfloat16, 64, 3, 80, 4>>("192x80"),
                       configuration<Traits<__half, 64, 2, 128, 3>>("128x128"),
                       configuration<Traits<__nv_bfloat16, 64, 2, 128, 3>>("128x128"),
                       configuration<Traits<__half, 96, 3, 64, 3>>("192x64"),
                       configuration<Traits<__nv_bfloat16, 96, 3, 64, 3>>("192x64"),
                       configuration<Traits<__half, 128, 3, 64, 3>>("192x64"),
                       configuration<Traits<__nv_bfloat16, 128, 3, 64, 3>>("192x64"),
                       configuration<Traits<__half, 128, 2, 128, 2>>("128x128"),
                       configuration<Traits<__nv_bfloat16, 128, 2, 128, 2>>("128x128"),
                       configuration<Traits<__half, 192, 2, 80, 2>>("128x80"),
                       configuration<Traits<__nv_bfloat16, 192, 2, 80, 2>>("128x80"),
                       configuration<Traits<__half, 192, 2, 96, 2, 2, 128>>("128x96"),
                       configuration<Traits<__nv_bfloat16, 192, 2, 96, 2, 2, 128>>("128x96"),
                       configuration<Traits<__half, 256, 2, 64, 2, 1>>("128x64"),
                       configuration<Traits<__nv_bfloat16, 256, 2, 64, 2, 1>>("128x64")},
});

}  // namespace flash_ladder::hopper_head_dims
