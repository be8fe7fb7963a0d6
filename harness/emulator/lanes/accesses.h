// Helpers for memory accesses by all 32 lanes. Unless stated otherwise, offsets are from the start of the CTA's shared
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator::lanes {

/// The offsets from a register of addresses, with `offset` added; true if all are below `limit` and multiples of `bytes`.
bool shared_offsets(const std::byte* address_register, bool wide, std::int64_t offset, std::uint32_t limit,
                    std::uint32_t bytes, std::uint32_t* offsets);
/// The lowest and the highest offset.
void offset_range(const std::uint32_t* offsets, std::uint32_t* lowest, std::uint32_t* highest);
/// The offsets relative to `base`, and a hash of them.
std::uint32_t access_pattern(const std::uint32_t* offsets, std::uint32_t base, std::uint32_t* pattern);
/// Whether the addresses in a register, plus `offset`, form the pattern, starting at some base.
bool repeats(const std::byte* address_register, bool wide, std::int64_t offset, const std::uint32_t* pattern,
             std::uint64_t* base);
bool equal(const std::uint32_t* a, const std::uint32_t* b);

/// Loads one element of 2 bytes, or 1, 2 or 4 words, into the registers r.
void gather(const std::byte* memory, const std::uint32_t* offsets, unsigned bytes, unsigned elements,
            std::byte* registers, const std::int32_t* r);
/// Loads an 8×8 matrix of 16-bit elements from eight rows into the 32 lanes of a register: by rows, and by columns.
void matrix(const std::byte* memory, const std::uint32_t* offsets, std::byte* to);
void transposed_matrix(const std::byte* memory, const std::uint32_t* offsets, std::byte* to);

/// For checks/shared_shadow.h; `cells` is the number of cells that a lane accesses: 1, 2, 4, 8 or 16. Reads are `count`
/// different offsets after `base`; a lane number has 32 added if several lanes read that offset.
void read_cells(unsigned cells, std::uint32_t* readers, std::uint32_t base, const std::uint32_t* offsets,
                const std::uint32_t* lanes, std::uint32_t count, int shift, std::uint32_t synced, std::uint32_t cell);
void write_cells(unsigned cells, std::uint32_t* writers, const std::uint32_t* offsets, int shift, std::uint32_t cell);
bool any_at_least(unsigned cells, const std::uint32_t* of, const std::uint32_t* offsets, int shift,
                  std::uint32_t bound);
/// The end of the run of cells, from `first` on and of `count` in all, that are equal except for the lowest `shift` bits.
std::uint32_t end_of_run(const std::uint32_t* cells, std::uint32_t first, std::uint32_t count, int shift);

/// For global memory: whether all addresses are aligned and within the `size` bytes from `begin` on; then sets `host`
/// to their host addresses, given that `begin` is at `data`, and `consecutive` to whether they are adjacent, in order
/// of lanes.
bool inside(const std::uint64_t* addresses, std::uint64_t begin, std::uint64_t size, std::uint32_t bytes,
            std::byte* data, std::byte** host, bool* consecutive);
/// The number of distinct sectors of addresses that do not decrease from lane to lane; 0 if they do.
std::uint32_t ascending_sectors(const std::uint64_t* addresses);

/// For checks/clocks.h: the element-wise maximum.
void take_later(std::uint32_t* entries, const std::uint32_t* others, std::size_t count);

}  // namespace flash_ladder::emulator::lanes
