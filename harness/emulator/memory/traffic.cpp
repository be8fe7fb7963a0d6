#include "emulator/memory/traffic.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/lanes/accesses.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kBanks = 32;

// The `count` lanes from `first` on, in one pass: as many wavefronts as there are distinct words in the bank with the most.
std::uint32_t count_phase(const std::uint32_t* addresses, std::uint32_t mask, unsigned bytes, unsigned first,
                          unsigned count) {
  std::uint32_t words[kBanks][32];  // the distinct words in each bank
  unsigned counts[kBanks] = {};
  unsigned most = 0;
  for (unsigned lane = first; lane < first + count; ++lane) {
    if (!((mask >> lane) & 1)) continue;
    for (unsigned i = 0; i < std::max(1u, bytes / 4); ++i) {
      const std::uint32_t word = addresses[lane] / 4 + i;
      const unsigned bank = word % kBanks;
      std::uint32_t* end = words[bank] + counts[bank];
      if (std::find(words[bank], end, word) != end) continue;
      *end = word;
      most = std::max(most, ++counts[bank]);
    }
  }
  return most;
}

// Whether two phases are served as one (seen on an H200): they are if each of their lanes has the same address as its
// neighbour, or each has the same as the lane after its neighbour. Inactive lanes do not count.
bool is_joined(const std::uint32_t* addresses, std::uint32_t mask, unsigned first, unsigned count) {
  for (const unsigned distance : {1u, 2u}) {
    bool all = true;
    for (unsigned lane = first; lane < first + count; ++lane) {
      const unsigned other = lane ^ distance;
      all &= !((mask >> lane) & 1) || !((mask >> other) & 1) || addresses[lane] == addresses[other];
    }
    if (all) return true;
  }
  return false;
}

Wavefronts count_wavefronts(const std::uint32_t* addresses, std::uint32_t mask, unsigned bytes, bool matrices) {
  const unsigned phase = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;  // lanes
  const unsigned pair = std::min(2 * phase, 32u);
  Wavefronts total;
  for (unsigned first = 0; first < 32; first += pair) {
    const bool joined = matrices || phase == 32 ? false : is_joined(addresses, mask, first, pair);
    for (unsigned lane = first; lane < first + pair; lane += joined ? pair : phase) {
      const std::uint32_t wavefronts = count_phase(addresses, mask, bytes, lane, joined ? pair : phase);
      total.actual += wavefronts;
      total.ideal += wavefronts > 0;
    }
  }
  return total;
}

}  // namespace

unsigned count_sectors(const std::uint64_t* addresses, std::uint32_t mask) {
  if (mask == kAllLanes) {
    if (const std::uint32_t sectors = lanes::ascending_sectors(addresses); sectors != 0) return sectors;
  }
  // The words found so far, hashed by their last bits; each is at its own place or at the next free one.
  constexpr unsigned kPlaces = 64;
  std::uint64_t met[kPlaces];
  std::uint64_t taken = 0, last = ~std::uint64_t{0};
  unsigned count = 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const std::uint64_t sector = addresses[std::countr_zero(rest)] / kSectorBytes;
    if (sector == last) continue;
    last = sector;
    unsigned place = static_cast<unsigned>(sector ^ (sector >> 6)) % kPlaces;
    while ((taken >> place & 1) != 0 && met[place] != sector) place = (place + 1) % kPlaces;
    if ((taken >> place & 1) != 0) continue;
    taken |= std::uint64_t{1} << place;
    met[place] = sector;
    ++count;
  }
  return count;
}

PlacedPattern AccessPatterns::find(const std::uint32_t* offsets, std::uint32_t mask, unsigned bytes, bool matrices) {
  std::uint32_t lowest = ~0u, highest = 0;
  alignas(64) std::uint32_t relative[kWarpSize] = {};
  std::uint32_t hash = mask + bytes + matrices;
  if (mask == kAllLanes) {
    lanes::offset_range(offsets, &lowest, &highest);
    hash += lanes::access_pattern(offsets, lowest & ~3u, relative);
  } else {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const std::uint32_t offset = offsets[std::countr_zero(rest)];
      lowest = std::min(lowest, offset);
      highest = std::max(highest, offset);
    }
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      relative[lane] = offsets[lane] - (lowest & ~3u);
      hash += relative[lane] * (2 * lane * lane + 0x85ebca6bu);
    }
  }
  const std::uint32_t base = lowest & ~3u;
  std::size_t place = (hash ^ (hash >> 15)) % places_.size();
  for (; places_[place] != nullptr; place = (place + 1) % places_.size()) {
    const AccessPattern& known = *places_[place];
    if (known.mask == mask && known.bytes == bytes && known.matrices == matrices &&
        lanes::equal(known.offsets.data(), relative)) {
      return {&known, base};
    }
  }
  AccessPattern& added = patterns_.emplace_back();
  std::copy_n(relative, kWarpSize, added.offsets.begin());
  added.mask = mask;
  added.bytes = bytes;
  added.matrices = matrices;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    auto* const end = added.distinct.begin() + added.num_distinct;
    auto* const same = std::find(added.distinct.begin(), end, relative[lane]);
    const auto which = static_cast<std::size_t>(same - added.distinct.begin());
    added.distinct[which] = relative[lane];
    added.distinct_lanes[which] = same == end ? lane : kWarpSize + lane;
    added.num_distinct += same == end;
  }
  added.first = lowest - base;
  added.span = highest - base + bytes;
  added.wavefronts = count_wavefronts(relative, mask, bytes, matrices);
  places_[place] = &added;
  return {&added, base};
}

void AccessPatterns::clear() {
  patterns_.clear();
  std::fill(places_.begin(), places_.end(), nullptr);
}

}  // namespace flash_ladder::emulator
