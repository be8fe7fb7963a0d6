// D15 · cluster_combine
//
// Idea        The parts of a split cache cross global memory to a second kernel, which can only begin when the last one is there.
//             At batch 1 with 4096 keys, almost a third of the time passes between them and O. The CTAs of a cluster run at the
//             same time, and can write into each other's shared memory. Let those that share a head of K and V be a cluster.
// Changed     A cluster of up to 16 CTAs has all keys of a batch entry for up to 16 rows. Each CTA merges some columns of O: the
//             others send it their parts of these (st.async), and its mbarrier counts the bytes. The second kernel is gone, and
//             so is the line of equal shares: if lengths differ, the GPU's own scheduling has to balance them.
// Prediction  At batch 1 with 4096 keys, a quarter less time than D14: the parts need 1 µs, not 6, and no CTA adds up lengths, but
//             128 CTAs with four tiles per warp take 1 µs more than 264 with two. At batch 16 and 64 with 8192 keys and more, the
//             same within 3 %. With one head of K and V at batch 1, half the speed or less, because 16 CTAs have all keys.

#include <bit>
#include <cfloat>

#include "convert.h"
#include "hopper/cluster_stores.h"
#include "hopper/from_e4m3.h"
#include "hopper/mbarrier.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vD15 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 1;      // the fewest queries per CTA
  static constexpr int kGroupRows = 16;  // queries times heads that share a head of K and V: the rows of an mma
  static constexpr int kBlockKV = 16;    // keys and values per iteration
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;                  // each with its own keys
  static constexpr int kChunk = 16 / sizeof(Element);  // elements in 16 bytes, the most that a lane loads at once
  static constexpr int kStages = 3;  // tiles of K and V in shared memory per warp, all in flight while it waits
  static constexpr int kRingBytes = kStages * 2 * kBlockKV * kHeadDim * sizeof(Element);
  static constexpr int kMostParts = 16;  // of the keys, one for each CTA of a cluster: the most that Hopper allows
  // What a CTA receives: parts of O, their m and l, and a barrier.
  static constexpr int kInboxBytes = kGroupRows * (kHeadDim * sizeof(float) + kMostParts * sizeof(float2)) + 16;
  static constexpr int kSmemBytes = kNumWarps * kRingBytes + kInboxBytes;
  static constexpr int kCtasPerSm = 2;  // that an SM of Hopper can hold
  static constexpr int kSliceKeys = kNumWarps * kBlockKV;
  static constexpr int kFewestKeys = 4096;  // per CTA, if there are more CTAs than the GPU can hold
};

// An mma may sum over k in any order, as long as A and B have the same, and the columns of B and D may have any order, too.
// The orders below make whole fragments of the 16 contiguous bytes that a lane loads, a chunk of kChunk columns of head_dim.
// With `group` and `pair` as in common/ptx.h, and quad = lane_id % 4:
//
//   Q, K   Of its rows of Q and of its key, a lane loads chunks quad, quad + 4, quad + 8 and quad + 12. The first two registers
//          of a chunk are for one mma, the other two for the next: k pair, pair + 1, pair + 8 and pair + 9 of both.
//   V      Of its keys pair, pair + 1, pair + 8 and pair + 9, a lane loads chunks group and group + 8. The eight columns of
//          a chunk belong to eight mmas: column `group` of B is column mma_n % 8 of chunk group + mma_n / 8 * 8. So D[0] of
//          the eight mmas are the columns of chunk pair, and D[1] those of chunk pair + 1.
//
// In a cache of 8 bits, a chunk has the same columns in 8 bytes, and two neighbouring chunks are copied together.

// B = V[16 keys][column `col` of the chunk]: the elements of two neighbouring keys become one register.
__device__ inline void load_V_fragment(std::uint32_t (&V_rmem)[2], const std::uint32_t (&chunks)[4][4], int col) {
  const int selector = col % 2 == 0 ? 0x5410 : 0x7632;  // the lower or upper halves of both
  V_rmem[0] = __byte_perm(chunks[0][col / 2], chunks[1][col / 2], selector);
  V_rmem[1] = __byte_perm(chunks[2][col / 2], chunks[3][col / 2], selector);
}

// Where a chunk begins in a tile in shared memory, in elements. A row has 256 or 128 bytes, so pieces of 16 bytes with the same
// number are in the same banks. The eight lanes of a wavefront read four chunks of each of two neighbouring rows of K, or two
// chunks of each of four rows of V, every other row. In 8 bits, there are sixteen lanes, and four chunks of each of four such
// rows, which are two pieces. The XOR puts all pieces in different banks.
template <typename Traits, typename Cache>
__device__ inline int swizzled(int row, int chunk) {
  constexpr int kPiece = 16 / sizeof(Cache);
  const int col = chunk * Traits::kChunk, piece = col / kPiece ^ (row & 6) ^ row % 2 * 4;
  return row * Traits::kHeadDim + piece * kPiece + col % kPiece;
}

// Loads the 16 bytes of a chunk into its four registers.
template <typename Element>
__device__ void load_chunk(std::uint32_t (&chunk)[4], const Element* memory) {
  const uint4 loaded = *reinterpret_cast<const uint4*>(memory);
  chunk[0] = loaded.x, chunk[1] = loaded.y, chunk[2] = loaded.z, chunk[3] = loaded.w;
}

// Loads the 8 bytes of a chunk, and converts them. Two elements become a register.
template <typename Element>
__device__ void load_chunk(std::uint32_t (&chunk)[4], const __nv_fp8_e4m3* memory) {
  const ushort4 loaded = *reinterpret_cast<const ushort4*>(memory);
  chunk[0] = from_e4m3<Element>(loaded.x), chunk[1] = from_e4m3<Element>(loaded.y);
  chunk[2] = from_e4m3<Element>(loaded.z), chunk[3] = from_e4m3<Element>(loaded.w);
}

// Maximum and sum over the four lanes that share the rows of an accumulator: lanes 4 · group to 4 · group + 3.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Where the pages of K and V are. Without pages, each batch entry is one page.
struct Pages {
  const int* table;  // [batch][width]; nullptr: no pages
  int width;         // entries of the table for each batch entry
  int count;         // pages in memory
  int log2_size;     // log2 of the number of keys in a page
};

// The numbers of up to 32 pages of a batch entry, one per lane, from first_entry of its table on. Beyond the table's end, its
// last entry is read again. A number that no page has becomes that of the last page, so that nothing else is ever read.
__device__ inline int page_numbers(const Pages& pages, int batch, int first_entry, int lane_id) {
  if (pages.table == nullptr) return batch;
  const unsigned number = pages.table[std::int64_t{batch} * pages.width + min(first_entry + lane_id, pages.width - 1)];
  return static_cast<int>(min(number, static_cast<unsigned>(pages.count - 1)));
}

// What the elements of a cache of 8 bits are multiplied by.
struct Scales {
  const float *K, *V;  // [batch][kv_heads]
};

// How many keys the batch entries have: those in the cache, and new ones.
struct Lengths {
  const int* cached;  // [batch], in device memory; nullptr: of seq_len_kv keys, the last ones are new
  int appended;       // 1 or 0
};

// The newest key and value of each batch entry, which a launch appends to the cache: [batch][1][kv_heads][kHeadDim].
struct NewToken {
  Tensor K, V;
  // The key and the queries are rotated by these angles.
  const void *cos, *sin;  // [rows][rotary_dim / 2], in the type of Q
  int rotary_dim;         // elements that are rotated, from the first one on: a multiple of two chunks
};

// A chunk of a row, rotated by the angles of row `position` of the tables. load(c) is chunk c of the row as it is. If kNeighbours,
// the two elements of a pair are neighbours; otherwise, one is in each half.
template <typename Traits, bool kNeighbours, typename Load>
__device__ uint4 rotated_chunk(const NewToken& token, int position, int chunk, const Load& load) {
  using Element = typename Traits::Element;
  const int half_chunks = token.rotary_dim / 2 / Traits::kChunk;
  if (chunk >= 2 * half_chunks) return load(chunk);
  // The other elements of the pairs are in the same chunk, or in one of the other half.
  const bool second_half = chunk >= half_chunks;
  const int other_chunk = kNeighbours ? chunk : second_half ? chunk - half_chunks : chunk + half_chunks;
  uint4 rotated = load(chunk), other = load(other_chunk);
  // The angles of its four or eight pairs. Four have 8 bytes of the tables.
  const std::int64_t angle = 2LL * position * half_chunks + (kNeighbours ? chunk : 2 * min(chunk, other_chunk));
  const auto load_angles = [&](const void* table) {
    const uint2* four = static_cast<const uint2*>(table) + angle;
    return make_uint4(four[0].x, four[0].y, four[!kNeighbours].x, four[!kNeighbours].y);
  };
  const uint4 cos = load_angles(token.cos), sin = load_angles(token.sin);
  const auto at = [](const uint4& chunk, int i) { return to_float(reinterpret_cast<const Element*>(&chunk)[i]); };
  // The rotation itself.
#pragma unroll
  for (int j = 0; j < Traits::kChunk; ++j) {
    const bool is_second = kNeighbours ? j % 2 == 1 : second_half;
    const float x = at(rotated, j), y = at(other, kNeighbours ? j ^ 1 : j);
    const float c = at(cos, kNeighbours ? j / 2 : j), s = at(sin, kNeighbours ? j / 2 : j);
    reinterpret_cast<Element*>(&rotated)[j] = from_float<Element>(x * c + (is_second ? y : -y) * s);
  }
  return rotated;
}

// How many keys a batch entry has, with a new one.
__device__ inline int keys_of(const AttentionArgs& args, const Lengths& lengths_kv, int batch) {
  return lengths_kv.cached != nullptr ? lengths_kv.cached[batch] + lengths_kv.appended : args.seq_len_kv;
}

// The slices of a batch entry: at least one, because O is stored without a key, too.
template <typename Traits>
__device__ int slices_of(const AttentionArgs& args, const Lengths& lengths_kv, int batch) {
  const int num_keys = keys_of(args, lengths_kv, batch);
  return max((num_keys + Traits::kSliceKeys - 1) / Traits::kSliceKeys, 1);
}

// Where a part begins, and the one before it ends. Parts differ by one slice at most.
__device__ inline int first_slice(int num_slices, int part, int log2_parts) {
  return static_cast<int>(std::int64_t{part} * num_slices >> log2_parts);
}

// O of up to 16 rows has 512 groups of four numbers: [half][8][32], as the threads of flash_attention have them. Each CTA of the
// cluster merges 2^log2_fours of them, and stores them. O_smem: [parts][2^log2_fours]. ml_smem: [parts][kGroupRows].
template <typename Traits>
__device__ void combine(const AttentionArgs& args, int kv_head, int group_heads, int first_row, int log2_fours,
                        const float4* O_smem, const float2* ml_smem, float* L_gmem) {
  using Element = typename Traits::Element;
  const int num_parts = gridDim.x, batch = blockIdx.y;
  for (int i = threadIdx.x; i < 1 << log2_fours; i += 32 * Traits::kNumWarps) {
    const int four = (blockIdx.x << log2_fours) + i, half_chunk = four / 32 % 8;
    const int tile_row = four / 256 * 8 + four % 32 / 4, group_row = first_row + tile_row;
    if (group_row >= group_heads * args.seq_len) continue;  // padding
    const int query = group_row / group_heads, head = kv_head * group_heads + group_row % group_heads;
    const std::int64_t row = (std::int64_t{batch} * args.heads + head) * args.seq_len + query;
    const int col = (four % 4 * 2 + half_chunk / 2 % 2 + half_chunk / 4 * 8) * Traits::kChunk + half_chunk % 2 * 4;

    // The largest m comes first, so that no part has to be rescaled twice.
    float row_max = -FLT_MAX;
    for (int part = 0; part < num_parts; ++part)
      row_max = fmaxf(row_max, ml_smem[part * Traits::kGroupRows + tile_row].x);

    // Add the parts, in order.
    float O_rmem[4] = {}, row_sum = 0;
#pragma unroll 8
    for (int part = 0; part < num_parts; ++part) {
      const float4 O_part = O_smem[(part << log2_fours) + i];
      const float2 ml = ml_smem[part * Traits::kGroupRows + tile_row];
      const float rescale = exp2_approx(ml.x - row_max);
      row_sum += rescale * ml.y;
      O_rmem[0] += rescale * O_part.x;
      O_rmem[1] += rescale * O_part.y;
      O_rmem[2] += rescale * O_part.z;
      O_rmem[3] += rescale * O_part.w;
    }

    // Normalise and store O. Without a key, l and O are 0, and L is -inf.
    const float inverse_sum = row_sum > 0 ? 1 / row_sum : 0;  // 1 / l
    uint2 chunk;
    auto* elements = reinterpret_cast<Element*>(&chunk);
#pragma unroll
    for (int j = 0; j < 4; ++j) elements[j] = from_float<Element>(O_rmem[j] * inverse_sum);
    *reinterpret_cast<uint2*>(args.O.row<Element>(batch, head, query) + col) = chunk;
    if (L_gmem != nullptr && col == 0) L_gmem[row] = (row_max + log2f(row_sum)) * 0.693147181f;  // log(2)
  }
}

// K and V are of type Cache: 16 or 8 bits. If kAppend, there is a new token, and if kRotary, it is rotated.
template <typename Traits, typename Cache, bool kAppend, bool kRotary, bool kNeighbours>
__global__ void __launch_bounds__(32 * Traits::kNumWarps)
    flash_attention(AttentionArgs args, int kv_heads, Pages pages, const int* lengths, Lengths lengths_kv,
                    NewToken token, Scales scales, bool causal, float* L_gmem, float softmax_scale) {
  using Element = typename Traits::Element;
  constexpr int kChunk = Traits::kChunk, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  static_assert(kBlockKV == 16 && Traits::kGroupRows == 16, "P is one fragment A");
  static_assert(Traits::kNumWarps == 4, "a lane has four chunks of a row, one for each warp to merge");
  static_assert(Traits::kMostParts == 4 * Traits::kNumWarps, "each lane of a quad sends m and l to one CTA");

  // The ring has the same number of bytes for both types, so for 8 bits it has twice as many stages.
  constexpr int kTileSize = kBlockKV * kHeadDim, kStages = Traits::kRingBytes / (2 * kTileSize * sizeof(Cache));
  constexpr int kRowCopies = kHeadDim * sizeof(Cache) / 16, kCopied = kHeadDim / kRowCopies / kChunk;  // chunks
  extern __shared__ uint4 smem[];  // [kNumWarps][kStages][K, V][kBlockKV][kHeadDim], swizzled

  const int warp_id = threadIdx.x / 32, group_heads = args.heads / kv_heads, num_rows = group_heads * args.seq_len;
  const int lane_id = threadIdx.x % 32, group = lane_id / 4, quad = lane_id % 4, pair = quad * 2;
  // [kStages][K, V][kBlockKV][kHeadDim], swizzled
  Cache* KV_smem = reinterpret_cast<Cache*>(smem + warp_id * (Traits::kRingBytes / 16));
  const int copied_chunk = lane_id % kRowCopies * kCopied;  // of the rows that this lane copies: the first one

  // What this CTA receives, beside the ring.
  auto* O_inbox =
      reinterpret_cast<float4*>(smem + Traits::kNumWarps * Traits::kRingBytes / 16);  // [parts][2^log2_fours]
  auto* ml_inbox = reinterpret_cast<float2*>(O_inbox + kTileSize / 4);                // [parts][kGroupRows]
  auto* full = reinterpret_cast<std::uint64_t*>(ml_inbox + Traits::kMostParts * Traits::kGroupRows);
  // The number of parts is a power of two. If there are no more than eight rows, the second half is padding, and is not sent.
  const int part = blockIdx.x, num_parts = gridDim.x, log2_parts = 31 - __clz(num_parts);
  const int first_row = blockIdx.z / kv_heads * Traits::kGroupRows, halves = first_row + 8 < num_rows ? 2 : 1;
  const int log2_fours = 7 + halves - log2_parts;  // that this CTA merges
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(full, halves * 8 * (kHeadDim * sizeof(float) + num_parts * sizeof(float2)));
  }
  cluster_arrive_relaxed();  // nothing may be sent to a CTA before it is here

  // What this warp computes: a quarter of one part of the keys, for up to 16 rows that share a head of K and V.
  const int batch = blockIdx.y, kv_head = blockIdx.z % kv_heads;
  const int slices = slices_of<Traits>(args, lengths_kv, batch), first = first_slice(slices, part, log2_parts);
  const int warp_keys = (first_slice(slices, part + 1, log2_parts) - first) * kBlockKV;
  const int first_key = first * Traits::kSliceKeys + warp_id * warp_keys;
  const Cache* K_gmem = args.K.row<Cache>(0, kv_head, 0) + copied_chunk * kChunk;  // [pages][keys of a page]
  const Cache* V_gmem = args.V.row<Cache>(0, kv_head, 0) + copied_chunk * kChunk;  // [pages][keys of a page]
  const Cache* new_K_gmem = token.K.row<Cache>(batch, kv_head, 0) + copied_chunk * kChunk;
  const Cache* new_V_gmem = token.V.row<Cache>(batch, kv_head, 0) + copied_chunk * kChunk;
  // Lane i knows the page number that is entry first_entry + i of the table.
  int first_entry = first_key >> pages.log2_size;
  int page_number = page_numbers(pages, batch, first_entry, lane_id);
  // The keys that each row sees. If causal, the last query sees all of them, and each earlier one a key less than the next.
  int num_keys = keys_of(args, lengths_kv, batch), row_keys[2];                // [half]
  const int new_key = num_keys - 1;                                            // if kAppend: the last one
  const int num_queries = lengths != nullptr ? lengths[batch] : args.seq_len;  // the others are padding, and see none
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = (first_row + half * 8 + group) / group_heads;
    const int hidden_keys = causal ? num_queries - 1 - query : 0;  // those of later queries
    row_keys[half] = query < num_queries ? num_keys - hidden_keys : 0;
  }
  // S has the scale of K, too, which is the same for all keys.
  const float scale = softmax_scale * (sizeof(Cache) == 1 ? scales.K[batch * kv_heads + kv_head] : 1);
  num_keys = min(num_keys, first_key + warp_keys);  // where this quarter ends: before it begins, if the sequence does

  // Copy Q. Rows beyond the last one are padding, and repeat it.
  const auto Q_row = [&](int half) {
    const int row = min(first_row + half * 8 + group, num_rows - 1);
    return args.Q.row<Element>(batch, kv_head * group_heads + row % group_heads, row / group_heads);
  };
  std::uint32_t Q_rmem[kHeadDim / 16][4];  // [mma_k][A]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // One register at a time: four that are loaded together would have to be moved for each mma.
      const Element* chunk = Q_row(half) + (quad + 4 * i) * kChunk;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        Q_rmem[2 * i + j / 2][half + j % 2 * 2] = reinterpret_cast<const std::uint32_t*>(chunk)[j];
    }
  }

  // Starts copying a tile of K and V, if it has keys. All copies are independent. Beyond the last key, it is read again.
  const auto start_copies = [&](int kv_row, int stage) {
    if (kv_row < num_keys) {
      // Find the page that contains the tile.
      const int entry = kv_row >> pages.log2_size, first_of_page = entry << pages.log2_size;
      if (entry == first_entry + 32) {
        first_entry = entry;
        page_number = page_numbers(pages, batch, first_entry, lane_id);
      }
      const std::int64_t page = __shfl_sync(0xffffffff, page_number, entry - first_entry);
      // Sixteen lanes copy a row of K and of V, the other sixteen the next one. In 8 bits, eight lanes copy a row.
#pragma unroll
      for (int i = 0; i < kBlockKV; i += 32 / kRowCopies) {
        const int row = i + lane_id / kRowCopies;
        const std::int64_t key = min(kv_row + row, num_keys - 1) - first_of_page;
        const Cache* K_row = K_gmem + page * args.K.batch_stride + key * args.K.row_stride;
        const Cache* V_row = V_gmem + page * args.V.batch_stride + key * args.V.row_stride;
        // The new key is not in the cache, or is being written to it.
        if (kAppend && key == new_key - first_of_page) K_row = new_K_gmem, V_row = new_V_gmem;
        Cache* K_smem = KV_smem + stage * 2 * kTileSize + swizzled<Traits, Cache>(row, copied_chunk);
        cp_async_16(K_smem, K_row);
        cp_async_16(K_smem + kTileSize, V_row);
      }
    }
    cp_async_commit();  // also without a copy: a group is a tile
  };
  // Fill the ring.
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) start_copies(first_key + stage * kBlockKV, stage);

  // Rotate Q, which replaces what was copied above.
  if constexpr (kRotary) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // If there are no more than eight rows, the second half is padding.
      if (i == 4 && first_row + 8 >= num_rows) break;
      const int half = i / 4;
      const auto load = [&](int c) { return reinterpret_cast<const uint4*>(Q_row(half))[c]; };
      const uint4 chunk = rotated_chunk<Traits, kNeighbours>(token, new_key, quad + i % 4 * 4, load);
      Q_rmem[i % 4 * 2][half] = chunk.x, Q_rmem[i % 4 * 2][half + 2] = chunk.y;
      Q_rmem[i % 4 * 2 + 1][half] = chunk.z, Q_rmem[i % 4 * 2 + 1][half + 2] = chunk.w;
    }
  }

  // The results so far.
  float O_rmem[kHeadDim / 8][4] = {};       // [mma_n][D], the un-normalised output
  float row_max[2] = {-FLT_MAX, -FLT_MAX};  // [half], maximum m so far; finite, because -inf - (-inf) is NaN
  float row_sum[2] = {};                    // [half], sum l of exp(score - row_max) so far, of this lane's keys

  // For each K/V tile:
  for (int kv_row = first_key, stage = 0; kv_row < num_keys; kv_row += kBlockKV) {
    // Copy K and V. The tile has arrived when the copies of all lanes have.
    cp_async_wait<kStages - 1>();
    __syncwarp();
    Cache *K_smem = KV_smem + stage * 2 * kTileSize, *V_smem = K_smem + kTileSize;
    // Rotate the new key. All lanes must have read it before any of them writes, and then the tile is complete.
    if (kRotary && kv_row + kBlockKV > new_key) {
      const auto chunk_of_key = [&](int c) -> uint4& {
        return reinterpret_cast<uint4&>(K_smem[swizzled<Traits, Cache>(new_key - kv_row, c)]);
      };
      const uint4 chunk = rotated_chunk<Traits, kNeighbours>(token, new_key, copied_chunk, chunk_of_key);
      __syncwarp();
      if (lane_id < kRowCopies) chunk_of_key(copied_chunk) = chunk;
      __syncwarp();
    }
    // The fragments of K and V.
    std::uint32_t K_rmem[kBlockKV / 8][4][4];  // [mma_n][chunk][two B]: key 8 · mma_n + group
    std::uint32_t V_rmem[2][4][4];  // [chunk][key][elements in pairs]: keys pair, pair + 1, pair + 8, pair + 9
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_chunk<Element>(K_rmem[mma_n][i], K_smem + swizzled<Traits, Cache>(mma_n * 8 + group, quad + 4 * i));
    // Of V, a lane needs the keys that B has as k.
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        load_chunk<Element>(V_rmem[j][i], V_smem + swizzled<Traits, Cache>(i / 2 * 8 + pair + i % 2, group + 8 * j));
    // Append the new key and value. Of the warps that have them, those of one segment per head of K and V store them: sixteen
    // lanes K, the other sixteen V.
    if (kAppend && kv_row + kBlockKV > new_key && first_row == 0) {
      const int entry = new_key >> pages.log2_size, page = page_numbers(pages, batch, entry, 0);
      const int row = new_key - (entry << pages.log2_size);
      Element* cache =
          lane_id < kRowCopies ? args.K.row<Element>(page, kv_head, row) : args.V.row<Element>(page, kv_head, row);
      const Cache* copied =
          (lane_id < kRowCopies ? K_smem : V_smem) + swizzled<Traits, Cache>(new_key - kv_row, copied_chunk);
      *reinterpret_cast<uint4*>(cache + copied_chunk * kChunk) = *reinterpret_cast<const uint4*>(copied);
    }
    // The tile is in registers, so its stage is free once all lanes are here.
    __syncwarp();
    start_copies(kv_row + kStages * kBlockKV, stage);
    stage = (stage + 1) % kStages;

    // S = Q Kᵀ. Keys that a row does not see get -inf.
    float S_rmem[kBlockKV / 8][4] = {};  // [mma_n][D]
#pragma unroll
    for (int mma_k = 0; mma_k < kHeadDim / 16; ++mma_k)
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n) {
        const std::uint32_t* chunk = &K_rmem[mma_n][mma_k / 2][mma_k % 2 * 2];
        mma_m16n8k16<Element>(S_rmem[mma_n], Q_rmem[mma_k], {chunk[0], chunk[1]});
      }
#pragma unroll
    for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        S_rmem[mma_n][i] = kv_row + mma_n * 8 + pair + i % 2 < row_keys[i / 2] ? S_rmem[mma_n][i] * scale : -INFINITY;

    // Online softmax. O and the row sums are relative to the old maximum; rescale them to the new one.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float new_max = row_max[half];
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) new_max = fmaxf(new_max, S_rmem[mma_n][i]);
      new_max = quad_max(new_max);                                 // of all keys
      const float rescale = exp2_approx(row_max[half] - new_max);  // r
      row_max[half] = new_max;                                     // m
      row_sum[half] *= rescale;                                    // l = l · r
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) O_rmem[mma_n][i] *= rescale;  // O = O · r
#pragma unroll
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          S_rmem[mma_n][i] = exp2_approx(S_rmem[mma_n][i] - row_max[half]);  // now it is P
          row_sum[half] += S_rmem[mma_n][i];                                 // l += Σ P
        }
    }

    // P to 16 bits.
    std::uint32_t P_rmem[4];  // [A]
#pragma unroll
    for (int i = 0; i < 4; ++i) P_rmem[i] = pack<Element>(S_rmem[i / 2][i % 2 * 2], S_rmem[i / 2][i % 2 * 2 + 1]);

    // O += P V.
#pragma unroll
    for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n) {
      std::uint32_t V_fragment[2];  // [B]
      load_V_fragment(V_fragment, V_rmem[mma_n / 8], mma_n % 8);
      mma_m16n8k16<Element>(O_rmem[mma_n], P_rmem, V_fragment);
    }
  }

  // Add the sums of the four lanes that share a row.
  row_sum[0] = quad_sum(row_sum[0]), row_sum[1] = quad_sum(row_sum[1]);

  // Leave O, m and l where the ring was, for the other warps. Four numbers of a lane are followed by four of the next one,
  // so that there are no bank conflicts. Without a key, l and O are 0, and m is finite: beside other warps, its weight is 0.
  constexpr int kRing = Traits::kRingBytes / sizeof(float), kHalf = Traits::kGroupRows * kHeadDim / 2;  // numbers
  // [kNumWarps][half][8][4], kRing, kHalf and 128 apart
  float* O_smem = reinterpret_cast<float*>(smem) + lane_id * 4;
  auto* ml_smem = reinterpret_cast<float2*>(reinterpret_cast<float*>(smem) + 2 * kHalf);  // [kNumWarps][kGroupRows]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4 * kChunk; ++i)
      O_smem[warp_id * kRing + half * kHalf + i / 4 * 128 + i % 4] =
          O_rmem[i / (2 * kChunk) * 8 + i % kChunk][half * 2 + i / kChunk % 2];
    if (quad == 0) ml_smem[warp_id * kRing / 2 + half * 8 + group] = make_float2(row_max[half], row_sum[half]);
  }

  // Merge what the four warps have. O has the scale of V, too.
  const float V_scale = sizeof(Cache) == 1 ? scales.V[batch * kv_heads + kv_head] : 1;
  __syncthreads();
  cluster_wait();  // all CTAs have begun, and initialised their barriers: long ago
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == halves) break;  // padding
    // Each warp merges one of the four chunks that a lane has of the row: pair, pair + 1, pair + 8 and pair + 9.
    float2 ml[Traits::kNumWarps];
    float O_chunk[kChunk] = {};
#pragma unroll
    for (int w = 0; w < Traits::kNumWarps; ++w) {
      ml[w] = ml_smem[w * kRing / 2 + half * 8 + group];
      row_max[half] = fmaxf(row_max[half], ml[w].x);
    }
    // Relative to the largest maximum, the sums of all warps can be added.
    row_sum[half] = 0;
#pragma unroll
    for (int w = 0; w < Traits::kNumWarps; ++w) {
      const float rescale = exp2_approx(ml[w].x - row_max[half]);
      row_sum[half] += rescale * ml[w].y;
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        O_chunk[j] += rescale * V_scale * O_smem[w * kRing + half * kHalf + (warp_id * 2 + j / 4) * 128 + j % 4];
    }

    // Send each group of four numbers to the CTA that merges it, and m and l to all. Without a key, l and O are 0, and m is finite:
    // relative to a part that has keys, its weight is 0.
#pragma unroll
    for (int j = 0; j < kChunk; j += 4) {
      const int four = half * 256 + (warp_id * 2 + j / 4) * 32 + lane_id, rank = four >> log2_fours;
      store_async_at(&O_inbox[((part - rank) << log2_fours) + four],
                     make_float4(O_chunk[j], O_chunk[j + 1], O_chunk[j + 2], O_chunk[j + 3]), full, rank);
    }
    if (warp_id * 4 + quad < num_parts)
      store_async_at(&ml_inbox[part * Traits::kGroupRows + half * 8 + group], make_float2(row_max[half], row_sum[half]),
                     full, warp_id * 4 + quad);
  }

  // When all parts are here, no CTA has anything more to send to this one, so it may end after it has merged them.
  while (!mbarrier_try_wait_in_cluster(full, 0)) continue;
  combine<Traits>(args, kv_head, group_heads, first_row, log2_fours, O_inbox, ml_inbox, L_gmem);
}

template <typename Traits>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  int device, num_sms;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const float scale = args.softmax_scale * 1.44269504f;  // log2(e): exp(softmax_scale · S) = 2^(scale · S)
  const bool appends = args.K_new.data != nullptr, rotates = args.rotary_dim > 0;
  using Element = typename Traits::Element;
  auto kernel = flash_attention<Traits, Element, false, false, false>;
  if (args.K_scales != nullptr) kernel = flash_attention<Traits, __nv_fp8_e4m3, false, false, false>;
  if (appends) kernel = flash_attention<Traits, Element, true, false, false>;
  if (rotates) kernel = flash_attention<Traits, Element, true, true, false>;
  if (args.rotary_interleaved) kernel = flash_attention<Traits, Element, true, true, true>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);  // more than eight CTAs
  if (error != cudaSuccess) return error;
  const Pages pages{
      .table = args.page_table,
      .width = args.page_table_width,
      .count = args.num_pages,
      .log2_size = args.page_table == nullptr ? 31 : std::countr_zero(static_cast<unsigned>(args.page_size))};
  const NewToken token{args.K_new, args.V_new, args.rotary_cos, args.rotary_sin, args.rotary_dim};
  const Lengths lengths_kv{.cached = args.lengths_kv, .appended = appends};
  // As many parts as possible. If the GPU cannot hold all CTAs at a time, then not so many that each has few keys. A cluster of one
  // CTA has no st.async.
  const int head_groups = ((args.heads / args.kv_heads * args.seq_len - 1) / Traits::kGroupRows + 1) * args.kv_heads;
  const std::int64_t segments = std::int64_t{args.batch} * head_groups, most_ctas = Traits::kCtasPerSm * num_sms;
  int parts = Traits::kMostParts;
  while (parts > 2 && segments * parts > most_ctas && args.seq_len_kv < parts * Traits::kFewestKeys) parts /= 2;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(parts, args.batch, head_groups);
  config.blockDim = 32 * Traits::kNumWarps;
  config.dynamicSmemBytes = Traits::kSmemBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, kernel, args, args.kv_heads, pages, args.lengths, lengths_kv, token,
                             Scales{args.K_scales, args.V_scales}, args.causal, args.log_sum_exp, scale);
  if (error != cudaSuccess) return error;
  return cudaGetLastError();
}

const Registration registration({
    .source = __FILE__,
    .architecture = Architecture::sm_90a,
    .most_queries = 16,
    .preferred_up_to_keys = 8192,  // 16 CTAs at most have all keys of a sequence, however long it is
    .solves = {.causal = true,
               .any_length = true,
               .kv_heads = true,
               .lengths = true,
               .paged = true,
               .append = true,
               .rotary = true,
               .fp8_cache = true,
               .log_sum_exp = true},
    .configurations = {configuration<Traits<__half>>("1x16", launch<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("1x16", launch<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vD15
