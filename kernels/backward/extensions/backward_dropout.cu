// backward_dropout
//
// Idea        Dropout's mask is a function of the position of a weight (common/philox.h), so the backward pass makes it again
//             instead of reading it: dV gets the weights that are left, and dP is hidden where the forward pass hid P. A block
//             of random bits belongs to a query and 16 keys, and a warp owns 16 keys. So each lane makes the blocks of two
//             queries, and the warp's rows of dS, which are free at that time, pass them on to the lanes that need them.
// Changed     A third template parameter. An iteration begins with the random bits, and P and dS take a byte of them for each
//             weight. dV is multiplied by 256 / keep at the end.
// Prediction  Without dropout, as fast as backward_scores. With dropout, 0.95 of the speed: a lane's two blocks are about 200
//             instructions, and its weights as many, in addition to 1,200 that mostly wait for shared memory.

#include <climits>
#include <numeric>

#include "convert.h"
#include "copy_or_zero.h"
#include "gradients.h"
#include "host/backward.h"
#include "philox.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::backward_dropout {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 64;   // query rows per iteration
  static constexpr int kBlockKV = 64;  // keys and values per CTA
  static constexpr int kHeadDim = 128;
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a thread moves at once
  static constexpr int kChunksPerRow = kHeadDim / kChunk;
  static constexpr int kNumWarps = 4;
  static constexpr int kNumThreads = kNumWarps * 32;
  static constexpr int kConvertedRows = kNumThreads / kChunksPerRow;  // per CTA of convert_dQ
  // K, V, Q, dO and dS, and in fp32 L and D.
  static constexpr int kSmemBytes =
      (2 * (kBlockKV + kBlockQ) * kHeadDim + kBlockKV * kBlockQ) * sizeof(Element) + 2 * kBlockQ * sizeof(float);
  static_assert(kBlockKV == kNumWarps * 16 && kBlockQ == kNumWarps * 16, "each warp owns one mma tile of either");
};

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
// have kRowSize elements. The 16-byte chunks of a row are permuted. Where the first eight chunks go:
//
// clang-format off
//              chunk   0   1   2   3   4   5   6   7
//   row 0   goes to    0   1   2   3   4   5   6   7      ldmatrix reads one column of this table at a time, the
//   row 1              1   0   3   2   5   4   7   6      same chunk of eight rows. Without the XOR, the eight entries
//   row 2              2   3   0   1   6   7   4   5      of a column would be equal: the same four banks, eight times
//   row 3              3   2   1   0   7   6   5   4      over. With it, they all differ: 8 × 4 banks, each once.
//   row 4              4   5   6   7   0   1   2   3
//   row 5              5   4   7   6   1   0   3   2      A row of dS has only these eight chunks, 128 bytes. In the other
//   row 6              6   7   4   5   2   3   0   1      tiles, chunks 8 to 15 do the same, 128 bytes further on.
//   row 7              7   6   5   4   3   2   1   0
// clang-format on
template <int kRowSize>
__device__ int smem_offset(int row, int col) {
  static_assert(kRowSize % 64 == 0, "the XOR permutes eight chunks of eight elements");
  const int chunk = (col / 8) ^ (row % 8);
  return row * kRowSize + chunk * 8 + col % 8;
}

// The same for a fragment that starts at (row, col), both multiples of 8; lane_offset is where this lane reads the fragment
// at (0, 0). Within the 64 columns that the XOR permutes, the column is applied as an XOR itself; all else is added, and
// becomes an immediate in the load instruction.
template <int kRowSize>
__device__ int fragment_offset(int lane_offset, int row, int col) {
  return (lane_offset ^ col % 64) + row * kRowSize + col / 64 * 64;
}

// Starts copying kRows rows of kHeadDim elements from global to shared memory, 16 bytes per thread at a time. The whole CTA
// takes part: 16 neighbouring threads read one row. From the first row on, `rows` exist.
template <typename Traits, int kRows, typename Element = typename Traits::Element>
__device__ void copy_tile(Element* tile_smem, const Element* tile_gmem, std::int64_t row_stride, int rows) {
#pragma unroll
  for (int i = 0; i < kRows * Traits::kChunksPerRow / Traits::kNumThreads; ++i) {
    const int row = (i * Traits::kNumThreads + threadIdx.x) / Traits::kChunksPerRow;
    const int col = (i * Traits::kNumThreads + threadIdx.x) % Traits::kChunksPerRow * Traits::kChunk;
    cp_async_16_or_zero(&tile_smem[smem_offset<Traits::kHeadDim>(row, col)], &tile_gmem[row * row_stride + col],
                        row < rows);
  }
}

// Starts copying kCount floats, 16 bytes per thread.
template <int kCount>
__device__ void copy_floats(float* smem, const float* gmem) {
  if (threadIdx.x < kCount / 4) cp_async_16(&smem[threadIdx.x * 4], &gmem[threadIdx.x * 4]);
}

// Fragments of a tile X in shared memory. In each ldmatrix, lanes 0–7 supply the row addresses of the first 8×8 matrix,
// lanes 8–15 of the second, and so on. If k runs along the rows of X, the matrices are transposed on the way.

// A = X[16 rows][16 of head_dim]: K and V. The four matrices are the quarters of A: rows 0–7 and 8–15 at the lower eight of
// head_dim, then the same rows at the upper eight.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_A_fragment(std::uint32_t (&A)[4], const Element* X_smem, int first_row, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<Traits::kHeadDim>(lane_id % 16, lane_id / 16 * 8);
  ldmatrix_x4(A[0], A[1], A[2], A[3], &X_smem[fragment_offset<Traits::kHeadDim>(lane_offset, first_row, mma_k * 16)]);
}

// B = Xᵀ[16 of head_dim][all rows]: Q and dO. Two matrices, side by side along head_dim, form the B of one mma_n, and four
// matrices form the B of two.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_B_transposed(std::uint32_t (&B)[Traits::kBlockQ / 8][2], const Element* X_smem, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<Traits::kHeadDim>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kBlockQ / 8; mma_n += 2)
    ldmatrix_x4(B[mma_n][0], B[mma_n][1], B[mma_n + 1][0], B[mma_n + 1][1],
                &X_smem[fragment_offset<Traits::kHeadDim>(lane_offset, mma_n * 8, mma_k * 16)]);
}

// B = X[16 rows][8 · kCount columns]: dO, Q and K. Two matrices, one below the other, form the B of one mma_n. Transposed on
// the way, they give each lane two neighbouring rows in a register.
template <typename Traits, int kCount, typename Element = typename Traits::Element>
__device__ void load_B_fragments(std::uint32_t (&B)[kCount][2], const Element* X_smem, int mma_k, int first_col = 0) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<Traits::kHeadDim>(lane_id % 16, lane_id / 16 * 8);
#pragma unroll
  for (int mma_n = 0; mma_n < kCount; mma_n += 2)
    ldmatrix_x4_trans(B[mma_n][0], B[mma_n][1], B[mma_n + 1][0], B[mma_n + 1][1],
                      &X_smem[fragment_offset<Traits::kHeadDim>(lane_offset, mma_k * 16, first_col + mma_n * 8)]);
}

// A = dS[16 queries][16 keys], from a tile that holds dSᵀ. The quarters of A are transposed: keys 0–7 at the queries 0–7 and
// 8–15, then keys 8–15 at the same queries.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_A_transposed(std::uint32_t (&A)[4], const Element* dS_smem, int first_query, int mma_k) {
  const int lane_id = threadIdx.x % 32;
  const int lane_offset = smem_offset<Traits::kBlockQ>(lane_id / 16 * 8 + lane_id % 8, lane_id / 8 % 2 * 8);
  ldmatrix_x4_trans(A[0], A[1], A[2], A[3],
                    &dS_smem[fragment_offset<Traits::kBlockQ>(lane_offset, mma_k * 16, first_query)]);
}

// S = A Bᵀ, for 16 rows of A and all rows of B: Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void multiply_rows(float (&S)[Traits::kBlockQ / 8][4], const Element* A_smem, int first_row,
                              const Element* B_smem) {
  std::uint32_t A_rmem[4], B_rmem[Traits::kBlockQ / 8][2];  // [A] and [mma_n][B], of one mma_k
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 16; ++mma_k) {
    load_A_fragment<Traits>(A_rmem, A_smem, first_row, mma_k);
    load_B_transposed<Traits>(B_rmem, B_smem, mma_k);
#pragma unroll
    for (int mma_n = 0; mma_n < Traits::kBlockQ / 8; ++mma_n) mma_m16n8k16<Element>(S[mma_n], A_rmem, B_rmem[mma_n]);
  }
}

// C += Pᵀ B, for 16 rows of Pᵀ and all rows of B: dV += Pᵀ dO, and dK += dSᵀ Q.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void multiply_transposed(float (&C)[Traits::kHeadDim / 8][4],
                                    const std::uint32_t (&P)[Traits::kBlockQ / 16][4], const Element* B_smem) {
  std::uint32_t B_rmem[Traits::kHeadDim / 8][2];  // [mma_n][B], of one mma_k
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockQ / 16; ++mma_k) {
    load_B_fragments<Traits>(B_rmem, B_smem, mma_k);
#pragma unroll
    for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n) mma_m16n8k16<Element>(C[mma_n], P[mma_k], B_rmem[mma_n]);
  }
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

// Stores a warp's 16 rows of dK or dV, 16 bytes at a time. On their way they replace its rows of a tile in shared memory. From
// the tile's first row on, `rows` exist.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void store_rows(Element* gmem, std::int64_t row_stride, const float (&C)[Traits::kHeadDim / 8][4],
                           float scale, Element* tile_smem, int first_row, int rows) {
  const int lane_id = threadIdx.x % 32, group = lane_id / 4, pair = lane_id % 4 * 2;
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<std::uint32_t*>(
          &tile_smem[smem_offset<Traits::kHeadDim>(first_row + half * 8 + group, mma_n * 8 + pair)]) =
          pack<Element>(C[mma_n][2 * half] * scale, C[mma_n][2 * half + 1] * scale);
  __syncwarp();  // the warp's rows are complete
#pragma unroll
  for (int i = 0; i < 16; i += 32 / Traits::kChunksPerRow) {  // two rows at a time: 16 lanes write one row
    const int row = first_row + i + lane_id / Traits::kChunksPerRow;
    const int col = lane_id % Traits::kChunksPerRow * Traits::kChunk;
    if (row < rows)
      *reinterpret_cast<uint4*>(&gmem[row * row_stride + col]) =
          *reinterpret_cast<const uint4*>(&tile_smem[smem_offset<Traits::kHeadDim>(row, col)]);
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
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, first_q + first_query);  // [kBlockQ][kHeadDim]
  const Element* O_gmem = args.O.row<Element>(batch, head, first_q + first_query);         // [kBlockQ][kHeadDim]
  const auto load = [&](const Element* gmem, std::int64_t row_stride, int half, int col) {
    // The last row stands in for those that do not exist. Their P is 0, so their D does not matter.
    const int row = min(warp_row + half * 8 + group, seq_len - 1 - first_query);
    return *reinterpret_cast<const std::uint32_t*>(&gmem[row * row_stride + col + pair]);
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
  for (int i = threadIdx.x; i < Traits::kBlockQ * Traits::kHeadDim; i += Traits::kNumThreads) sums_gmem[i] = 0;
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
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;

  extern __shared__ __align__(16) unsigned char smem[];
  Element* K_smem = reinterpret_cast<Element*>(smem);                      // [kBlockKV][kHeadDim]
  Element* V_smem = K_smem + kBlockKV * kHeadDim;                          // [kBlockKV][kHeadDim]
  Element* Q_smem = V_smem + kBlockKV * kHeadDim;                          // [kBlockQ][kHeadDim]
  Element* dO_smem = Q_smem + kBlockQ * kHeadDim;                          // [kBlockQ][kHeadDim]
  Element* dS_smem = dO_smem + kBlockQ * kHeadDim;                         // [kBlockKV][kBlockQ]: dSᵀ
  float* L_smem = reinterpret_cast<float*>(dS_smem + kBlockKV * kBlockQ);  // [kBlockQ]
  float* D_smem = L_smem + kBlockQ;                                        // [kBlockQ]

  // What this CTA computes: one tile of keys of one head of K and V of one batch entry.
  const int kv_row = blockIdx.x * kBlockKV, kv_head = blockIdx.y, batch = blockIdx.z;
  const auto [seq_len, seq_len_kv, first_q, first_kv, first_row] = sequence_of<Traits>(args, sequences, batch);
  const int row = first_kv + kv_row;  // of K, V, dK and dV
  const int heads_per_kv = args.heads / kv_heads;
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const int warp_row = threadIdx.x / 32 * 16;  // the first of the rows that this warp owns, of keys and of dQ
  // The first and the last query that see key kv_row, if they exist. For the next key, both are one further on.
  const int first_query = kv_row - (seq_len_kv - seq_len) - right;
  const int last_query = first_query + right + left;
  // [heads][rows / 16][mma_n][D][32]: the sums of dQ, from this lane's first element on
  float* sums_gmem = block_of_dQ<Traits>(args, sequences, 0, first_row + warp_row) + threadIdx.x % 32;

  const float rescale = kDropout ? 256.0f / keep : 1;

  float dK_rmem[kHeadDim / 8][4] = {}, dV_rmem[kHeadDim / 8][4] = {};  // [mma_n][D], 16 keys × kHeadDim

  // Starts copying Q and L, and dO and D, of a head of Q, as two groups.
  const auto copy_queries = [&](int head, int q_row) {
    const int rows = seq_len - q_row;
    copy_tile<Traits, kBlockQ>(Q_smem, args.Q.row<Element>(batch, head, first_q + q_row), args.Q.row_stride, rows);
    copy_floats<kBlockQ>(L_smem, row_of_L<Traits>(args, sequences, head, first_row + q_row));
    cp_async_commit();
    copy_tile<Traits, kBlockQ>(dO_smem, gradients.dO.row<Element>(batch, head, first_q + q_row),
                               gradients.dO.row_stride, rows);
    copy_floats<kBlockQ>(D_smem, row_of_D<Traits>(args, sequences, head, first_row + q_row));
    cp_async_commit();
  };

  // Copy K and V.
  const int num_keys = seq_len_kv - kv_row;  // from the first of the tile on; 0 or less if all are padding
  copy_tile<Traits, kBlockKV>(K_smem, args.K.row<Element>(batch, kv_head, row), args.K.row_stride, num_keys);
  copy_tile<Traits, kBlockKV>(V_smem, args.V.row<Element>(batch, kv_head, row), args.V.row_stride, num_keys);
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
    std::uint32_t* bits_smem = reinterpret_cast<std::uint32_t*>(&dS_smem[warp_row * kBlockQ]);  // [kBlockQ][4]
    for (int query = threadIdx.x % 32; kDropout && query < kBlockQ; query += 32) {
      static_assert(kDropoutKeys == 16, "a warp's keys have one block per query");
      const auto [x, y, z, w] = dropout_bits(dropout_seed, dropout_offset, batch * args.heads + head, q_row + query,
                                             (kv_row + warp_row) / kDropoutKeys);
      *reinterpret_cast<uint4*>(&bits_smem[query * 4]) = make_uint4(x, y, z, w);
    }

    // Sᵀ = K Qᵀ, and dPᵀ = V dOᵀ.
    float S_rmem[kBlockQ / 8][4] = {}, dP_rmem[kBlockQ / 8][4] = {};  // [mma_n][D], 16 keys × kBlockQ
    multiply_rows<Traits>(S_rmem, K_smem, warp_row, Q_smem);
    cp_async_wait<0>();  // this thread's copies of dO and D have arrived
    __syncthreads();     // and so have the copies of all other threads
    multiply_rows<Traits>(dP_rmem, V_smem, warp_row, dO_smem);

    // Hide the keys outside a query's window, and those that do not exist: P = 0, and so is dS.
    if (num_keys < kBlockKV || q_row < first_query + kBlockKV - 1 || q_row + kBlockQ - 1 > last_query)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = warp_row + half * 8 + group;
        // Of this tile's queries, the first and the last one that see the key.
        const int first = key < num_keys ? first_query + key - q_row : kBlockQ, last = last_query + key - q_row;
#pragma unroll
        for (int mma_n = 0; mma_n < kBlockQ / 8; ++mma_n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int query = mma_n * 8 + pair + i;
            if (query < first || query > last) S_rmem[mma_n][2 * half + i] = -INFINITY;
          }
      }

    // P = exp(S - L), and dS = P ∘ (dP - D). Columns of an accumulator are queries. Distances are those from the key at the end
    // of the query's causal mask.
    const float inverse_cap = 1 / softcap;
    const float slope = kScores && alibi_slopes != nullptr ? alibi_slopes[head] : 0;
    const float distance = q_row + pair + seq_len_kv - seq_len - (kv_row + warp_row + group);
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockQ / 8; ++mma_n) {
      const float2 L = *reinterpret_cast<const float2*>(&L_smem[mma_n * 8 + pair]);
      const float2 D = *reinterpret_cast<const float2*>(&D_smem[mma_n * 8 + pair]);
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
#pragma unroll
    for (int mma_k = 0; mma_k < kBlockQ / 16; ++mma_k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp_row + i % 2 * 8 + group, query = mma_k * 16 + i / 2 * 8 + pair;
        *reinterpret_cast<std::uint32_t*>(&dS_smem[smem_offset<kBlockQ>(key, query)]) = dS_rmem[mma_k][i];
      }

    // dV += Pᵀ dO, and dK += dSᵀ Q.
    multiply_transposed<Traits>(dV_rmem, P_rmem, dO_smem);
    multiply_transposed<Traits>(dK_rmem, dS_rmem, Q_smem);

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
      load_A_transposed<Traits>(A_rmem[mma_k], dS_smem, warp_row, mma_k);
#pragma unroll
    for (int first_col = 0; first_col < kHeadDim; first_col += kHeadDim / 2) {
      float dQ_rmem[kHeadDim / 16][4] = {};    // [mma_n][D], 16 queries × half of kHeadDim
      std::uint32_t K_rmem[kHeadDim / 16][2];  // [mma_n][B], of one mma_k
#pragma unroll
      for (int mma_k = 0; mma_k < kBlockKV / 16; ++mma_k) {
        load_B_fragments<Traits>(K_rmem, K_smem, mma_k, first_col);
#pragma unroll
        for (int mma_n = 0; mma_n < kHeadDim / 16; ++mma_n)
          mma_m16n8k16<Element>(dQ_rmem[mma_n], A_rmem[mma_k], K_rmem[mma_n]);
      }
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 16; ++mma_n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          atomicAdd(&sums_gmem[sums_row * kHeadDim + ((first_col / 8 + mma_n) * 4 + i) * 32], dQ_rmem[mma_n][i]);
    }
  }

  // Store dK and dV. Those of padding are 0. A packed sequence has none: the next sequence follows.
  const int num_rows = sequences.offsets != nullptr ? num_keys : args.seq_len_kv - kv_row;  // from the tile's first on
  cp_async_wait<0>();  // if there was no iteration, this thread's copies of K and V arrive only now
  __syncthreads();     // all warps have read K for the last time, or all copies of K and V have arrived
  store_rows<Traits>(gradients.dK.row<Element>(batch, kv_head, row), gradients.dK.row_stride, dK_rmem,
                     args.softmax_scale, K_smem, warp_row, num_rows);
  store_rows<Traits>(gradients.dV.row<Element>(batch, kv_head, row), gradients.dV.row_stride, dV_rmem, rescale, V_smem,
                     warp_row, num_rows);
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
  row_sums<Traits><<<dim3(q_tiles, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients, sequences);
  kernel<<<dim3(kv_tiles, args.kv_heads, args.batch), kNumThreads, Traits::kSmemBytes, stream>>>(
      args, gradients, left, right, args.kv_heads, sequences, args.softcap, args.alibi_slopes, args.dropout_keep,
      args.dropout_seed, args.dropout_offset);
  convert_dQ<Traits><<<dim3(groups, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients, sequences);
  return cudaGetLastError();
}

const BackwardRegistration registration({
    .source = __FILE__,
    .extends = "backward_scores",
    .deterministic = false,  // the CTAs of a head add to dQ in any order
    .solves = {.causal = true,
               .any_length = true,
               .kv_heads = true,
               .window = true,
               .lengths = true,
               .packed = true,
               .scores = true,
               .dropout = true},
    .configurations = {configuration<Traits<__half>>("64x64", backward_launch<launch<Traits<__half>>>,
                                                     workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("64x64", backward_launch<launch<Traits<__nv_bfloat16>>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::backward_dropout
