// backward_head_dims
//
// Idea        Rows of Q and K have 64, 96, 128, 192 or 256 elements, and those of V and O as many, or 128 beside 192. For its 16
//             keys, a warp holds dK and dV in (head_dim + head_dim_v) / 2 registers of each lane: too many beyond 128. There, two
//             warps share 16 keys. Each computes P and dS for half of the queries, and then sums half of the columns of dK and
//             dV. It reads the other half of P and dS from shared memory, where dQ needs dS anyway.
// Changed     kHeadDim and kHeadDimV replace one size. The swizzle permutes only as many chunks as divide a row. If warps share
//             keys, P has a tile, too, and one more barrier completes P and dS. The two warps take turns at groups of 16 columns,
//             so that they differ in where a lane begins, and all further offsets are constants.
// Prediction  128 as before. In TFLOP/s, 64 has all exponentials but half of the mma: 0.8 of 128's, and 96 0.95. With shared keys,
//             a fragment of K or V serves four mma and not eight, and all warps of an SM wait at one barrier: 0.75 for 192 and
//             256, and for 192 with 128.

#include <climits>
#include <numeric>

#include "convert.h"
#include "copy_or_zero.h"
#include "gradients.h"
#include "host/backward.h"
#include "philox.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::backward_head_dims {

constexpr int kChunk = 8;  // elements in 16 bytes, the most that a thread moves at once

template <typename Element_, int kHeadDim_, int kHeadDimV_ = kHeadDim_, int kBlock = 64>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = kBlock;                              // query rows per iteration
  static constexpr int kBlockKV = kBlock;                             // keys and values per CTA
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;  // elements in a row of Q and K, and of V and O
  static constexpr int kSplit = kHeadDim > 128 ? 2 : 1;               // warps that share 16 keys, or 16 queries of dQ
  static constexpr int kQueries = kBlockQ / kSplit;                   // of which a warp computes P and dS
  static constexpr int kNumWarps = kBlockKV / 16 * kSplit;
  static constexpr int kNumThreads = kNumWarps * 32;
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kConvertedRows = kNumThreads / kChunksPerRow;  // per CTA of convert_dQ
  // K, V, Q, dO and dS, P if warps share keys, and in fp32 L and D.
  static constexpr int kSmemBytes =
      (2 * kBlock * (kHeadDim + kHeadDimV) + kSplit * kBlockKV * kBlockQ) * sizeof(Element) +
      2 * kBlockQ * sizeof(float);
};

// Where column `col` of a warp's share is, if it is the first of kSplit warps, which take turns at groups of 16 columns. For the
// next warp, it is 16 further on.
template <typename Traits>
__device__ constexpr int column(int col) {
  return col / 16 * 16 * Traits::kSplit + col % 16;
}

// seq_len, rounded up to whole tiles.
template <typename Traits>
__host__ __device__ std::int64_t padded(unsigned seq_len) {
  return (seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ * Traits::kBlockQ;
}

// The sequences of a batch. lengths and lengths_kv [batch] are the rows in use of each entry, or nullptr if all are. Packed
// sequences begin and end at offsets and offsets_kv [batch + 1], and have `total` queries; otherwise, the offsets are nullptr.
struct Sequences {
  const int *lengths, *lengths_kv, *offsets, *offsets_kv;
  std::int64_t total, rows;  // rows: of the workspace, for each head
};

// One of them. A packed one begins with row first_q of Q, O, dO and dQ, and with row first_kv of K, V, dK and dV. In the
// workspace, any of them begins with row first_row.
struct Sequence {
  int seq_len, seq_len_kv, first_q, first_kv;
  std::int64_t first_row;
};

// The first row in the workspace of the sequence that `sequence` others and `before` rows of Q precede. There, each has whole
// tiles, and so less than one tile of padding.
template <typename Traits>
__host__ __device__ std::int64_t first_row_of(std::int64_t sequence, std::int64_t before) {
  return (before / Traits::kBlockQ + sequence) * Traits::kBlockQ;
}

// Sequence number `batch`, of a packed batch or of a padded one.
template <typename Traits>
__device__ Sequence sequence_of(const AttentionArgs& args, const Sequences& sequences, int batch) {
  if (sequences.offsets != nullptr) {
    const int *q = sequences.offsets + batch, *kv = sequences.offsets_kv + batch;
    return {q[1] - q[0], kv[1] - kv[0], q[0], kv[0], first_row_of<Traits>(batch, q[0])};
  }
  return {sequences.lengths != nullptr ? sequences.lengths[batch] : args.seq_len,
          sequences.lengths_kv != nullptr ? sequences.lengths_kv[batch] : args.seq_len_kv, 0, 0,
          first_row_of<Traits>(batch, std::int64_t{batch} * args.seq_len)};
}

// The workspace holds L and D, [heads][rows] each, then the sums of dQ, all in fp32. Of the sums, each 16 rows form a block, in
// the order in which the registers of a warp hold them: [heads][rows / 16][mma_n][D][lane].
template <typename Traits>
__device__ float* row_of_L(const AttentionArgs& args, const Sequences& sequences, int head, std::int64_t row) {
  return static_cast<float*>(args.workspace) + head * sequences.rows + row;
}
template <typename Traits>
__device__ float* row_of_D(const AttentionArgs& args, const Sequences& sequences, int head, std::int64_t row) {
  return row_of_L<Traits>(args, sequences, args.heads + head, row);
}
template <typename Traits>
__device__ float* block_of_dQ(const AttentionArgs& args, const Sequences& sequences, int head, std::int64_t row) {
  return row_of_L<Traits>(args, sequences, 2 * args.heads, 0) + (head * sequences.rows + row) * Traits::kHeadDim;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// The hyperbolic tangent, 1 - 2 / (exp(2x) + 1), to about 2^-22. tanh.approx has 2^-11: with a cap of 50, 1/40.
__device__ inline float tanh_from_exp(float x) { return 1 - __fdividef(2, exp_approx(2 * x) + 1); }

// The offset of element (row, col) of a tile in shared memory, counted in elements from the start of the tile, whose rows
// have kRowSize elements. The 16-byte chunks of a row are permuted, eight at a time. Where the first eight chunks go:
//
// clang-format off
//              chunk   0   1   2   3   4   5   6   7
//   row 0   goes to    0   1   2   3   4   5   6   7      ldmatrix reads one column of this table at a time, the
//   row 1              1   0   3   2   5   4   7   6      same chunk of eight rows. Without the XOR, the eight entries
//   row 2              2   3   0   1   6   7   4   5      of a column would be equal: the same four banks, eight times
//   row 3              3   2   1   0   7   6   5   4      over. With it, they all differ: 8 × 4 banks, each once.
//   row 4              4   5   6   7   0   1   2   3
//   row 5              5   4   7   6   1   0   3   2      Of rows with 4 or 12 chunks, two neighbours begin in different banks
//   row 6              6   7   4   5   2   3   0   1      anyway, and of rows with 2 chunks, four. So only four chunks are
//   row 7              7   6   5   4   3   2   1   0      permuted there, the same way in two rows, or two, in four rows.
// clang-format on
template <int kRowSize>
constexpr int kSwizzled = std::gcd(kRowSize / kChunk, 8);
template <int kRowSize>
__device__ int smem_offset(int row, int col) {
  const int chunk = (col / kChunk) ^ (row / (8 / kSwizzled<kRowSize>) % kSwizzled<kRowSize>);
  return row * kRowSize + chunk * kChunk + col % kChunk;
}

// The same for a fragment that starts at (row, col), both multiples of 8; lane_offset is where this lane reads the fragment
// at (0, 0). Within the columns that the XOR permutes, the column is applied as an XOR itself; all else is added, and
// becomes an immediate in the load instruction.
template <int kRowSize>
__device__ int fragment_offset(int lane_offset, int row, int col) {
  constexpr int kCols = kSwizzled<kRowSize> * kChunk;
  return (lane_offset ^ col % kCols) + row * kRowSize + col / kCols * kCols;
}

// Neighbouring threads that move a row together, 16 bytes per thread at a time.
template <int kRowSize>
constexpr int kLanes = std::gcd(kRowSize / kChunk, 16);

// Starts copying kRows rows of kRowSize elements from global to shared memory. The whole CTA takes part. From the first row on,
// `rows` exist.
template <typename Traits, int kRows, int kRowSize, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element* tile_gmem, std::int64_t row_stride, int rows) {
  static_assert(kRows % (Traits::kNumThreads / kLanes<kRowSize>) == 0);
#pragma unroll
  for (int i = 0; i < kRows; i += Traits::kNumThreads / kLanes<kRowSize>)
#pragma unroll
    for (int j = 0; j < kRowSize; j += kLanes<kRowSize> * kChunk) {
      const int row = i + threadIdx.x / kLanes<kRowSize>, col = j + threadIdx.x % kLanes<kRowSize> * kChunk;
      cp_async_16_or_zero(&tile_smem[smem_offset<kRowSize>(row, col)], &tile_gmem[row * row_stride + col], row < rows);
    }
}

// Starts copying kCount floats, 16 bytes per thread.
template <int kCount>
__device__ void copy_floats(float* smem, const float* gmem) {
  if (threadIdx.x < kCount / 4) cp_async_16(&smem[threadIdx.x * 4], &gmem[threadIdx.x * 4]);
}

// Fragments of a tile X in shared memory. In each ldmatrix, lanes 0–7 supply the row addresses of the first 8×8 matrix,
// lanes 8–15 of the second, and so on. If k runs along the rows of X, the matrices are transposed on the way.

// A = X[16 rows][16 of kRowSize]: K, V, P and dS. The four matrices are the quarters of A: rows 0–7 and 8–15 at the lower eight of
// them, then the same rows at the upper eight.
template <int kRowSize, typename Element>
__device__ void load_A_fragment(std::uint32_t (&A)[4], const Element* X_smem, int first_row, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<kRowSize>(lane_id % 16, lane_id / 16 * 8);
  ldmatrix_x4(A[0], A[1], A[2], A[3], &X_smem[fragment_offset<kRowSize>(lane_offset, first_row, mma_k * 16)]);
}

// B = Xᵀ[16 of head_dim][all rows]: Q and dO. Two matrices, side by side along head_dim, form the B of one mma_n, and four
// matrices form the B of two.
template <typename Traits, int kRowSize, typename Element = typename Traits::Element>
__device__ void load_B_transposed(std::uint32_t (&B)[Traits::kQueries / 8][2], const Element* X_smem, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<kRowSize>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kQueries / 8; mma_n += 2)
    ldmatrix_x4(B[mma_n][0], B[mma_n][1], B[mma_n + 1][0], B[mma_n + 1][1],
                &X_smem[fragment_offset<kRowSize>(lane_offset, mma_n * 8, mma_k * 16)]);
}

// B = X[16 rows][8 · kCount columns]: dO, Q and K. Two matrices, one below the other, form the B of one mma_n. Transposed on
// the way, they give each lane two neighbouring rows in a register.
template <typename Traits, int kRowSize, int kCount, typename Element = typename Traits::Element>
__device__ void load_B_fragments(std::uint32_t (&B)[kCount][2], const Element* X_smem, int mma_k, int first_col = 0) {
  const int lane_id = threadIdx.x % 32, part = threadIdx.x / 32 % Traits::kSplit;
  const int lane_offset = smem_offset<kRowSize>(lane_id % 16, part * 16 + lane_id / 16 * 8);
#pragma unroll
  for (int mma_n = 0; mma_n < kCount; mma_n += 2)
    ldmatrix_x4_trans(
        B[mma_n][0], B[mma_n][1], B[mma_n + 1][0], B[mma_n + 1][1],
        &X_smem[fragment_offset<kRowSize>(lane_offset, mma_k * 16, column<Traits>(first_col + mma_n * 8))]);
}

// A = dS[16 queries][16 keys], from a tile that holds dSᵀ. The quarters of A are transposed: keys 0–7 at the queries 0–7 and
// 8–15, then keys 8–15 at the same queries.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_A_transposed(std::uint32_t (&A)[4], const Element* dS_smem, int first_query, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<Traits::kQueries>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
  ldmatrix_x4_trans(A[0], A[1], A[2], A[3],
                    &dS_smem[fragment_offset<Traits::kQueries>(lane_offset, mma_k * 16, first_query)]);
}

// S = A Bᵀ, for 16 rows of A and kQueries rows of B: Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
template <typename Traits, int kRowSize, typename Element = typename Traits::Element>
__device__ void multiply_rows(float (&S)[Traits::kQueries / 8][4], const Element* A_smem, int first_row,
                              const Element* B_smem) {
  std::uint32_t A_rmem[4], B_rmem[Traits::kQueries / 8][2];  // [A] and [mma_n][B], of one mma_k
#pragma unroll
  for (int mma_k = 0; mma_k < kRowSize / 16; ++mma_k) {
    load_A_fragment<kRowSize>(A_rmem, A_smem, first_row, mma_k);
    load_B_transposed<Traits, kRowSize>(B_rmem, B_smem, mma_k);
#pragma unroll
    for (int mma_n = 0; mma_n < Traits::kQueries / 8; ++mma_n) mma_m16n8k16<Element>(S[mma_n], A_rmem, B_rmem[mma_n]);
  }
}

// C += Pᵀ B, for 16 rows of Pᵀ, all rows of B, and the warp's columns: dV += Pᵀ dO, and dK += dSᵀ Q.
template <typename Traits, int kRowSize, typename Element = typename Traits::Element>
__device__ void multiply_transposed(float (&C)[kRowSize / Traits::kSplit / 8][4],
                                    const std::uint32_t (&P)[Traits::kBlockQ / 16][4], const Element* B_smem) {
  std::uint32_t B_rmem[kRowSize / Traits::kSplit / 8][2];  // [mma_n][B], of one mma_k
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k) {
    load_B_fragments<Traits, kRowSize>(B_rmem, B_smem, mma_k);
#pragma unroll
    for (int mma_n = 0; mma_n < kRowSize / Traits::kSplit / 8; ++mma_n)
      mma_m16n8k16<Element>(C[mma_n], P[mma_k], B_rmem[mma_n]);
  }
}

// Rounds P to 16 bits. Two neighbouring accumulators, 16 keys × 16 queries, become one fragment A of Pᵀ dO: each lane
// already holds the elements that it needs.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void pack_fragments(std::uint32_t (&P)[Traits::kBlockQ / 16][4], const float (&S)[Traits::kQueries / 8][4]) {
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kQueries / 16; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &S[2 * mma_k + i / 2][i % 2 * 2];  // two neighbouring queries
      P[mma_k][i] = pack<Element>(pair[0], pair[1]);
    }
}

// Stores what this warp computes of P or dS, 16 keys × kQueries, to its rows of a tile [kSplit][kBlockKV][kQueries].
template <typename Traits, typename Element = typename Traits::Element>
__device__ void store_fragments(Element* P_smem, int first_row, const std::uint32_t (&P)[Traits::kBlockQ / 16][4]) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kQueries / 16; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<std::uint32_t*>(
          &P_smem[smem_offset<Traits::kQueries>(first_row + i % 2 * 8 + group, mma_k * 16 + i / 2 * 8 + pair)]) =
          P[mma_k][i];
}

// Loads P or dS of the warp's 16 keys and all queries from such a tile.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_fragments(std::uint32_t (&P)[Traits::kBlockQ / 16][4], const Element* P_smem, int first_row) {
  constexpr int kPerPart = Traits::kQueries / 16;
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k)
    load_A_fragment<Traits::kQueries>(P[mma_k], P_smem, mma_k / kPerPart * Traits::kBlockKV + first_row,
                                      mma_k % kPerPart);
}

// Stores a warp's 16 rows of dK or dV, 16 bytes at a time. On their way they replace its rows of a tile in shared memory. From
// the tile's first row on, `rows` exist.
template <typename Traits, int kRowSize, typename Element = typename Traits::Element>
__device__ void store_rows(Element* gmem, std::int64_t row_stride, const float (&C)[kRowSize / Traits::kSplit / 8][4],
                           float scale, Element* tile_smem, int first_row, int rows) {
  constexpr int kCols = kRowSize / Traits::kSplit;
  const int lane_id = threadIdx.x % 32, group = lane_id / 4, pair = lane_id % 4 * 2;
  const int first_col = threadIdx.x / 32 % Traits::kSplit * 16;
#pragma unroll
  for (int mma_n = 0; mma_n < kCols / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<std::uint32_t*>(&tile_smem[smem_offset<kRowSize>(
          first_row + half * 8 + group, first_col + column<Traits>(mma_n * 8) + pair)]) =
          pack<Element>(C[mma_n][2 * half] * scale, C[mma_n][2 * half + 1] * scale);
  __syncwarp();  // the warp's rows are complete
#pragma unroll
  for (int i = 0; i < 16; i += 32 / kLanes<kCols>)
#pragma unroll
    for (int j = 0; j < kCols; j += kLanes<kCols> * kChunk) {
      const int row = first_row + i + lane_id / kLanes<kCols>;
      const int col = first_col + column<Traits>(j + lane_id % kLanes<kCols> * kChunk);
      if (row < rows)
        *reinterpret_cast<uint4*>(&gmem[row * row_stride + col]) =
            *reinterpret_cast<const uint4*>(&tile_smem[smem_offset<kRowSize>(row, col)]);
    }
}

// D = rowsum(dO ∘ O): 16 rows per warp. The sums are the diagonal of O dOᵀ, computed by the mmas that compute dPᵀ: if a row
// sees only one key, O is that row of V, and dP - D must be exactly 0. The tensor cores do 16 times the work, but the
// loads take longer. Then the CTA copies L, and sets its rows of the sums of dQ to 0. Nothing reads those of a tile of padding.
template <typename Traits>
__global__ void row_sums(AttentionArgs args, Gradients gradients, Sequences sequences) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z, first_query = blockIdx.x * Traits::kBlockQ;
  const auto [seq_len, seq_len_kv, first_q, first_kv, first_row] = sequence_of<Traits>(args, sequences, batch);
  if (first_query >= seq_len) return;
  const int warp_row = threadIdx.x / 32 * 16, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, first_q + first_query);  // [kBlockQ][kHeadDimV]
  const Element* O_gmem = args.O.row<Element>(batch, head, first_q + first_query);         // [kBlockQ][kHeadDimV]
  const auto load = [&](const Element* gmem, std::int64_t row_stride, int half, int col) {
    // The last row stands in for those that do not exist. Their P is 0, so their D does not matter.
    const int row = min(warp_row + half * 8 + group, seq_len - 1 - first_query);
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
      row_of_D<Traits>(args, sequences, head, first_row)[first_query + warp_row + half * 8 + group] =
          group % 2 ? sums[half][2 * half + 1] : sums[half][2 * half];

  // L becomes +inf where a query does not exist or sees no key. Then P = exp(S - L) is 0.
  if (const int query = first_query + threadIdx.x; threadIdx.x < Traits::kBlockQ) {
    const std::int64_t first = sequences.offsets != nullptr ? head * sequences.total + first_q
                                                            : (batch * args.heads + head) * std::int64_t{args.seq_len};
    const float L = query < seq_len ? gradients.log_sum_exp[first + query] : -INFINITY;
    row_of_L<Traits>(args, sequences, head, first_row)[query] = L == -INFINITY ? INFINITY : L;
  }

  // The sums of dQ begin with 0.
  float* sums_gmem = block_of_dQ<Traits>(args, sequences, head, first_row + first_query);  // kBlockQ rows
  for (int i = threadIdx.x; i < Traits::kBlockQ * Traits::kHeadDim; i += blockDim.x) sums_gmem[i] = 0;
}

// Query i sees the keys from i + seq_len_kv - seq_len - left to i + seq_len_kv - seq_len + right, if they exist. The lengths
// are those of its sequence. If kScores, a score is changed: softcap [0 for none] and alibi_slopes [heads], or nullptr, as in
// ExtendedArgs. If kDropout, `keep` of 256 weights stay on average, by the mask of dropout_seed and dropout_offset.
template <typename Traits, bool kScores, bool kDropout>
__global__ void __launch_bounds__(Traits::kNumThreads)
    flash_gradients(AttentionArgs args, Gradients gradients, int left, int right, int kv_heads, Sequences sequences,
                    float softcap, const float* alibi_slopes, int keep, std::uint64_t dropout_seed,
                    std::uint32_t dropout_offset) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kQueries = Traits::kQueries;
  constexpr int kHeadDim = Traits::kHeadDim, kHeadDimV = Traits::kHeadDimV, kSplit = Traits::kSplit;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* K_smem = reinterpret_cast<Element*>(smem);                     // [kBlockKV][kHeadDim]
  Element* V_smem = K_smem + kBlockKV * kHeadDim;                         // [kBlockKV][kHeadDimV]
  Element* Q_smem = V_smem + kBlockKV * kHeadDimV;                        // [kBlockQ][kHeadDim]
  Element* dO_smem = Q_smem + kBlockQ * kHeadDim;                         // [kBlockQ][kHeadDimV]
  Element* dS_smem = dO_smem + kBlockQ * kHeadDimV;                       // [kSplit][kBlockKV][kQueries]: dSᵀ
  Element* P_smem = dS_smem + (kSplit - 1) * kBlockKV * kBlockQ;          // the same, if kSplit > 1: Pᵀ
  float* L_smem = reinterpret_cast<float*>(P_smem + kBlockKV * kBlockQ);  // [kBlockQ]
  float* D_smem = L_smem + kBlockQ;                                       // [kBlockQ]

  // What this CTA computes: one tile of keys of one head of K and V of one batch entry.
  const int kv_row = blockIdx.x * kBlockKV, kv_head = blockIdx.y, batch = blockIdx.z;
  const auto [seq_len, seq_len_kv, first_q, first_kv, first_row] = sequence_of<Traits>(args, sequences, batch);
  const int row = first_kv + kv_row;  // of K, V, dK and dV
  const int heads_per_kv = args.heads / kv_heads;
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const int warp_row = threadIdx.x / 32 / kSplit * 16;  // the first of the rows that this warp owns, of keys and of dQ
  const int part = threadIdx.x / 32 % kSplit;           // its number among the warps that own them
  const int warp_query = part * kQueries;               // the first of a tile's queries of which it computes P and dS
  const int warp_part = part * kBlockKV + warp_row;     // the first row of its part of P and dS
  // The first and the last query that see key kv_row, if they exist. For the next key, both are one further on.
  const int first_query = kv_row - (seq_len_kv - seq_len) - right;
  const int last_query = first_query + right + left;
  // [heads][rows / 16][mma_n][D][32]: the sums of dQ, from this lane's first element on
  float* sums_gmem =
      block_of_dQ<Traits>(args, sequences, 0, first_row + warp_row) + part * (2 * 4 * 32) + threadIdx.x % 32;

  const float rescale = kDropout ? 256.0f / keep : 1;

  // [mma_n][D], 16 keys × the warp's columns
  float dK_rmem[kHeadDim / kSplit / 8][4] = {}, dV_rmem[kHeadDimV / kSplit / 8][4] = {};

  // Starts copying Q and L, and dO and D, of a head of Q, as two groups.
  const auto copy_queries = [&](int head, int q_row) {
    const int rows = seq_len - q_row;
    copy_tile<Traits, kBlockQ, kHeadDim>(Q_smem, args.Q.row<Element>(batch, head, first_q + q_row), args.Q.row_stride,
                                         rows);
    copy_floats<kBlockQ>(L_smem, row_of_L<Traits>(args, sequences, head, first_row + q_row));
    cp_async_commit();
    copy_tile<Traits, kBlockQ, kHeadDimV>(dO_smem, gradients.dO.row<Element>(batch, head, first_q + q_row),
                                          gradients.dO.row_stride, rows);
    copy_floats<kBlockQ>(D_smem, row_of_D<Traits>(args, sequences, head, first_row + q_row));
    cp_async_commit();
  };

  // Copy K and V.
  const int num_keys = seq_len_kv - kv_row;  // from the first of the tile on; 0 or less if all are padding
  copy_tile<Traits, kBlockKV, kHeadDim>(K_smem, args.K.row<Element>(batch, kv_head, row), args.K.row_stride, num_keys);
  copy_tile<Traits, kBlockKV, kHeadDimV>(V_smem, args.V.row<Element>(batch, kv_head, row), args.V.row_stride, num_keys);
  cp_async_commit();
  // Of the queries that see one of the tile's keys, the first row of their first tile, and the row after the last of them.
  const int first_q_row = max(first_query, 0) / kBlockQ * kBlockQ;
  const int end_q_row = num_keys > 0 ? min(last_query + kBlockKV, seq_len) : 0;
  const int last_head = (kv_head + 1) * heads_per_kv - 1;  // of Q, that reads this head of K and V
  int head = kv_head * heads_per_kv;
  int q_row = first_q_row;
  if (end_q_row <= first_q_row) head = last_head + 1;  // no query sees the keys: no iteration
  if (head <= last_head) copy_queries(head, q_row);

  // For each Q/dO tile, of each head of Q:
  while (head <= last_head) {
    cp_async_wait<1>();  // this thread's copies of Q, L and, the first time, K and V have arrived
    __syncthreads();     // and so have the copies of all other threads

    // The random bits of this warp's keys, a block for each query. All warps are done with the previous dS, and until the next
    // one is stored, the warp's rows of it hold the blocks.
    std::uint32_t* bits_smem = reinterpret_cast<std::uint32_t*>(&dS_smem[warp_part * kQueries]);  // [kQueries][4]
    for (int query = threadIdx.x % 32; kDropout && query < kQueries; query += 32) {
      static_assert(kDropoutKeys == 16, "a warp's keys have one block per query");
      const auto [x, y, z, w] = dropout_bits(dropout_seed, dropout_offset, batch * args.heads + head,
                                             q_row + warp_query + query, (kv_row + warp_row) / kDropoutKeys);
      *reinterpret_cast<uint4*>(&bits_smem[query * 4]) = make_uint4(x, y, z, w);
    }

    // Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
    float S_rmem[kQueries / 8][4] = {}, dP_rmem[kQueries / 8][4] = {};  // [mma_n][D], 16 keys × kQueries
    multiply_rows<Traits, kHeadDim>(S_rmem, K_smem, warp_row, Q_smem + warp_query * kHeadDim);
    cp_async_wait<0>();  // this thread's copies of dO and D have arrived
    __syncthreads();     // and so have the copies of all other threads
    multiply_rows<Traits, kHeadDimV>(dP_rmem, V_smem, warp_row, dO_smem + warp_query * kHeadDimV);

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
            const int query = warp_query + mma_n * 8 + pair + i;
            if (query < first || query > last) S_rmem[mma_n][2 * half + i] = -INFINITY;
          }
      }

    // P = exp(S - L), and dS = P ∘ (dP - D). Columns of an accumulator are queries. Distances are those from the key at the end
    // of the query's causal mask.
    const float inverse_cap = 1 / softcap;
    const float slope = kScores && alibi_slopes != nullptr ? alibi_slopes[head] : 0;
    const float distance = q_row + warp_query + pair + seq_len_kv - seq_len - (kv_row + warp_row + group);
#pragma unroll
    for (int mma_n = 0; mma_n < kQueries / 8; ++mma_n) {
      const float2 L = *reinterpret_cast<const float2*>(&L_smem[warp_query + mma_n * 8 + pair]);
      const float2 D = *reinterpret_cast<const float2*>(&D_smem[warp_query + mma_n * 8 + pair]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Drop the weight. A lane's keys are `group` and group + 8, whose bytes are in one word (dropout_byte()).
        const std::uint32_t bits = kDropout ? bits_smem[(mma_n * 8 + pair + i % 2) * 4 + group / 2] : 0;
        const bool kept = !kDropout || (bits >> (group % 2 * 8 + i / 2 * 16) & 255) < keep;
        float S = S_rmem[mma_n][i] * args.softmax_scale;
        float dP = (kept ? dP_rmem[mma_n][i] * rescale : 0) - (i % 2 ? D.y : D.x);
        // Change the score, and multiply dS by the derivative of the change.
        if (kScores) {
          const float tanh = softcap > 0 ? tanh_from_exp(S * inverse_cap) : 0;
          const float capped = softcap > 0 ? softcap * tanh : S;
          const float changed = capped - slope * fabsf(distance + (mma_n * 8 + i % 2 - i / 2 * 8));
          S = S == -INFINITY ? S : changed;  // hidden keys stay hidden
          dP *= 1 - tanh * tanh;
        }
        const float P = exp_approx(S - (i % 2 ? L.y : L.x));
        dP_rmem[mma_n][i] = P * dP;       // now it is dS
        S_rmem[mma_n][i] = kept ? P : 0;  // now it is P, without the weights that are dropped
      }
    }

    // P and dS to 16 bits.
    std::uint32_t P_rmem[kBlockQ / 16][4], dS_rmem[kBlockQ / 16][4];  // [mma_k][A]
    pack_fragments<Traits>(P_rmem, S_rmem);
    pack_fragments<Traits>(dS_rmem, dP_rmem);

    // dS to shared memory. All warps are done with the previous one, because they have passed the barriers above.
    if (kDropout) __syncwarp();  // all lanes have read the random bits
    store_fragments<Traits>(dS_smem, warp_part, dS_rmem);
    if (kSplit > 1) {
      store_fragments<Traits>(P_smem, warp_part, P_rmem);
      __syncthreads();  // P and dS of the other queries are complete
      load_fragments<Traits>(P_rmem, P_smem, warp_row);
      load_fragments<Traits>(dS_rmem, dS_smem, warp_row);
    }

    // dV += Pᵀ dO, and dK += dSᵀ Q.
    multiply_transposed<Traits, kHeadDimV>(dV_rmem, P_rmem, dO_smem);
    multiply_transposed<Traits, kHeadDim>(dK_rmem, dS_rmem, Q_smem);

    // dQ += dS K, in memory, where other CTAs add to the same elements: one half of the columns, then the other, which
    // leaves registers for fragments.
    __syncthreads();  // dS is complete, and all warps are done with Q, dO, L and D
    const std::int64_t sums_row = head * sequences.rows + q_row;  // of this tile
    q_row += kBlockQ;
    if (q_row >= end_q_row) {
      q_row = first_q_row;
      ++head;
    }
    if (head <= last_head) copy_queries(head, q_row);
    std::uint32_t A_rmem[kBlockKV / 16][4];  // [mma_k][A], 16 queries × kBlockKV of dS
#pragma unroll
    for (int mma_k = 0; mma_k < kBlockKV / 16; ++mma_k)
      load_A_transposed<Traits>(A_rmem[mma_k], dS_smem + warp_row / kQueries * kBlockKV * kQueries, warp_row % kQueries,
                                mma_k);
    constexpr int kCols = kHeadDim / kSplit / 2;
#pragma unroll
    for (int first_col = 0; first_col < 2 * kCols; first_col += kCols) {
      float dQ_rmem[kCols / 8][4] = {};    // [mma_n][D], 16 queries × kCols
      std::uint32_t K_rmem[kCols / 8][2];  // [mma_n][B], of one mma_k
#pragma unroll
      for (int mma_k = 0; mma_k < kBlockKV / 16; ++mma_k) {
        load_B_fragments<Traits, kHeadDim>(K_rmem, K_smem, mma_k, first_col);
#pragma unroll
        for (int mma_n = 0; mma_n < kCols / 8; ++mma_n)
          mma_m16n8k16<Element>(dQ_rmem[mma_n], A_rmem[mma_k], K_rmem[mma_n]);
      }
#pragma unroll
      for (int mma_n = 0; mma_n < kCols / 8; ++mma_n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          atomicAdd(&sums_gmem[sums_row * kHeadDim + (column<Traits>(first_col + mma_n * 8) / 8 * 4 + i) * 32],
                    dQ_rmem[mma_n][i]);
    }
  }

  // Store dK and dV. Those of padding are 0. A packed sequence has none: the next sequence follows.
  const int num_rows = sequences.offsets != nullptr ? num_keys : args.seq_len_kv - kv_row;  // from the tile's first on
  cp_async_wait<0>();  // if there was no iteration, this thread's copies of K and V arrive only now
  __syncthreads();     // all warps have read K for the last time, or all copies of K and V have arrived
  store_rows<Traits, kHeadDim>(gradients.dK.row<Element>(batch, kv_head, row), gradients.dK.row_stride, dK_rmem,
                               args.softmax_scale, K_smem, warp_row, num_rows);
  store_rows<Traits, kHeadDimV>(gradients.dV.row<Element>(batch, kv_head, row), gradients.dV.row_stride, dV_rmem,
                                rescale, V_smem, warp_row, num_rows);
}

// Converts the sums of dQ: eight columns of a row per thread, which come from one accumulator. Of its registers, the four lanes
// from 4 · group on hold two neighbouring columns each. dQ of padding is 0.
template <typename Traits>
__global__ void convert_dQ(AttentionArgs args, Gradients gradients, Sequences sequences) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z, mma_n = threadIdx.x % Traits::kChunksPerRow;
  const int query = blockIdx.x * Traits::kConvertedRows + threadIdx.x / Traits::kChunksPerRow;
  if (query >= args.seq_len) return;
  const auto [seq_len, seq_len_kv, first_q, first_kv, first_row] = sequence_of<Traits>(args, sequences, batch);
  uint4& dQ = reinterpret_cast<uint4*>(gradients.dQ.row<Element>(batch, head, first_q + query))[mma_n];
  if (query >= seq_len) {
    if (sequences.offsets == nullptr) dQ = {};
    return;
  }
  const int half = query % 16 / 8, group = query % 8;
  const float* sums_gmem =
      block_of_dQ<Traits>(args, sequences, head, first_row + query / 16 * 16) + (mma_n * 4 + half * 2) * 32;
  const float4 even = *reinterpret_cast<const float4*>(&sums_gmem[group * 4]);      // columns 0, 2, 4, 6
  const float4 odd = *reinterpret_cast<const float4*>(&sums_gmem[32 + group * 4]);  // columns 1, 3, 5, 7
  const auto pack_scaled = [&](float low, float high) {
    return pack<Element>(low * args.softmax_scale, high * args.softmax_scale);
  };
  dQ = make_uint4(pack_scaled(even.x, odd.x), pack_scaled(even.y, odd.y), pack_scaled(even.z, odd.z),
                  pack_scaled(even.w, odd.w));
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  const std::int64_t total =
      problem.packed ? std::reduce(problem.lengths.begin(), problem.lengths.end()) : problem.batch * problem.seq_len;
  return problem.heads * first_row_of<Traits>(problem.batch, total) * (2 + Traits::kHeadDim) * sizeof(float);
}

template <typename Traits>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumThreads;
  const bool changes_scores = args.softcap > 0 || args.alibi_slopes != nullptr;
  const bool drops = args.dropout_keep < 256;
  const auto kernel = changes_scores
                          ? drops ? flash_gradients<Traits, true, true> : flash_gradients<Traits, true, false>
                      : drops ? flash_gradients<Traits, false, true>
                              : flash_gradients<Traits, false, false>;
  // More than 48 KB of shared memory has to be requested.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const Gradients& gradients = args.gradients;
  const int q_tiles = padded<Traits>(args.seq_len) / Traits::kBlockQ;
  const int kv_tiles = (args.seq_len_kv - 1) / Traits::kBlockKV + 1;
  const int groups = (args.seq_len - 1) / Traits::kConvertedRows + 1;  // of rows of dQ
  const int left = args.window_left < 0 ? args.seq_len_kv : args.window_left;
  const int right = args.causal ? 0 : args.window_right < 0 ? args.seq_len : args.window_right;
  const std::int64_t total = args.offsets != nullptr ? args.total : std::int64_t{args.batch} * args.seq_len;
  const Sequences sequences = {args.lengths,    args.lengths_kv, args.offsets,
                               args.offsets_kv, total,           first_row_of<Traits>(args.batch, total)};
  row_sums<Traits>
      <<<dim3(q_tiles, args.heads, args.batch), 2 * Traits::kBlockQ, 0, stream>>>(args, gradients, sequences);
  kernel<<<dim3(kv_tiles, args.kv_heads, args.batch), kNumThreads, Traits::kSmemBytes, stream>>>(
      args, gradients, left, right, args.kv_heads, sequences, args.softcap, args.alibi_slopes, args.dropout_keep,
      args.dropout_seed, args.dropout_offset);
  convert_dQ<Traits>
      <<<dim3(groups, args.heads, args.batch), Traits::kConvertedRows * Traits::kChunksPerRow, 0, stream>>>(
          args, gradients, sequences);
  return cudaGetLastError();
}

template <typename Traits>
auto configuration(const char* name) {
  return flash_ladder::configuration<Traits>(name, backward_launch<launch<Traits>>, workspace_bytes<Traits>);
}

const BackwardRegistration registration({
    .source = __FILE__,
    .extends = "backward_dropout",
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
    // Those of 32 rows fit in the 99 KB of shared memory that a CTA gets on sm_86 and sm_89.
    .configurations = {configuration<Traits<__half, 64>>("64x64"), configuration<Traits<__nv_bfloat16, 64>>("64x64"),
                       configuration<Traits<__half, 96>>("64x64"), configuration<Traits<__nv_bfloat16, 96>>("64x64"),
                       configuration<Traits<__half, 128>>("64x64"), configuration<Traits<__nv_bfloat16, 128>>("64x64"),
                       configuration<Traits<__half, 192>>("64x64"), configuration<Traits<__nv_bfloat16, 192>>("64x64"),
                       configuration<Traits<__half, 192, 192, 32>>("32x32"),
                       configuration<Traits<__nv_bfloat16, 192, 192, 32>>("32x32"),
                       configuration<Traits<__half, 192, 128>>("64x64"),
                       configuration<Traits<__nv_bfloat16, 192, 128>>("64x64"),
                       configuration<Traits<__half, 256>>("64x64"), configuration<Traits<__nv_bfloat16, 256>>("64x64"),
                       configuration<Traits<__half, 256, 256, 32>>("32x32"),
                       configuration<Traits<__nv_bfloat16, 256, 256, 32>>("32x32")},
});

}  // namespace flash_ladder::backward_head_dims
