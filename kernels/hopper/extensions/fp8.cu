// fp8
//
// Idea        Of 8-bit numbers a wgmma takes twice as many values of k, in the time of 16-bit ones, and a tile is half as many bytes.
//             e4m3 has three bits of mantissa and ends at 448, so each head of Q, K and V has a scale, by which its largest element
//             comes near that: S gets those of Q and K with the softmax's own, O that of V at its end.
// Changed     Both operands of an 8-bit wgmma are K-major, and V is not: the three warps beside the one that copies transpose each tile.
//             P goes to 8 bits as each lane has it, and the keys of V are put in that order. e4m3 knows no "far below the
//             largest", so the maxima of 23 are back, and P reaches up to 256. O is fp16, twice as wide as Q, and has a buffer of
//             its own.
// Prediction  S and P V take half as long, the softmax as long as in 23 and then the packing: it is what is waited for. 1.2x of 26 at
//             4096, and 1.3x at 16,384.

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
  using Element = Element_;                        // of Q, K and V: 128 bytes a row
  using Output = __half;                           // of O
  static constexpr int kConsumers = 2;             // warpgroups that compute
  static constexpr int kBlockQ = kConsumers * 64;  // query rows per CTA: those of one wgmma for each of them
  static constexpr int kBlockKV = 128;             // keys and values per tile
  static constexpr int kStages = 2;                // tiles in each ring: of K, of V, and of V transposed
  static constexpr int kHeadDim = 128;
  static constexpr int kTransposers = 3;  // warps that transpose V: those beside the one that copies
  static constexpr int kNumWarps =
      4 + kConsumers * 4;                        // a warpgroup that copies and transposes, and those that compute
  static constexpr int kProducerRegisters = 40;  // of each thread
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kQSize = kBlockQ * kHeadDim;    // elements, which are bytes
  static constexpr int kKVSize = kBlockKV * kHeadDim;  // in a tile of K, and in one of V
  static constexpr int kOBytes = kBlockQ * kHeadDim * sizeof(Output);
  static constexpr int kNumBarriers = 4 + 6 * kStages;
  static constexpr int kSmemBytes = 2 * kQSize + 3 * kStages * kKVSize + kOBytes + kNumBarriers * 8;
};

// Where the 16 bytes of chunk `chunk` of a row of 128 bytes lie: the 128-byte swizzle of hopper/wgmma.h, of whose halves such
// a row is one.
__device__ inline int chunk_offset(int row, int chunk) { return row * 128 + (chunk ^ row % 8) * 16; }

// Where element (row, col) of a warpgroup's 64 rows of O lies in shared memory, counted in elements, [2][64][64]. The XOR is
// the 128-byte swizzle; hopper/wgmma.h has the picture.
__device__ inline int smem_offset(int row, int col) {
  return col / 64 * 64 * 64 + row * 64 + ((col / 8) ^ row) % 8 * 8 + col % 8;
}

// Waits for the end of a phase of the barrier: of the first if parity is 0, of the second if it is 1, of the third if 0…
__device__ inline void wait(std::uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) continue;
}

// A place in a ring of buffers: which is next, and the parity of the phase of its barrier that is waited for. A consumer
// begins with the first phase of `full`. A producer begins as if a phase of parity 1 of `empty` had ended: all are empty.
template <int kBuffers>
struct Position {
  int parity, buffer = 0;
  __device__ void advance() {
    buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
    parity ^= buffer == 0;
  }
};

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float group_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float group_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Starts S = Q Kᵀ, for this warpgroup's 64 rows of Q_smem [64][128] and K_smem [kBlockKV][128]. Each wgmma takes 32 columns of
// head_dim, 32 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_S(float (&S_rmem)[Traits::kBlockKV / 8][4], const Element* Q_smem, const Element* K_smem) {
  const std::uint64_t Q = matrix_descriptor(Q_smem, 0, 1024), K = matrix_descriptor(K_smem, 0, 1024);
  pin(S_rmem);
  __syncwarp();   // lanes may come at different times, and wgmma wants the whole warp (.aligned)
  wgmma_fence();  // the softmax has read the last S
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kHeadDim / 32; ++mma_k)
    wgmma_e4m3(S_rmem, advance(Q, mma_k * 32), advance(K, mma_k * 32), mma_k > 0);
  wgmma_commit();
}

// Starts O += P V, or O = P V, with Vt_smem [kHeadDim][kBlockKV], V transposed. Each wgmma takes 32 keys, 32 bytes.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void start_PV(float (&O_rmem)[Traits::kHeadDim / 8][4], std::uint32_t (&P_rmem)[Traits::kBlockKV / 32][4],
                         const Element* Vt_smem, bool accumulate) {
  const std::uint64_t Vt = matrix_descriptor(Vt_smem, 0, 1024);
  pin(O_rmem);
  pin(P_rmem);
  __syncwarp();
  wgmma_fence();  // P is packed, and O rescaled
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 32; ++mma_k)
    wgmma_e4m3(O_rmem, P_rmem[mma_k], advance(Vt, mma_k * 32), mma_k > 0 || accumulate);
  wgmma_commit();
}

// Transposes V_smem [kBlockKV][kHeadDim] into Vt_smem [kHeadDim][kBlockKV], this warp's share: warp 0 to kTransposers - 1. wgmma
// wants both operands of 8-bit elements K-major, and V's k, the key, runs across its rows. And of 16 keys, this is the order:
//
//     place in Vt    0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15      4 t … 4 t + 3: what lane t of
//     key            0   1   8   9   2   3  10  11   4   5  12  13   6   7  14  15      four has of S, as it has it
//
// ldmatrix takes two neighbouring columns as one element of 16 bits, and transposes those: a lane gets two keys' bytes of
// columns 2 g and 2 g + 1, and of the keys 8 further on in the next register. Byte by byte they are put into the words of the
// two columns, four keys each, which stmatrix writes as rows.
template <typename Traits, typename Element = typename Traits::Element>
__device__ void transpose_V(Element* Vt_smem, const Element* V_smem, int warp) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int part = warp; part < Traits::kBlockKV / 32 * Traits::kHeadDim / 16; part += Traits::kTransposers) {
    const int keys = part / (Traits::kHeadDim / 16), cols = part % (Traits::kHeadDim / 16);  // of 32, and of 16
    std::uint32_t R[4];                                                                      // [keys / 8]
    ldmatrix_x4_trans(R[0], R[1], R[2], R[3], &V_smem[chunk_offset(keys * 32 + lane, cols)]);
    const int col = cols * 16 + lane % 8 * 2 + lane / 8 % 2, chunk = keys * 2 + lane / 16;
    stmatrix_x4(&Vt_smem[chunk_offset(col, chunk)], __byte_perm(R[0], R[1], 0x6420), __byte_perm(R[0], R[1], 0x7531),
                __byte_perm(R[2], R[3], 0x6420), __byte_perm(R[2], R[3], 0x7531));
  }
}

// Online softmax: S becomes 2^(scale · S - row_max), new_sum this lane's sums of it. `rescale` is what all sums so far, and
// O, have to be multiplied by, since row_max may be larger than it was. It is the maximum less 8: exponentials reach up to 256, of
// e4m3's 448, so that those down to 2^-14 of the largest keep three bits. Sums have the same factor, and O is divided by them.
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
    const float new_max = fmaxf(row_max[half], group_max(tile_max[half]) * scale - 8);
    rescale[half] = exp2_approx(row_max[half] - new_max);  // the first time 2^-inf = 0
    row_max[half] = new_max;
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

// P to 8 bits. Four neighbouring accumulators of S, 16 rows × 32 keys, become one fragment A of P V. Each lane takes the four
// elements that it holds of 16 keys for those that it ought to hold; transpose_V() has the keys in that order.
template <typename Traits>
__device__ void pack_P(std::uint32_t (&P_rmem)[Traits::kBlockKV / 32][4],
                       const float (&exp_rmem)[Traits::kBlockKV / 8][4]) {
#pragma unroll
  for (int mma_k = 0; mma_k < Traits::kBlockKV / 32; ++mma_k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &exp_rmem[4 * mma_k + i / 2 * 2][i % 2 * 2];
      const float* next = &exp_rmem[4 * mma_k + i / 2 * 2 + 1][i % 2 * 2];
      P_rmem[mma_k][i] = pack_e4m3(pair[0], pair[1], next[0], next[1]);
    }
}

// Multiplies the rows of O.
template <typename Traits>
__device__ void scale_rows(float (&O_rmem)[Traits::kHeadDim / 8][4], const float (&factor)[2]) {
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
  constexpr int kStages = Traits::kStages, kKVSize = Traits::kKVSize;

  extern __shared__ __align__(1024) unsigned char smem[];
  Element* Q_smem = reinterpret_cast<Element*>(uniform_smem(smem));         // [2 buffers][kConsumers][64][128]
  Element* K_smem = Q_smem + 2 * Traits::kQSize;                            // [kStages][kBlockKV][128]
  Element* V_smem = K_smem + kStages * kKVSize;                             // [kStages][kBlockKV][128]
  Element* Vt_smem = V_smem + kStages * kKVSize;                            // [kStages][kHeadDim][kBlockKV]
  Output* O_smem = reinterpret_cast<Output*>(Vt_smem + kStages * kKVSize);  // [kConsumers][2][64][64]
  std::uint64_t* Q_full = reinterpret_cast<std::uint64_t*>(O_smem + Traits::kOBytes / sizeof(Output));  // [2]: copied
  std::uint64_t* K_full = Q_full + 2;                                                                   // [kStages]
  std::uint64_t* V_full = K_full + kStages;                                                             // [kStages]
  std::uint64_t* Vt_full = V_full + kStages;    // [kStages]: transposed
  std::uint64_t* K_empty = Vt_full + kStages;   // [kStages]: read by all
  std::uint64_t* V_empty = K_empty + kStages;   // [kStages]
  std::uint64_t* Vt_empty = V_empty + kStages;  // [kStages]
  std::uint64_t* Q_empty = Vt_empty + kStages;  // [2]

  // Query tiles are numbered head by head, then batch entry by batch entry.
  const int q_tiles_per_head = args.seq_len / kBlockQ, num_kv_tiles = args.seq_len_kv / kBlockKV;
  const auto row_of = [&](int q_tile) { return q_tile % q_tiles_per_head * kBlockQ; };
  const auto head_of = [&](int q_tile) { return q_tile / q_tiles_per_head % args.heads; };
  const auto batch_of = [&](int q_tile) { return q_tile / q_tiles_per_head / args.heads; };
  const int warp_id = uniform_warp_id(), lane_id = threadIdx.x % 32;

  // A phase of `full` ends with the one arrival of the thread that asks for the copy, and the bytes that it promises; one of
  // `empty` with an arrival of each warp that reads, and one of Vt's `full` with one of each that transposes.
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < 2; ++buffer) {
      mbarrier_init(&Q_full[buffer], 1);
      mbarrier_init(&Q_empty[buffer], Traits::kConsumers * 4);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&K_full[stage], 1);
      mbarrier_init(&V_full[stage], 1);
      mbarrier_init(&K_empty[stage], Traits::kConsumers * 4);
      mbarrier_init(&V_empty[stage], Traits::kTransposers);
      mbarrier_init(&Vt_full[stage], Traits::kTransposers);
      mbarrier_init(&Vt_empty[stage], Traits::kConsumers * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are there

  if (warp_id < 4) {
    keep_registers<Traits::kProducerRegisters>();
    if (warp_id > 0) {
      // The other warps transpose each tile of V.
      Position<kStages> V_next{0}, Vt_next{1};
      for (int q_tile = blockIdx.x; q_tile < num_q_tiles; q_tile += gridDim.x)
        for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
          wait(&V_full[V_next.buffer], V_next.parity);
          wait(&Vt_empty[Vt_next.buffer], Vt_next.parity);
          transpose_V<Traits>(Vt_smem + Vt_next.buffer * kKVSize, V_smem + V_next.buffer * kKVSize, warp_id - 1);
          fence_proxy_async();  // the tensor cores may see what this thread has written,
          __syncwarp();         // and the other lanes
          if (lane_id == 0) {
            mbarrier_arrive(&V_empty[V_next.buffer]);
            mbarrier_arrive(&Vt_full[Vt_next.buffer]);
          }
          V_next.advance();
          Vt_next.advance();
        }
      return;
    }
    // The producer: one thread.
    if (threadIdx.x != 0) return;
    Position<2> Q_next{1};
    Position<kStages> K_next{1}, V_next{1};
    const auto copy_Q = [&](int q_tile) {
      Element* tile_smem = Q_smem + Q_next.buffer * Traits::kQSize;
      std::uint64_t* full = &Q_full[Q_next.buffer];
      wait(&Q_empty[Q_next.buffer], Q_next.parity);
      mbarrier_arrive_expect_tx(full, Traits::kQSize * sizeof(Element));
      for (int row = 0; row < kBlockQ; row += 64)
        tma_load(tile_smem + row * kHeadDim, Q_map, row_of(q_tile) + row, head_of(q_tile), batch_of(q_tile), full);
      Q_next.advance();
    };
    const auto copy = [&](Position<kStages>& next, Element* ring_smem, std::uint64_t* full, std::uint64_t* empty,
                          const CUtensorMap& map, int q_tile, int kv_tile) {
      const int stage = next.buffer;
      wait(&empty[stage], next.parity);
      mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));
      tma_load(ring_smem + stage * kKVSize, map, kv_tile * kBlockKV, head_of(q_tile), batch_of(q_tile), &full[stage]);
      next.advance();
    };
    const auto copy_K = [&](int q_tile, int kv_tile) { copy(K_next, K_smem, K_full, K_empty, K_map, q_tile, kv_tile); };
    const auto copy_V = [&](int q_tile, int kv_tile) { copy(V_next, V_smem, V_full, V_empty, V_map, q_tile, kv_tile); };
    // V comes one step after K, since that is when it is used.
    for (int q_tile = blockIdx.x; q_tile < num_q_tiles; q_tile += gridDim.x) {
      copy_Q(q_tile);
      for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
        copy_K(q_tile, kv_tile);
        if (kv_tile > 0)
          copy_V(q_tile, kv_tile - 1);
        else if (q_tile >= gridDim.x)
          copy_V(q_tile - gridDim.x, num_kv_tiles - 1);
      }
      if (q_tile + gridDim.x >= num_q_tiles) copy_V(q_tile, num_kv_tiles - 1);
    }
    return;
  }

  // The consumers. Each has 64 of the query rows.
  take_registers<Traits::kConsumerRegisters>();
  const int warpgroup_row = (warp_id / 4 - 1) * 64;
  Position<2> Q_next{0};
  Position<kStages> K_next{0}, Vt_next{0};
  // The consumers take turns. Each waits at a barrier of its own, number 4 or more, where the one before it arrives.
  const int turn = 3 + warp_id / 4, next_turn = turn == 3 + Traits::kConsumers ? 4 : turn + 1;
  if (next_turn == 4) named_barrier_arrive(next_turn, 256);  // the first turn is the first consumer's
  const auto release = [&](std::uint64_t* barrier) {
    if (lane_id == 0) mbarrier_arrive(barrier);
  };

  // A lane holds parts of two of its warpgroup's rows: 16 · (warp_id % 4) + lane_id / 4, and that + 8. `half` tells them apart.
  float O_rmem[kHeadDim / 8][4];              // [mma_n][D], not normalised
  float S_rmem[kBlockKV / 8][4];              // [mma_n][D], and then the exponentials
  std::uint32_t P_rmem[kBlockKV / 32][4];     // [mma_k][A]
  float row_max[2] = {-INFINITY, -INFINITY};  // [half], of scale · S so far, less 8
  float row_sum[2], new_sum[2];               // [half], of this lane's 2^(scale · S - row_max): so far, in this tile
  float rescale[2];                           // [half]

  // What an element of Q (0), K (1) or V (2) stands for is this times itself.
  const auto scale_of = [&](int tensor, int q_tile) {
    return scales[(tensor * args.batch + batch_of(q_tile)) * args.heads + head_of(q_tile)];
  };
  const auto S_scale_of = [&](int q_tile) { return softmax_scale * scale_of(0, q_tile) * scale_of(1, q_tile); };
  const bool is_leader = warp_id % 4 == 0 && lane_id == 0;
  Output* tile_smem = O_smem + warpgroup_row * kHeadDim;  // [2][64][64]

  // The first step: S and its softmax.
  const auto Q_next_smem = [&] { return Q_smem + Q_next.buffer * Traits::kQSize + warpgroup_row * kHeadDim; };
  wait(&Q_full[Q_next.buffer], Q_next.parity);
  wait(&K_full[K_next.buffer], K_next.parity);
  start_S<Traits>(S_rmem, Q_next_smem(), K_smem + K_next.buffer * kKVSize);
  wgmma_wait<0>();
  pin(S_rmem);
  release(&K_empty[K_next.buffer]);
  if (num_kv_tiles == 1) release(&Q_empty[Q_next.buffer]);
  K_next.advance();
  float scale = S_scale_of(blockIdx.x);
  softmax<Traits>(S_rmem, row_max, row_sum, rescale, scale);
  pack_P<Traits>(P_rmem, S_rmem);

  // For each step of this CTA's query tiles: P V of that step, and S and softmax of the next, which may be of the next tile.
  int q_tile = blockIdx.x, kv_tile = 0;
#pragma unroll 1
  while (true) {
    const bool ends_q_tile = kv_tile == num_kv_tiles - 1;
    const bool is_last = ends_q_tile && q_tile + gridDim.x >= num_q_tiles;
    const int next_kv_tile = ends_q_tile ? 0 : kv_tile + 1;  // the tile of K that comes
    if (ends_q_tile) {
      Q_next.advance();
      if (!is_last) {
        wait(&Q_full[Q_next.buffer], Q_next.parity);
        scale = S_scale_of(q_tile + gridDim.x);
      }
    }

    // S = Q Kᵀ, and O += P V. Then wait for S alone.
    if (!is_last) wait(&K_full[K_next.buffer], K_next.parity);
    named_barrier_sync(turn, 256);
    pin(O_rmem);
    pin(P_rmem);
    start_S<Traits>(S_rmem, Q_next_smem(), K_smem + K_next.buffer * kKVSize);
    wait(&Vt_full[Vt_next.buffer], Vt_next.parity);
    start_PV<Traits>(O_rmem, P_rmem, Vt_smem + Vt_next.buffer * kKVSize, kv_tile > 0);
    named_barrier_arrive(next_turn, 256);
    wgmma_wait<1>();
    pin(S_rmem);
    if (!is_last) release(&K_empty[K_next.buffer]);
    if (!is_last && next_kv_tile == num_kv_tiles - 1) release(&Q_empty[Q_next.buffer]);
    K_next.advance();

    // Online softmax. Rows of the next query tile begin anew.
    if (ends_q_tile) row_max[0] = row_max[1] = -INFINITY;
    softmax<Traits>(S_rmem, row_max, new_sum, rescale, scale);

    pin(S_rmem);
    wait(&Vt_full[Vt_next.buffer],
         Vt_next.parity);  // V came long ago: a loop, behind which ptxas does not move the softmax
    wgmma_wait<0>();
    pin(O_rmem);
    pin(P_rmem);  // which P V has read
    release(&Vt_empty[Vt_next.buffer]);
    Vt_next.advance();
    pack_P<Traits>(P_rmem, S_rmem);

    if (!ends_q_tile) {
      scale_rows<Traits>(O_rmem, rescale);
#pragma unroll
      for (int half = 0; half < 2; ++half) row_sum[half] = row_sum[half] * rescale[half] + new_sum[half];
      ++kv_tile;
      continue;
    }

    // Normalise O, and store it by way of shared memory.
    const float V_scale = scale_of(2, q_tile);
    const float factor[2] = {V_scale / group_sum(row_sum[0]), V_scale / group_sum(row_sum[1])};
    scale_rows<Traits>(O_rmem, factor);
    if (is_leader) tma_store_wait_read();  // the last O has left
    named_barrier_sync(warp_id / 4, 128);
    const int lane = keep_in_register(lane_id);  // else these addresses have registers throughout the loop
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const auto pair = [&](int mma_n, int half) {
        return pack<Output>(O_rmem[mma_n][2 * half], O_rmem[mma_n][2 * half + 1]);
      };
      stmatrix_x4(&tile_smem[smem_offset(warp_id % 4 * 16 + lane % 16, i * 16 + lane / 16 * 8)], pair(2 * i, 0),
                  pair(2 * i, 1), pair(2 * i + 1, 0), pair(2 * i + 1, 1));
    }
    fence_proxy_async();                   // TMA may see what this thread has written,
    named_barrier_sync(warp_id / 4, 128);  // and the other threads of the warpgroup
    if (is_leader) {
      tma_store(O_map, row_of(q_tile) + warpgroup_row, head_of(q_tile), batch_of(q_tile), tile_smem);
      tma_store_commit();
    }
    if (is_last) break;
    row_sum[0] = new_sum[0];
    row_sum[1] = new_sum[1];
    q_tile += gridDim.x;
    kv_tile = 0;
  }
  if (turn == 4) named_barrier_sync(turn, 256);  // the last turn that it was given, which it has no use for
  if (is_leader) tma_store_wait_read();          // shared memory lasts as long as the CTA
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
  // More than 48 KB of shared memory per CTA must be asked for.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  // The grid is as many CTAs as the GPU runs at a time, one on each SM, and not more than there are query tiles.
  int device, num_sms;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int num_q_tiles = args.seq_len / Traits::kBlockQ * args.heads * args.batch;
  const int grid = std::min(num_q_tiles, num_sms);
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  kernel<<<grid, Traits::kNumWarps * 32, Traits::kSmemBytes, stream>>>(Q_map, K_map, V_map, O_map, args, args.scales,
                                                                       scale, num_q_tiles);
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .extends = "26",
    .architecture = Architecture::sm_90a,
    .configurations = {configuration<Traits<__nv_fp8_e4m3>>("128x128", launch<Traits<__nv_fp8_e4m3>>)},
});

}  // namespace flash_ladder::fp8
