// Random bits by position: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), and the
// mask of dropout that is made of them.
//
// A counter-based generator has no state: its output is a function of a counter and a key. If the counter is the position of a
// weight, every version, the reference and a backward pass obtain the same mask, in any order, without storing it.
#pragma once

#include <cstdint>

#include "attention.h"

namespace flash_ladder {

/// Four words: a counter, or the random bits that Philox makes of it.
struct PhiloxBlock {
  std::uint32_t x, y, z, w;
};

/// Philox4x32-10, ten rounds of two multiplications of 32 bits by 32 bits. Both halves of each product go on to the next round,
/// the upper one combined with the key, so that every bit of the counter affects every bit of the result.
FLASH_LADDER_HOST_DEVICE constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint64_t key) {
  std::uint32_t low_key = static_cast<std::uint32_t>(key), high_key = static_cast<std::uint32_t>(key >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t of_x = std::uint64_t{0xD2511F53} * counter.x, of_z = std::uint64_t{0xCD9E8D57} * counter.z;
    counter = {static_cast<std::uint32_t>(of_z >> 32) ^ counter.y ^ low_key, static_cast<std::uint32_t>(of_z),
               static_cast<std::uint32_t>(of_x >> 32) ^ counter.w ^ high_key, static_cast<std::uint32_t>(of_x)};
    low_key += 0x9E3779B9;   // the golden ratio
    high_key += 0xBB67AE85;  // the square root of 3, less 1
  }
  return counter;
}

constexpr int kDropoutKeys = 16;  // keys that a block has a byte for

/// The bytes of a query for keys 16 · key_block to 16 · key_block + 15. `head` counts the heads of all batch entries, or of all
/// packed sequences: batch · heads + head.
FLASH_LADDER_HOST_DEVICE constexpr PhiloxBlock dropout_bits(std::uint64_t seed, std::uint32_t offset, int head,
                                                            int query, int key_block) {
  return philox4x32_10({static_cast<std::uint32_t>(key_block), static_cast<std::uint32_t>(query),
                        static_cast<std::uint32_t>(head), offset},
                       seed);
}

/// Which byte of a block belongs to a key: the keys that a lane has of an mma's accumulators, 2i, 2i + 1, 2i + 8 and 2i + 9, are
/// the bytes of word i.
FLASH_LADDER_HOST_DEVICE constexpr int dropout_byte(int key) {
  const int k = key % kDropoutKeys;
  return k % 8 / 2 * 4 + k / 8 * 2 + k % 2;
}

/// The number of weights out of 256 that are kept: a weight is kept if its byte is below. 1 to 256 for p below 1.
constexpr int dropout_keep(double p) {
  const int keep = static_cast<int>((1 - p) * 256 + 0.5);
  return keep < 1 ? 1 : keep;
}

/// Whether the weight of this query and key is kept.
FLASH_LADDER_HOST_DEVICE constexpr bool is_kept(std::uint64_t seed, std::uint32_t offset, int head, int query, int key,
                                                int keep) {
  const PhiloxBlock bits = dropout_bits(seed, offset, head, query, key / kDropoutKeys);
  const int byte = dropout_byte(key);
  const std::uint32_t word = byte < 4 ? bits.x : byte < 8 ? bits.y : byte < 12 ? bits.z : bits.w;
  return static_cast<int>(word >> byte % 4 * 8 & 255) < keep;
}

}  // namespace flash_ladder
