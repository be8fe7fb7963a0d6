// fp8
//
// Idea        With 8-bit numbers, a wgmma takes twice as many values of k in the same time, and a tile has half as many
//             bytes. e4m3 has three bits of mantissa and ends at 448, so each head of Q, K and V has a scale that
//             brings its largest element near 448: S is multiplied by the scales of Q and K, O by the scale of V.
// Changed     wgmma takes 8-bit operands only K-major, which V is not: the three warps beside the producer transpose it, with its
//             keys in the order in which a lane has P. They also give it columns of ones, so that P V includes the sums of P as
//             rounded. P reaches 448 and no further, so a row's first tile uses the true maximum. Q is in registers, as in
//             q_fragments; O is twice as wide and has its own buffer; the consumers do not alternate. The rest is as in 27.
// Prediction  A tile of 192 x 64 keeps the tensor cores busy for 792 clocks instead of 1,536, the exponential unit for 768
//             as before, and shared memory for about 700. They run concurrently, so 1.7x of 27 at 4096 and more at 16,384.

#include <algorithm>

#include "convert.h"
#include "hints.h"
#include "hopper/fp8.h"
#include "hopper/mbarrier.h"
#include "hopper/tensor_map.h"
#include "hopper/tma.h"
#include "hopper/warpgroup.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::fp8 {

template <typename Element_>
struct Traits {
  using Element = Element_;                        // of Q, K and V: 128 bytes per row
  using Output = __half;                           // of O
  static constexpr int kConsumers = 3;             // warpgroups that compute
  static constexpr int kBlockQ = kConsumers * 64;  // query rows per CTA: the rows of one wgmma for each of them
  static constexpr int kBlockKV = 64;              // keys and values per tile
  static constexpr int kStages = 3;                // tiles in each of the rings of K, V and transposed V
  static constexpr int kHeadDim = 128;
  static constexpr int kTransposers = 3;  // warps that transpose V: all of the first four but the one that copies
  static constexpr int kNumWarps =
      4 + kConsumers * 4;                        // the producer's warpgroup, which also transposes, and the consumers'
  static constexpr int kProducerRegisters = 56;  // per thread
  static constexpr int kConsumerRegisters = 152;
  static constexpr int kQSize = kBlockQ * kHeadDim;    // elements, which are bytes
  static constexpr int kKVSize = kBlockKV * kHeadDim;  // in a tile of K or V
  static constexpr int kVtRows = kHeadDim + 8;         // of transposed V: the columns of V, and eight of ones
  static constexpr int kVtSize = kVtRows * kBlockKV;
  static constexpr int kOBytes = kBlockQ * kHeadDim * sizeof(Output);
  static constexpr int kNumBarriers = 2 + 6 * kStages;
  static constexpr int kSmemBytes = kQSize + kStages * (2 * kKVSize + kVtSize) + kOBytes + kNumBarriers * 8;
};

// The offset of the 16-byte chunk `chunk` of a row, for rows of kRowBytes, 64 or 128, with the swizzle of the same
// width. hopper/wgmma.h has the picture for 128; the swizzle for 64 is the same with four chunks and rows in pairs.
template <int kRowBytes>
__device__ int chunk_offset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ row * kRowBytes / 128 % (kRowBytes / 16)) * 16;
}

// The offset of element (row, col) of a warpgroup's 64 rows of O in shared memory, counted in elements, [2][64][64].
// The XOR is the 128-byte swizzle; hopper/wgmma.h has the picture.
__device__ inline int smem_offset(int row, int col) {
  constexpr int kRows = 64, kCols = 64, kChunk = 8;  // a row is 128 bytes; the XOR permutes its chunks of 16
  const int chunk = ((col / kChunk) ^ row) % 8;
  return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;
}

// Waits until a phase of the barrier has ended: the first if parity is 0, the second if it is 1, the third if 0, and so on.
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) continue;
}

// The pipeline state of a ring of buffers: the next buffer, and the parity of the barrier phase to wait for. A consumer
// begins with the first phase of `full`. A producer begins as if a phase of parity 1 of `empty` had ended: all are empty.
template <int kStages>
struct PipelineState {
  int parity, stage = 0;
  __device__ void advance() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

// Maximum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

// Loads this warp's 16 rows of Q_smem [64][128] into registers, as fragments A.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void load_Q(std::uint32_t (&Q_rmem)[Traits::kHeadDim / 32][4], const Element* Q_smem) {
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16, half = threadIdx.x / 16 % 2;
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 32; ++mma_k) {
    std::uint32_t(&A)[4] = Q_rmem[mma_k];
    ldmatrix_x4(A[0], A[1], A[2], A[3], &Q_smem[chunk_offset<128>(row, mma_k * 2 + half)]);
  }
}

// Starts S = Q Kᵀ for this warp's rows of Q and K_smem [kBlockKV][128]. Each wgmma takes 32 columns of head_dim, 32 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_S(float (&S_rmem)[Traits::kBlockKV / 8][4], std::uint32_t (&Q_rmem)[Traits::kHeadDim / 32][4],
                        const Element* K_smem) {
  const std::uint64_t K = row_descriptor<128>(K_smem);
  pin(S_rmem);
  pin(Q_rmem);
  __syncwarp();   // lanes may get here at different times, and wgmma needs the whole warp (.aligned)
  wgmma_fence();  // the softmax has read the previous S
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 32; ++mma_k)
    wgmma_e4m3(S_rmem, Q_rmem[mma_k], advance(K, mma_k * 32), mma_k > 0);
  wgmma_commit();
}

// Starts O += P V, or O = P V, with Vt_smem [kVtRows][kBlockKV], V transposed. Each wgmma takes 32 keys, 32 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_PV(float (&O_rmem)[Traits::kVtRows / 8][4], std::uint32_t (&P_rmem)[Traits::kBlockKV / 32][4],
                         const Element* Vt_smem, bool accumulate) {
  const std::uint64_t Vt = row_descriptor<Traits::kBlockKV>(Vt_smem);
  pin(O_rmem);
  pin(P_rmem);
  __syncwarp();
  wgmma_fence();  // P has been packed, and O rescaled
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 32; ++mma_k)
    wgmma_e4m3(O_rmem, P_rmem[mma_k], advance(Vt, mma_k * 32), mma_k > 0 || accumulate);
  wgmma_commit();
}

// Transposes this warp's share of V_smem [kBlockKV][128] into Vt_smem [128][kBlockKV]: every kTransposers-th group of
// 16 columns. The order of each 16 keys is:
//
//     place in Vt    0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15      4 t … 4 t + 3: what lane t of
//     key            0   1   8   9   2   3  10  11   4   5  12  13   6   7  14  15      four has of S, in its order
//
// ldmatrix treats two neighbouring columns as one 16-bit element and transposes those: a lane gets two keys' bytes of columns 2
// g and 2 g + 1, where g = lane / 4, and of the keys 8 further on in the next register. Byte by byte, they become the words of
// the two columns, four keys each, which stmatrix writes as rows. It writes eight at a time: the even columns of g < 4 and the
// odd ones of g >= 4, or the other way round, because the eight rows of columns 0, 2 … 14 would share four groups of banks.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void transpose_V(Element* Vt_smem, const Element* V_smem, int warp) {
  const int lane = threadIdx.x % 32, first = lane < 16 ? 0x6420 : 0x7531, second = first ^ 0x1111;
  const int col = lane % 8 * 2 + (lane / 8 ^ lane / 4) % 2, half = lane / 16;
#pragma unroll 1
  for (int cols = warp; cols < Traits::kHeadDim / 16; cols += Traits::kTransposers) {
    std::uint32_t R[Traits::kBlockKV / 32][4];  // [32 keys][8 of them]
#pragma unroll
    for (int keys = 0; keys < Traits::kBlockKV / 32; ++keys)
      ldmatrix_x4_trans(R[keys][0], R[keys][1], R[keys][2], R[keys][3],
                        &V_smem[chunk_offset<128>(keys * 32 + lane, cols)]);
#pragma unroll
    for (int keys = 0; keys < Traits::kBlockKV / 32; ++keys)
      stmatrix_x4(&Vt_smem[chunk_offset<Traits::kBlockKV>(cols * 16 + col, keys * 2 + half)],
                  __byte_perm(R[keys][0], R[keys][1], first), __byte_perm(R[keys][0], R[keys][1], second),
                  __byte_perm(R[keys][2], R[keys][3], first), __byte_perm(R[keys][2], R[keys][3], second));
  }
}

// Online softmax: computes the exponentials 2^(scale · S - row_max) as P in 8 bits. Four neighbouring accumulators of S, 16 rows ×
// 32 keys, become one fragment A of P V: each lane uses the four of 16 keys that it has in place of those that the fragment calls
// for, and transpose_V() puts the keys in that order. If one is 448, the largest value there is, or in a row's first tile, row_max
// becomes the maximum minus 5, and they are computed again: the largest is then 2^5, later ones may be 14 times as large, and those
// down to 2^-11 of it keep three bits. Returns whether they were; if so, the sums so far, and O, have to be multiplied by `rescale`.
template <typename Traits>
__device__ bool softmax(std::uint32_t (&P_rmem)[Traits::kBlockKV / 32][4],
                        const float (&S_rmem)[Traits::kBlockKV / 8][4], float (&row_max)[2], float (&rescale)[2],
                        float scale, bool is_first) {
  for (bool redo = is_first;; redo = true) {
    if (redo) {
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
        const float S_max = group_max(tile_max[half]) * scale - 5;  // of the whole row
        const float new_max = is_first ? S_max : fmaxf(row_max[half], S_max);
        rescale[half] = exp2_approx(row_max[half] - new_max);  // r
        row_max[half] = new_max;                               // m
      }
    }
    std::uint32_t bits = 0;  // a byte's highest bit is set if there was a 448, 0x7e
#pragma unroll
    for (int mma_k = 0; mma_k < Traits::kBlockKV / 32; ++mma_k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        const auto exp = [&](int j) {  // with fmaf, or the compiler would keep scale · S in addition to S
          return exp2_approx(fmaf(S_rmem[4 * mma_k + i / 2 * 2 + j / 2][half * 2 + j % 2], scale, -row_max[half]));
        };
        P_rmem[mma_k][i] = pack_e4m3(exp(0), exp(1), exp(2), exp(3));
        bits |= P_rmem[mma_k][i] + 0x02020202;
      }
    // All lanes must decide together, because finding the maximum takes shuffles.
    if (redo || __all_sync(0xffffffff, (bits & 0x80808080) == 0)) return redo;
  }
}

// Multiplies each row of O by its factor.
template <typename Traits>
__device__ void scale_rows(float (&O_rmem)[Traits::kVtRows / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int mma_n = 0; mma_n < Traits::kHeadDim / 8; ++mma_n)
#pragma unroll
    for (int i = 0; i < 4; ++i) O_rmem[mma_n][i] *= factor[i / 2];
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32, 1)
    flash_attention(const __grid_constant__ CUtensorMap Q_map, const __grid_constant__ CUtensorMap K_map,
                    const __grid_constant__ CUtensorMap V_map, const __grid_constant__ CUtensorMap O_map,
                    AttentionArgs args, const float* scales, float softmax_scale, int num_q_tiles) {
  using Element = typename Traits::Element;
  using Output = typename Traits::Output;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kStages = Traits::kStages, kKVSize = Traits::kKVSize, kVtSize = Traits::kVtSize;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(uniform_smem(smem));            // [kConsumers][64][128]
  Element* K_smem = Q_smem + Traits::kQSize;                                   // [kStages][kBlockKV][128]
  Element* V_smem = K_smem + kStages * kKVSize;                                // [kStages][kBlockKV][128]
  Output* O_smem = reinterpret_cast<Output*>(V_smem + kStages * kKVSize);      // [kConsumers][2][64][64]
  Element* Vt_smem = reinterpret_cast<Element*>(O_smem + kBlockQ * kHeadDim);  // [kStages][kVtRows][kBlockKV]
  std::uint64_t* Q_full = reinterpret_cast<std::uint64_t*>(Vt_smem + kStages * kVtSize);  // copied
  std::uint64_t* Q_empty = Q_full + 1;                                                    // read by all
  std::uint64_t* K_full = Q_empty + 1;                                                    // [kStages]
  std::uint64_t* V_full = K_full + kStages;                                               // [kStages]
  std::uint64_t* Vt_full = V_full + kStages;                                              // [kStages]: transposed
  std::uint64_t* K_empty = Vt_full + kStages;                                             // [kStages]
  std::uint64_t* V_empty = K_empty + kStages;                                             // [kStages]
  std::uint64_t* Vt_empty = V_empty + kStages;                                            // [kStages]

  // Query tiles are numbered head by head, then batch entry by batch entry.
  const int q_tiles_per_head = (args.seq_len + kBlockQ - 1) / kBlockQ;
  const int num_kv_tiles = (args.seq_len_kv + kBlockKV - 1) / kBlockKV;
  const auto row_of = [&](int q_tile) { return q_tile % q_tiles_per_head * kBlockQ; };
  const auto head_of = [&](int q_tile) { return q_tile / q_tiles_per_head % args.heads; };
  const auto batch_of = [&](int q_tile) { return q_tile / q_tiles_per_head / args.heads; };
  const int warp_id = uniform_warp_id(), lane_id = threadIdx.x % 32;

  // A phase of `full` ends when the issuing thread has arrived and the announced bytes have been copied; a phase of
  // `empty` ends when each warp that reads has arrived, and one of Vt's `full` when each warp that transposes has.
  if (threadIdx.x == 0) {
    mbarrier_init(Q_full, 1);
    mbarrier_init(Q_empty, Traits::kConsumers * 4);
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&K_full[stage], 1);
      mbarrier_init(&V_full[stage], 1);
      mbarrier_init(&Vt_full[stage], Traits::kTransposers);
      mbarrier_init(&K_empty[stage], Traits::kConsumers * 4);
      mbarrier_init(&V_empty[stage], Traits::kTransposers);
      mbarrier_init(&Vt_empty[stage], Traits::kConsumers * 4);
    }
    fence_mbarrier_init();
  }
  // Eight rows of ones and zeros after each buffer of Vt, which are never overwritten: the even rows have ones, 0x38 in e4m3,
  // for the first half of the keys, the odd rows for the second. A row has kBlockKV bytes, in words of four.
  constexpr int kWords = kBlockKV / 4;
  for (int i = threadIdx.x; i < kStages * 8 * kWords; i += Traits::kNumWarps * 32) {
    Element* ones = Vt_smem + i / (8 * kWords) * kVtSize + kHeadDim * kBlockKV;
    const int row = i / kWords % 8, word = i % kWords;
    const int offset = chunk_offset<kBlockKV>(row, word / 4) + word % 4 * 4;
    *reinterpret_cast<std::uint32_t*>(&ones[offset]) = word / (kWords / 2) == row % 2 ? 0x38383838 : 0;
  }
  fence_proxy_async();  // make the ones visible to the tensor cores
  __syncthreads();      // the barriers and the ones are initialised

  if (warp_id < 4) {
    keep_registers<Traits::kProducerRegisters>();
    if (warp_id > 0) {
      // The other warps transpose each tile of V.
      PipelineState<kStages> V_next{0}, Vt_next{1};
      for (int q_tile = blockIdx.x; q_tile < num_q_tiles; q_tile += gridDim.x)
        for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
          wait(&V_full[V_next.stage], V_next.parity);
          wait(&Vt_empty[Vt_next.stage], Vt_next.parity);
          transpose_V<Traits>(Vt_smem + Vt_next.stage * kVtSize, V_smem + V_next.stage * kKVSize, warp_id - 1);
          fence_proxy_async();  // this thread's writes are visible to the tensor cores,
          __syncwarp();         // and so are the other lanes'
          if (lane_id == 0) {
            mbarrier_arrive(&V_empty[V_next.stage]);
            mbarrier_arrive(&Vt_full[Vt_next.stage]);
          }
          V_next.advance();
          Vt_next.advance();
        }
      return;
    }
    // The producer: one thread.
    if (threadIdx.x != 0) return;
    PipelineState<1> Q_next{1};
    PipelineState<kStages> K_next{1}, V_next{1};
    const auto copy_Q = [&](int q_tile) {
      wait(Q_empty, Q_next.parity);
      mbarrier_arrive_expect_tx(Q_full, Traits::kQSize * sizeof(Element));
      for (int row = 0; row < kBlockQ; row += 64)
        tma_load(Q_smem + row * kHeadDim, Q_map, row_of(q_tile) + row, head_of(q_tile), batch_of(q_tile), Q_full);
      Q_next.advance();
    };
    const auto copy = [&](PipelineState<kStages>& next, Element* ring_smem, std::uint64_t* full, std::uint64_t* empty,
                          const CUtensorMap& map, int q_tile, int kv_tile) {
      const int stage = next.stage;
      wait(&empty[stage], next.parity);
      mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));
      tma_load(ring_smem + stage * kKVSize, map, kv_tile * kBlockKV, head_of(q_tile), batch_of(q_tile), &full[stage]);
      next.advance();
    };
    for (int q_tile = blockIdx.x; q_tile < num_q_tiles; q_tile += gridDim.x) {
      copy_Q(q_tile);
      for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
        copy(K_next, K_smem, K_full, K_empty, K_map, q_tile, kv_tile);
        copy(V_next, V_smem, V_full, V_empty, V_map, q_tile, kv_tile);
      }
    }
    return;
  }

  // The consumers. Each computes 64 of the query rows.
  take_registers<Traits::kConsumerRegisters>();
  const int warpgroup_row = (warp_id / 4 - 1) * 64;
  PipelineState<1> Q_next{0};
  PipelineState<kStages> K_next{0}, Vt_next{0};
  const auto release = [&](std::uint64_t* barrier) {
    if (lane_id == 0) mbarrier_arrive(barrier);
  };

  // A lane holds parts of two of its warpgroup's rows, 16 · (warp_id % 4) + lane_id / 4 and 8 rows further on: `half` 0 and 1.
  float O_rmem[Traits::kVtRows / 8][4];                              // [mma_n][D], not normalised, and sums of P
  float S_rmem[kBlockKV / 8][4];                                     // [mma_n][D]
  std::uint32_t P_rmem[kBlockKV / 32][4], next_P[kBlockKV / 32][4];  // [mma_k][A]
  std::uint32_t Q_rmem[kHeadDim / 32][4];                            // [mma_k][A]
  float row_max[2];                                                  // [half], a step's maximum m of scale · S, minus 5
  float row_sum[2];  // [half], sum l of 2^(scale · S - row_max) so far, rounded as P is
  float rescale[2];  // [half], r

  // An element of Q (0), K (1) or V (2) represents its own value times this scale.
  const auto scale_of = [&](int tensor, int q_tile) {
    return scales[(tensor * args.batch + batch_of(q_tile)) * args.heads + head_of(q_tile)];
  };
  const auto S_scale_of = [&](int q_tile) { return softmax_scale * scale_of(0, q_tile) * scale_of(1, q_tile); };
  const bool is_leader = warp_id % 4 == 0 && lane_id == 0;
  Output* tile_smem = O_smem + warpgroup_row * kHeadDim;  // [2][64][64]

  // The last tile may have fewer than kBlockKV keys. The scores of the missing ones become -inf.
  const int partial_tile = args.seq_len_kv % kBlockKV != 0 ? num_kv_tiles - 1 : -1;
  const auto mask = [&] {
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (mma_n * 8 + lane_id % 4 * 2 + i % 2 >= args.seq_len_kv % kBlockKV) S_rmem[mma_n][i] = -INFINITY;
  };

  // Q's buffer may be refilled as soon as all warps have their fragments. ldmatrix loads them through the generic proxy, and
  // TMA overwrites the buffer through the asynchronous one, so the PTX ISA requires a proxy fence before the release.
  const auto take_Q = [&] {
    wait(Q_full, Q_next.parity);
    load_Q<Traits>(Q_rmem, Q_smem + warpgroup_row * kHeadDim);
    fence_proxy_async();
    __syncwarp();
    release(Q_empty);
    Q_next.advance();
  };

  // The first step: S and its softmax.
  take_Q();
  wait(&K_full[K_next.stage], K_next.parity);
  start_S<Traits>(S_rmem, Q_rmem, K_smem + K_next.stage * kKVSize);
  wgmma_wait<0>();
  pin(S_rmem);
  release(&K_empty[K_next.stage]);
  K_next.advance();
  if (partial_tile == 0) mask();
  float scale = S_scale_of(blockIdx.x), V_scale = scale_of(2, blockIdx.x), next_V_scale = 0;
  softmax<Traits>(P_rmem, S_rmem, row_max, rescale, scale, true);

  // For each step of this CTA's query tiles: P V of that step, and S and softmax of the next, which may be in the next tile.
  int q_tile = blockIdx.x, kv_tile = 0;
#pragma unroll 1
  while (true) {
    const bool ends_q_tile = kv_tile == num_kv_tiles - 1;
    const bool is_last = ends_q_tile && q_tile + gridDim.x >= num_q_tiles;
    const bool is_partial = (ends_q_tile ? 0 : kv_tile + 1) == partial_tile;  // the next tile of K
    if (ends_q_tile && !is_last) {
      take_Q();
      scale = S_scale_of(q_tile + gridDim.x);
      next_V_scale = scale_of(2, q_tile + gridDim.x);
    }

    // S = Q Kᵀ, and O += P V. Then wait only for S. After the last step, this S is not used.
    if (!is_last) wait(&K_full[K_next.stage], K_next.parity);
    pin(O_rmem);
    pin(P_rmem);
    start_S<Traits>(S_rmem, Q_rmem, K_smem + K_next.stage * kKVSize);
    wait(&Vt_full[Vt_next.stage], Vt_next.parity);
    start_PV<Traits>(O_rmem, P_rmem, Vt_smem + Vt_next.stage * kVtSize, kv_tile > 0);
    wgmma_wait<1>();
    pin(S_rmem);
    if (!is_last) release(&K_empty[K_next.stage]);
    K_next.advance();

    if (is_partial) mask();

    // Online softmax. Rows of the next query tile start afresh.
    const bool redo = softmax<Traits>(next_P, S_rmem, row_max, rescale, scale, ends_q_tile);

    wgmma_wait<0>();
    pin(O_rmem);
    pin(P_rmem);  // P V has read it
    release(&Vt_empty[Vt_next.stage]);
    Vt_next.advance();
    copy_registers(P_rmem, next_P);

    // The sum of this step's P, of which each lane has both halves. It does not stay with O, and neither half contains the
    // other: an 8-bit wgmma truncates its addends about 14 bits below the largest, so each P added to a sum of thousands, or a
    // small one added to a few large ones of the other half, would be truncated.
    float* const sums = O_rmem[kHeadDim / 8];  // [D]
    row_sum[0] = sums[0] + sums[1] + (kv_tile > 0 ? row_sum[0] : 0);
    row_sum[1] = sums[2] + sums[3] + (kv_tile > 0 ? row_sum[1] : 0);
    sums[0] = sums[1] = sums[2] = sums[3] = 0;

    if (!ends_q_tile) {
      if (redo) {
        scale_rows<Traits>(O_rmem, rescale);  // O = O · r
        row_sum[0] *= rescale[0];             // l = l · r
        row_sum[1] *= rescale[1];
      }
      ++kv_tile;
      continue;
    }

    // Normalise O, and store it through shared memory.
    const float factor[2] = {V_scale / row_sum[0], V_scale / row_sum[1]};  // O / l
    scale_rows<Traits>(O_rmem, factor);
    V_scale = next_V_scale;
    if (is_leader) tma_store_wait_read();        // the store of the previous O has finished reading,
    named_barrier_sync(warp_id / 4, 128);        // which the whole warpgroup waits for
    const int lane = keep_in_register(lane_id);  // otherwise these addresses occupy registers throughout the loop
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const auto pair = [&](int mma_n, int half) {
        return pack<Output>(O_rmem[mma_n][2 * half], O_rmem[mma_n][2 * half + 1]);
      };
      stmatrix_x4(&tile_smem[smem_offset(warp_id % 4 * 16 + lane % 16, i * 16 + lane / 16 * 8)], pair(2 * i, 0),
                  pair(2 * i, 1), pair(2 * i + 1, 0), pair(2 * i + 1, 1));
    }
    fence_proxy_async();                   // this thread's writes are visible to TMA,
    named_barrier_sync(warp_id / 4, 128);  // and so are those of the whole warpgroup
    if (is_leader) {
      tma_store(O_map, row_of(q_tile) + warpgroup_row, head_of(q_tile), batch_of(q_tile), tile_smem);
      tma_store_commit();
    }
    if (is_last) break;
    q_tile += gridDim.x;
    kv_tile = 0;
  }
  if (is_leader) tma_store_wait_read();  // shared memory exists only as long as the CTA
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  using Element = typename Traits::Element;
  const auto map_of = [&]<typename Of>(Of, const Tensor& tensor, int rows, int box_rows) {
    CUtensorMap map;
    if (error == cudaSuccess) error = encode_tensor_map<Of>(map, tensor, args.batch, args.heads, rows, box_rows);
    return map;
  };
  const CUtensorMap Q_map = map_of(Element(), args.Q, args.seq_len, 64);
  const CUtensorMap K_map = map_of(Element(), args.K, args.seq_len_kv, Traits::kBlockKV);
  const CUtensorMap V_map = map_of(Element(), args.V, args.seq_len_kv, Traits::kBlockKV);
  const CUtensorMap O_map = map_of(typename Traits::Output(), args.O, args.seq_len, 64);
  const auto kernel = flash_attention<Traits>;
  // More than 48 KB of shared memory per CTA must be requested explicitly.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  // Launch as many CTAs as the GPU runs at a time, one on each SM, but no more than there are query tiles.
  int device, num_sms;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int num_q_tiles = (args.seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ * args.heads * args.batch;
  const int grid = std::min(num_q_tiles, num_sms);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(Q_map, K_map, V_map, O_map, args, args.scales,
                                                                       scale, num_q_tiles);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .extends = "27",
    .architecture = Architecture::sm_90a,
    .solves = {.any_length = true},
    .configurations = {configuration<Traits<__nv_fp8_e4m3>>("192x64", launch<Traits<__nv_fp8_e4m3>>)},
});

}  // namespace flash_ladder::fp8
