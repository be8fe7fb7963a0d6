#include "emulator/lanes/accesses.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <type_traits>

#include "emulator/lanes/lane_loops.h"

namespace flash_ladder::emulator::lanes {

bool shared_offsets(const std::byte* address_register, bool wide, s64 offset, u32 limit, u32 bytes, u32* offsets) {
  u32 outside = 0, low_bits = 0;
  if (wide) {
    const u64* addresses = reinterpret_cast<const u64*>(address_register);
    u64 high_bits = 0;
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const u64 at = addresses[lane] + static_cast<u64>(offset);
      high_bits |= at >> 32;
      offsets[lane] = static_cast<u32>(at);
    }
    outside = high_bits != 0;
  } else {
    const u32* addresses = reinterpret_cast<const u32*>(address_register);
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpSize; ++lane) offsets[lane] = addresses[lane] + static_cast<u32>(offset);
  }
#pragma GCC ivdep
  for (int lane = 0; lane < kWarpSize; ++lane) {
    outside |= static_cast<u32>(offsets[lane] >= limit);
    low_bits |= offsets[lane];
  }
  return outside == 0 && (low_bits & (bytes - 1)) == 0;
}

void offset_range(const u32* offsets, u32* lowest, u32* highest) {
  u32 low = offsets[0], high = offsets[0];
  for (int lane = 1; lane < kWarpSize; ++lane) {
    low = low < offsets[lane] ? low : offsets[lane];
    high = high > offsets[lane] ? high : offsets[lane];
  }
  *lowest = low;
  *highest = high;
}

u32 access_pattern(const u32* offsets, u32 base, u32* pattern) {
  u32 hash = 0;
#pragma GCC ivdep
  for (u32 lane = 0; lane < kWarpSize; ++lane) {
    pattern[lane] = offsets[lane] - base;
    hash += pattern[lane] * (2 * lane * lane + 0x85ebca6bu);
  }
  return hash;
}

namespace {

template <typename Address>
bool repeats_from(const std::byte* address_register, u32 first, const u32* pattern, Address& base) {
  const Address* addresses = reinterpret_cast<const Address*>(address_register);
  base = addresses[0] - first;
  Address different = 0;
#pragma GCC ivdep
  for (int lane = 0; lane < kWarpSize; ++lane) different |= (addresses[lane] - base) ^ pattern[lane];
  return different == 0;
}

}  // namespace

bool repeats(const std::byte* address_register, bool wide, s64 offset, const u32* pattern, u64* base) {
  if (wide) {
    const bool same = repeats_from<u64>(address_register, pattern[0], pattern, *base);
    *base += static_cast<u64>(offset);
    return same;
  }
  u32 narrow;
  const bool same = repeats_from<u32>(address_register, pattern[0], pattern, narrow);
  *base = narrow + static_cast<u32>(offset);
  return same;
}

bool equal(const u32* a, const u32* b) {
  u32 different = 0;
#pragma GCC ivdep
  for (int lane = 0; lane < kWarpSize; ++lane) different |= a[lane] ^ b[lane];
  return different == 0;
}

namespace {

template <typename T, unsigned kElements>
void gather_elements(const std::byte* memory, const u32* offsets, std::byte* registers, const std::int32_t* r) {
  for (unsigned i = 0; i < kElements; ++i) {
    T* to = reinterpret_cast<T*>(registers + r[i]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      T value;
      __builtin_memcpy(&value, memory + offsets[lane] + i * sizeof(T), sizeof value);
      to[lane] = value;
    }
  }
}

}  // namespace

void gather(const std::byte* memory, const u32* offsets, unsigned bytes, unsigned elements, std::byte* registers,
            const std::int32_t* r) {
  if (bytes == 2) return gather_elements<u16, 1>(memory, offsets, registers, r);
  switch (elements) {
    case 1:
      return gather_elements<u32, 1>(memory, offsets, registers, r);
    case 2:
      return gather_elements<u32, 2>(memory, offsets, registers, r);
    default:
      return gather_elements<u32, 4>(memory, offsets, registers, r);
  }
}

bool inside(const u64* addresses, u64 begin, u64 size, u32 bytes, std::byte* data, std::byte** host,
            bool* consecutive) {
  const u64 last = size - bytes;
  u64 outside = 0, low_bits = 0, apart = 0;
#pragma GCC ivdep
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const u64 offset = addresses[lane] - begin;
    outside |= offset | (last - offset);  // the highest bit: before the memory, or after the last place in it
    low_bits |= addresses[lane];
    apart |= addresses[lane] ^ (addresses[0] + static_cast<u32>(lane) * u64{bytes});
    host[lane] = reinterpret_cast<std::byte*>(reinterpret_cast<u64>(data) + offset);
  }
  *consecutive = apart == 0;
  return (outside >> 63) == 0 && (low_bits & (bytes - 1)) == 0;
}

u32 ascending_sectors(const u64* addresses) {
  s64 down = 0, changes = 0;
#pragma GCC ivdep
  for (int lane = 1; lane < kWarpSize; ++lane) {
    const s64 step =
        static_cast<s64>(addresses[lane] / kSectorBytes) - static_cast<s64>(addresses[lane - 1] / kSectorBytes);
    down |= step;
    changes += step != 0;
  }
  return down < 0 ? 0 : static_cast<u32>(changes) + 1;
}

// A matrix of ldmatrix: eight rows of eight elements of 16 bits, in that order.
void matrix(const std::byte* memory, const u32* offsets, std::byte* to) {
  for (int row = 0; row < 8; ++row) __builtin_memcpy(to + 16 * row, memory + offsets[row], 16);
}

// The same, by columns.
void transposed_matrix(const std::byte* memory, const u32* offsets, std::byte* to) {
#ifdef __SSE2__
  // Each step interleaves the columns of two halves of the rows: first rows r and r + 4, then r and r + 2, then r and r
  // + 1.
  __m128i rows[8], joined[8];
  for (int row = 0; row < 8; ++row)
    rows[row] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(memory + offsets[row]));
  const auto join = [](const __m128i(&from)[8], __m128i(&into)[8]) {
    for (int i = 0; i < 4; ++i) {
      into[2 * i] = _mm_unpacklo_epi16(from[i], from[i + 4]);
      into[2 * i + 1] = _mm_unpackhi_epi16(from[i], from[i + 4]);
    }
  };
  join(rows, joined);
  join(joined, rows);
  join(rows, joined);
  for (int column = 0; column < 8; ++column)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * column), joined[column]);
#else
  u16 rows[8][8];
  matrix(memory, offsets, reinterpret_cast<std::byte*>(rows));
  for (int column = 0; column < 8; ++column) {
    for (int row = 0; row < 8; ++row) reinterpret_cast<u16*>(to)[8 * column + row] = rows[row][column];
  }
#endif
}

namespace {

// Four cells at a time.
typedef u32 Cells __attribute__((vector_size(16)));

inline bool any(const Cells& bits) { return (bits[0] | bits[1] | bits[2] | bits[3]) != 0; }

constexpr u32 kSeveralLanes = 0x20;

// See checks/shared_shadow.h for the contents of cells. A lane that reads what another lane has read, without an order
// between them, is recorded as one of several.
template <int kCells>
void read_some(u32* readers, u32 base, const u32* offsets, const u32* lanes, u32 count, int shift, u32 synced,
               u32 cell) {
  static_assert(kSeveralLanes == kWarpSize);
  for (u32 read = 0; read < count; ++read) {
    u32* const first = readers + ((base + offsets[read]) >> shift);
    const u32 own = cell | lanes[read];
    if constexpr (kCells == 1) {
      const bool several = (*first >= synced) & (((*first ^ own) & 63) != 0);
      *first = own | (several ? kSeveralLanes : 0);
    } else {
      constexpr int kAtOnce = kCells < 4 ? kCells : 4;
      for (int i = 0; i < kCells; i += kAtOnce) {
        Cells reader = {};
        __builtin_memcpy(&reader, first + i, kAtOnce * sizeof(u32));
        const auto several = (reader >= synced) & (((reader ^ own) & 63) != 0);
        reader = own | (reinterpret_cast<Cells>(several) & kSeveralLanes);
        __builtin_memcpy(first + i, &reader, kAtOnce * sizeof(u32));
      }
    }
  }
}

template <int kCells>
void write_some(u32* writers, const u32* offsets, int shift, u32 cell) {
  for (u32 lane = 0; lane < kWarpSize; ++lane) {
    u32* writer = writers + (offsets[lane] >> shift);
    for (int i = 0; i < kCells; ++i) writer[i] = cell | lane;
  }
}

template <int kCells>
bool any_of_some(const u32* cells, const u32* offsets, int shift, u32 bound) {
  if constexpr (kCells < 4) {
    u32 found = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const u32* first = cells + (offsets[lane] >> shift);
      for (int i = 0; i < kCells; ++i) found |= static_cast<u32>(first[i] >= bound);
    }
    return found != 0;
  } else {
    Cells found = {};
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const u32* first = cells + (offsets[lane] >> shift);
      for (int i = 0; i < kCells; i += 4) {
        Cells some;
        __builtin_memcpy(&some, first + i, sizeof some);
        found |= reinterpret_cast<Cells>(some >= bound);
      }
    }
    return any(found);
  }
}

// Calls f with the number of cells as a constant.
template <typename F>
auto with_cells(unsigned cells, F f) {
  switch (cells) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 8:
      return f(std::integral_constant<int, 8>());
    default:
      return f(std::integral_constant<int, 16>());
  }
}

}  // namespace

void read_cells(unsigned cells, u32* readers, u32 base, const u32* offsets, const u32* lanes, u32 count, int shift,
                u32 synced, u32 cell) {
  with_cells(cells, [&](auto known) { read_some<known()>(readers, base, offsets, lanes, count, shift, synced, cell); });
}

void write_cells(unsigned cells, u32* writers, const u32* offsets, int shift, u32 cell) {
  with_cells(cells, [&](auto known) { write_some<known()>(writers, offsets, shift, cell); });
}

bool any_at_least(unsigned cells, const u32* of, const u32* offsets, int shift, u32 bound) {
  return with_cells(cells, [&](auto known) { return any_of_some<known()>(of, offsets, shift, bound); });
}

u32 end_of_run(const u32* cells, u32 first, u32 count, int shift) {
  constexpr u32 kAtOnce = 32;
  const u32 value = cells[first] >> shift;
  u32 i = first;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    u32 different = 0;
    for (u32 k = 0; k < kAtOnce; ++k) different |= (cells[i + k] >> shift) ^ value;
    if (different != 0) break;
  }
  while (i < count && cells[i] >> shift == value) ++i;
  return i;
}

void take_later(u32* entries, const u32* others, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) entries[i] = entries[i] > others[i] ? entries[i] : others[i];
}

}  // namespace flash_ladder::emulator::lanes
