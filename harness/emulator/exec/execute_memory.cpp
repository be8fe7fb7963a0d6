// Loads, stores, atomics and ldmatrix. PTX ISA, "State Spaces", "ld", "st", "atom", "ldmatrix".

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/atomics.h"
#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Space;

// One element per lane from memory to a register. The slot of an element of 1 byte has 2.
template <typename Element, typename Lane>
void load_element(std::byte* registers, std::int32_t to, const std::byte* const* from, std::size_t offset,
                  std::uint32_t mask) {
  Lane* lanes = reinterpret_cast<Lane*>(registers + to);
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      Element value;
      std::memcpy(&value, from[lane] + offset, sizeof value);
      lanes[lane] = static_cast<Lane>(value);
    }
    return;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Element value;
    std::memcpy(&value, from[lane] + offset, sizeof value);
    lanes[lane] = static_cast<Lane>(value);
  }
}

template <typename Element, typename Lane>
void store_element(const std::byte* registers, std::int32_t from, std::byte* const* to, std::size_t offset,
                   std::uint32_t mask) {
  const Lane* lanes = reinterpret_cast<const Lane*>(registers + from);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Element value = static_cast<Element>(lanes[lane]);
    std::memcpy(to[lane] + offset, &value, sizeof value);
  }
}

void load_lanes(std::byte* registers, const Instruction& instruction, const std::byte* const* from,
                std::uint32_t mask) {
  for (int i = 0; i < instruction.elements; ++i) {
    const std::int32_t to = instruction.r[static_cast<std::size_t>(i)];
    const std::size_t offset = static_cast<std::size_t>(i) * instruction.bytes;
    switch (instruction.bytes) {
      case 1:
        if (instruction.sign_extend) {
          load_element<std::int8_t, std::int16_t>(registers, to, from, offset, mask);
        } else {
          load_element<std::uint8_t, std::uint16_t>(registers, to, from, offset, mask);
        }
        break;
      case 2:
        load_element<std::uint16_t, std::uint16_t>(registers, to, from, offset, mask);
        break;
      case 4:
        load_element<std::uint32_t, std::uint32_t>(registers, to, from, offset, mask);
        break;
      default:
        load_element<std::uint64_t, std::uint64_t>(registers, to, from, offset, mask);
        break;
    }
  }
}

void store_lanes(const std::byte* registers, const Instruction& instruction, std::byte* const* to, std::uint32_t mask) {
  for (int i = 0; i < instruction.elements; ++i) {
    const std::int32_t from = instruction.r[static_cast<std::size_t>(i) + 1];
    const std::size_t offset = static_cast<std::size_t>(i) * instruction.bytes;
    switch (instruction.bytes) {
      case 1:
        store_element<std::uint8_t, std::uint16_t>(registers, from, to, offset, mask);
        break;
      case 2:
        store_element<std::uint16_t, std::uint16_t>(registers, from, to, offset, mask);
        break;
      case 4:
        store_element<std::uint32_t, std::uint32_t>(registers, from, to, offset, mask);
        break;
      default:
        store_element<std::uint64_t, std::uint64_t>(registers, from, to, offset, mask);
        break;
    }
  }
}

// The lanes that store what is in memory already.
std::uint32_t unchanged_lanes(const std::byte* registers, const Instruction& instruction, std::byte* const* host,
                              std::uint32_t mask) {
  std::uint32_t unchanged = mask;
  for (int i = 0; i < instruction.elements; ++i) {
    const std::byte* from = registers + instruction.r[static_cast<std::size_t>(i) + 1];
    const std::size_t stride = instruction.bytes == 1 ? 2 : instruction.bytes;
    for (std::uint32_t rest = unchanged; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
      const std::byte* to = host[lane] + static_cast<std::size_t>(i) * instruction.bytes;
      if (std::memcmp(from + lane * stride, to, instruction.bytes) != 0) unchanged &= ~(1u << lane);
    }
  }
  return unchanged;
}

// 32-byte sectors of local memory, where the same word of 32 threads lies side by side.
unsigned count_local_sectors(const std::uint64_t* addresses, std::uint32_t mask, unsigned bytes) {
  std::uint64_t interleaved[kWarpSize];
  unsigned sectors = 0;
  for (unsigned word = 0; word < std::max(1u, bytes / 4); ++word) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      interleaved[lane] = ((addresses[lane] / 4 + word) * kWarpSize + static_cast<unsigned>(lane)) * 4;
    }
    sectors += count_sectors(interleaved, mask);
  }
  return sectors;
}

void count(Traffic& traffic, std::uint32_t mask, unsigned bytes, std::uint64_t transactions, std::uint64_t ideal) {
  ++traffic.requests;
  traffic.transactions += transactions;
  traffic.ideal += ideal;
  traffic.bytes += static_cast<std::uint64_t>(std::popcount(mask)) * bytes;
}

std::uint64_t ideal_sectors(std::uint32_t mask, unsigned bytes) {
  return (static_cast<std::uint64_t>(std::popcount(mask)) * bytes + 31) / 32;
}

// Global memory: the fewest sectors that so many bytes can lie in, or fewer if lanes read the same.
void count_global(Traffic& traffic, const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t good,
                  unsigned bytes) {
  const std::uint64_t sectors = count_sectors(addresses, good);
  count(traffic, lanes, bytes, sectors, std::min(sectors, ideal_sectors(lanes, bytes)));
}

}  // namespace

void CtaExecutor::addresses(const Warp& warp, const Instruction& instruction, std::int32_t reg,
                            LaneAddresses& to) const {
  const std::byte* from = warp.registers + reg;
  if (instruction.wide_address) {
    const auto* lanes = reinterpret_cast<const std::uint64_t*>(from);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      to.at[static_cast<std::size_t>(lane)] = lanes[lane] + static_cast<std::uint64_t>(instruction.offset);
    }
  } else {
    const auto* lanes = reinterpret_cast<const std::uint32_t*>(from);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      to.at[static_cast<std::size_t>(lane)] =
          static_cast<std::uint32_t>(lanes[lane] + static_cast<std::uint32_t>(instruction.offset));
    }
  }
}

// The lanes whose accesses are inside shared memory and aligned; the others are reported. `offsets` are from the start of the
// CTA's shared memory.
std::uint32_t CtaExecutor::check_shared(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                        std::uint32_t mask, unsigned bytes, std::uint32_t* offsets) {
  const std::uint64_t limit = shared_bytes_ >= bytes ? shared_bytes_ - bytes + 1 : 0;
  bool all_good = true;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)] - kSharedBase;
    offsets[lane] = static_cast<std::uint32_t>(offset);
    const bool good = offset < limit && (offset & (bytes - 1)) == 0;
    all_good &= good | !((mask >> lane) & 1);
  }
  if (all_good) return mask;
  std::uint32_t good_lanes = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)] - kSharedBase;
    if (offset >= limit) {
      find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
           fmt::format("an access of {} bytes at byte {} of the block's {} bytes of shared memory", bytes,
                       static_cast<std::int64_t>(offset), shared_bytes_));
    } else if ((offset & (bytes - 1)) != 0) {
      find(FindingKind::misaligned, &warp, &instruction, lane, offset,
           fmt::format("an access of {} bytes at byte {} of shared memory, which is no multiple of {}", bytes, offset,
                       bytes));
    } else {
      continue;
    }
    good_lanes &= ~(1u << lane);
  }
  return good_lanes;
}

std::uint32_t CtaExecutor::check_local(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                       std::uint32_t mask, unsigned bytes) {
  const std::uint64_t size = context_.kernel.local_bytes;
  const std::uint64_t limit = size >= bytes ? size - bytes + 1 : 0;
  std::uint32_t good_lanes = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)] - kLocalBase;
    if (offset >= limit) {
      find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
           fmt::format("an access of {} bytes at byte {} of the thread's {} bytes of local memory", bytes,
                       static_cast<std::int64_t>(offset), size));
    } else if ((offset & (bytes - 1)) != 0) {
      find(FindingKind::misaligned, &warp, &instruction, lane, offset,
           fmt::format("an access of {} bytes at byte {} of local memory, which is no multiple of {}", bytes, offset,
                       bytes));
    } else {
      continue;
    }
    good_lanes &= ~(1u << lane);
  }
  return good_lanes;
}

const Allocation* CtaExecutor::find_allocation(Address address) {
  if (last_allocation_ != nullptr && address - last_allocation_->address < last_allocation_->size)
    return last_allocation_;
  const std::vector<Allocation>& all = context_.allocations;
  auto next = std::upper_bound(all.begin(), all.end(), address,
                               [](Address a, const Allocation& allocation) { return a < allocation.address; });
  if (next == all.begin()) return nullptr;
  const Allocation& found = *std::prev(next);
  if (address - found.address >= found.size) return nullptr;
  return last_allocation_ = &found;
}

// The same for global memory; `host` is where the bytes are.
std::uint32_t CtaExecutor::check_global(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                        std::uint32_t mask, unsigned bytes, std::byte** host) {
  std::uint64_t lowest = ~std::uint64_t{0}, highest = 0, low_bits = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!((mask >> lane) & 1)) continue;
    const std::uint64_t address = at.at[static_cast<std::size_t>(lane)];
    lowest = std::min(lowest, address);
    highest = std::max(highest, address);
    low_bits |= address;
  }
  const Allocation* allocation = find_allocation(lowest);
  if (allocation != nullptr && !allocation->freed && highest - allocation->address < allocation->size &&
      allocation->size - (highest - allocation->address) >= bytes && (low_bits & (bytes - 1)) == 0) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      // Lanes that take no part may hold any address.
      const bool active = (mask >> lane) & 1;
      host[lane] = allocation->data + (active ? at.at[static_cast<std::size_t>(lane)] - allocation->address : 0);
    }
    return mask;
  }
  std::uint32_t good_lanes = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = at.at[static_cast<std::size_t>(lane)];
    allocation = find_allocation(address);
    const auto where = [&] {
      if (address >= kSharedWindow && address < kSharedWindow + 3 * kWindowSize) {
        return std::string("a generic address of shared, local or parameter memory");
      }
      return context_.memory.describe(address);
    };
    if (allocation == nullptr || allocation->size - (address - allocation->address) < bytes) {
      find(FindingKind::out_of_bounds, &warp, &instruction, lane, address,
           fmt::format("an access of {} bytes of global memory at {:#x}, which is {}", bytes, address, where()));
    } else if (allocation->freed) {
      find(FindingKind::use_after_free, &warp, &instruction, lane, address,
           fmt::format("an access of {} bytes of global memory at {:#x}, which is {}", bytes, address, where()));
    } else if ((address & (bytes - 1)) != 0) {
      find(FindingKind::misaligned, &warp, &instruction, lane, address,
           fmt::format("an access of {} bytes at {:#x}, which is no multiple of {}", bytes, address, bytes));
    } else {
      host[lane] = allocation->data + (address - allocation->address);
      continue;
    }
    good_lanes &= ~(1u << lane);
  }
  return good_lanes;
}

namespace {

// Which lanes' generic addresses lie in a window.
std::uint32_t lanes_in_window(const std::uint64_t* addresses, std::uint32_t mask, Address window) {
  std::uint32_t lanes = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (((mask >> lane) & 1) && addresses[lane] - window < kWindowSize) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace

// Lanes by the space that their addresses are in; calls f(space, lanes, addresses in that space).
template <typename F>
void CtaExecutor::for_each_space(const Instruction& instruction, LaneAddresses& at, std::uint32_t mask, F f) {
  if (instruction.space != Space::generic) {
    f(instruction.space, mask, at);
    return;
  }
  const std::uint32_t shared = lanes_in_window(at.at.data(), mask, kSharedWindow);
  const std::uint32_t local = lanes_in_window(at.at.data(), mask, kLocalWindow);
  const std::uint32_t parameter = lanes_in_window(at.at.data(), mask, kParameterWindow);
  const std::uint32_t global = mask & ~(shared | local | parameter);
  if (global != 0) f(Space::global, global, at);
  const auto in_window = [&](Space space, std::uint32_t lanes, Address window) {
    if (lanes == 0) return;
    LaneAddresses inside = at;
    for (std::uint64_t& address : inside.at) address -= window;
    f(space, lanes, inside);
  };
  in_window(Space::shared, shared, kSharedWindow);
  in_window(Space::local, local, kLocalWindow);
  in_window(Space::param, parameter, kParameterWindow);
  if (shared == mask) ++counters_.details[static_cast<std::size_t>(index_of(instruction))].shared_accesses;
}

// What most accesses to shared memory are: all lanes take part, and nothing is wrong.
bool CtaExecutor::whole_warp_offsets(const Warp& warp, const Instruction& instruction, std::int32_t reg,
                                     std::uint32_t mask, unsigned bytes, std::uint32_t* offsets) const {
  return mask == kAllLanes && shared_bytes_ >= bytes &&
         shared_functions_.offsets(warp.registers + reg, instruction.wide_address, instruction.offset - kSharedBase,
                                   shared_bytes_ - bytes + 1, bytes, offsets);
}

bool CtaExecutor::load_shared(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const bool words = instruction.bytes == 4, halves = instruction.bytes == 2 && instruction.elements == 1;
  if (!words && !halves) return false;
  const unsigned bytes = static_cast<unsigned>(instruction.bytes) * instruction.elements;
  alignas(64) std::uint32_t offsets[kWarpSize];
  if (!whole_warp_offsets(warp, instruction, instruction.r[instruction.writes], mask, bytes, offsets)) return false;
  const Wavefronts wavefronts = banks_.count(offsets, mask, bytes);
  count(counters_.details[static_cast<std::size_t>(index_of(instruction))].shared, mask, bytes, wavefronts.actual,
        wavefronts.ideal);
  if (shadow_ != nullptr) {
    shadow_->read({warp.index, index_of(instruction), instruction.strong, mask, bytes, offsets});
  }
  const auto gather = words ? shared_functions_.gather32[instruction.elements] : shared_functions_.gather16;
  gather(shared_.data(), offsets, warp.registers, instruction.r.data());
  return true;
}

void CtaExecutor::load(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (instruction.space == Space::shared && load_shared(warp, instruction, mask)) return;
  LaneAddresses at;
  addresses(warp, instruction, instruction.r[instruction.writes], at);
  const unsigned bytes = static_cast<unsigned>(instruction.bytes) * instruction.elements;
  DetailCount& detail = counters_.details[static_cast<std::size_t>(index_of(instruction))];
  for_each_space(instruction, at, mask, [&](Space space, std::uint32_t lanes, const LaneAddresses& inside) {
    std::byte* host[kWarpSize];
    std::uint32_t good = lanes;
    switch (space) {
      case Space::shared: {
        std::uint32_t offsets[kWarpSize];
        good = check_shared(warp, instruction, inside, lanes, bytes, offsets);
        const Wavefronts wavefronts = banks_.count(offsets, good, bytes);
        count(detail.shared, lanes, bytes, wavefronts.actual, wavefronts.ideal);
        for (int lane = 0; lane < kWarpSize; ++lane) host[lane] = shared_.data() + offsets[lane];
        if (shadow_ != nullptr) {
          shadow_->read({warp.index, index_of(instruction), instruction.strong, good, bytes, offsets});
        }
        break;
      }
      case Space::local:
        good = check_local(warp, instruction, inside, lanes, bytes);
        count(detail.local, lanes, bytes, count_local_sectors(inside.at.data(), good, bytes),
              ideal_sectors(lanes, bytes));
        local_addresses(warp, inside, good, host);
        if (!local_written_.empty()) check_local_initialised(warp, instruction, good, bytes, host);
        break;
      case Space::param:
        for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          const int lane = std::countr_zero(rest);
          const std::uint64_t offset = inside.at[static_cast<std::size_t>(lane)];
          const auto parameters = context_.config.parameters;
          if (offset >= parameters.size() || parameters.size() - offset < bytes) {
            find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
                 fmt::format("a read of {} bytes at byte {} of the kernel's {} bytes of parameters", bytes,
                             static_cast<std::int64_t>(offset), parameters.size()));
            good &= ~(1u << lane);
            continue;
          }
          host[lane] = const_cast<std::byte*>(parameters.data()) + offset;
        }
        break;
      default:
        good = check_global(warp, instruction, inside, lanes, bytes, host);
        if (context_.options.checks) check_initialised(warp, instruction, inside, good, bytes);
        if (space == Space::global) {
          count_global(detail.global, inside.at.data(), lanes, good, bytes);
        }
        break;
    }
    load_lanes(warp.registers, instruction, host, good);
  });
}

void CtaExecutor::store(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  LaneAddresses at;
  addresses(warp, instruction, instruction.r[0], at);
  const unsigned bytes = static_cast<unsigned>(instruction.bytes) * instruction.elements;
  DetailCount& detail = counters_.details[static_cast<std::size_t>(index_of(instruction))];
  ++progress_;
  const UndefinedLanes undefined = undefined_sources(warp, instruction, 1, instruction.operands, mask);
  for_each_space(instruction, at, mask, [&](Space space, std::uint32_t lanes, const LaneAddresses& inside) {
    std::byte* host[kWarpSize];
    std::uint32_t good = 0;
    // Local memory is the thread's own: what is read of it later is what matters.
    if (space != Space::local) {
      report_undefined(warp, instruction, {undefined.lanes & lanes, undefined.origin}, "stored");
    }
    switch (space) {
      case Space::shared: {
        std::uint32_t offsets[kWarpSize];
        good = check_shared(warp, instruction, inside, lanes, bytes, offsets);
        const Wavefronts wavefronts = banks_.count(offsets, good, bytes);
        count(detail.shared, lanes, bytes, wavefronts.actual, wavefronts.ideal);
        for (int lane = 0; lane < kWarpSize; ++lane) host[lane] = shared_.data() + offsets[lane];
        if (shadow_ != nullptr) {
          const SharedAccess access{warp.index, index_of(instruction), instruction.strong, good, bytes, offsets};
          const std::uint32_t overwritten =
              shadow_->write(access, unchanged_lanes(warp.registers, instruction, host, good));
          if (overwritten != 0 && !instruction.strong) {
            store_lanes(warp.registers, instruction, host, good);
            shadow_->report_overwritten(access,
                                        overwritten & ~unchanged_lanes(warp.registers, instruction, host, overwritten));
          }
        }
        break;
      }
      case Space::local:
        good = check_local(warp, instruction, inside, lanes, bytes);
        count(detail.local, lanes, bytes, count_local_sectors(inside.at.data(), good, bytes),
              ideal_sectors(lanes, bytes));
        local_addresses(warp, inside, good, host);
        if (!local_written_.empty()) {
          for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
            const int lane = std::countr_zero(rest);
            const bool written = ((undefined.lanes >> lane) & 1) == 0;
            std::memset(local_written_.data() + (host[lane] - local_.data()), written, bytes);
          }
        }
        break;
      case Space::param:
        find(FindingKind::out_of_bounds, &warp, &instruction, std::countr_zero(lanes), std::nullopt,
             "a store to the kernel's parameters, which cannot be written");
        break;
      default:
        good = check_global(warp, instruction, inside, lanes, bytes, host);
        if (context_.options.checks) mark_initialised(inside, good, bytes);
        count_global(detail.global, inside.at.data(), lanes, good, bytes);
        break;
    }
    store_lanes(warp.registers, instruction, host, good);
  });
}

// Lane by lane, lowest first. Atomics of other CTAs cannot interfere: kernels with atomics on global memory run serially.
void CtaExecutor::atomic(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  LaneAddresses at;
  addresses(warp, instruction, instruction.r[1], at);
  const unsigned bytes = instruction.bytes;
  DetailCount& detail = counters_.details[static_cast<std::size_t>(index_of(instruction))];
  ++progress_;
  for_each_space(instruction, at, mask, [&](Space space, std::uint32_t lanes, const LaneAddresses& inside) {
    std::byte* host[kWarpSize];
    std::uint32_t good = 0;
    if (space == Space::shared) {
      std::uint32_t offsets[kWarpSize];
      good = check_shared(warp, instruction, inside, lanes, bytes, offsets);
      const Wavefronts wavefronts = banks_.count(offsets, good, bytes);
      count(detail.shared, lanes, bytes, wavefronts.actual, wavefronts.ideal);
      for (int lane = 0; lane < kWarpSize; ++lane) host[lane] = shared_.data() + offsets[lane];
      if (shadow_ != nullptr) {
        const SharedAccess access{warp.index, index_of(instruction), true, good, bytes, offsets};
        shadow_->read(access);
        shadow_->write(access, 0);
      }
    } else if (space == Space::global) {
      good = check_global(warp, instruction, inside, lanes, bytes, host);
      if (context_.options.checks) check_initialised(warp, instruction, inside, good, bytes);
      count_global(detail.global, inside.at.data(), lanes, good, bytes);
    } else {
      find(FindingKind::out_of_bounds, &warp, &instruction, std::countr_zero(lanes), std::nullopt,
           "an atomic operation on memory that is neither global nor shared");
    }
    for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const std::size_t offset = static_cast<std::size_t>(lane) * bytes;
      std::uint64_t old = 0, operand = 0, second = 0;
      std::memcpy(&old, host[lane], bytes);
      std::memcpy(&operand, warp.registers + instruction.r[2] + offset, bytes);
      std::memcpy(&second, warp.registers + instruction.r[3] + offset, bytes);
      const std::uint64_t result =
          apply_atomic(static_cast<AtomicOperation>(instruction.operation), instruction.type, old, operand, second);
      std::memcpy(host[lane], &result, bytes);
      std::memcpy(warp.registers + instruction.r[0] + offset, &old, bytes);
    }
  });
}

// Lanes 8i … 8i+7 give the rows of matrix i; every lane gets two elements of each matrix.
void CtaExecutor::ldmatrix(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(warp, instruction, mask);
  const std::uint32_t row_lanes = instruction.elements == 4 ? kAllLanes : (1u << (8 * instruction.elements)) - 1;
  alignas(64) std::uint32_t offsets[kWarpSize];
  std::uint32_t good = row_lanes;
  if (!whole_warp_offsets(warp, instruction, instruction.r[instruction.writes], row_lanes, 16, offsets)) {
    LaneAddresses at;
    addresses(warp, instruction, instruction.r[instruction.writes], at);
    good = check_shared(warp, instruction, at, row_lanes, 16, offsets);
  }
  DetailCount& detail = counters_.details[static_cast<std::size_t>(index_of(instruction))];
  const Wavefronts wavefronts = banks_.count(offsets, good, 16, true);
  count(detail.shared, row_lanes, 16, wavefronts.actual, wavefronts.ideal);
  if (shadow_ != nullptr) {
    shadow_->read({warp.index, index_of(instruction), false, good, 16, offsets});
  }
  for (int matrix = 0; matrix < instruction.elements; ++matrix) {
    alignas(16) std::uint16_t rows[8][8] = {};
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * matrix + row;
      if ((good >> lane) & 1) std::memcpy(rows[row], shared_.data() + offsets[lane], 16);
    }
    auto* to = reinterpret_cast<std::uint16_t*>(warp.registers + instruction.r[static_cast<std::size_t>(matrix)]);
    if (!instruction.transposed) {
      std::memcpy(to, rows, sizeof rows);
    } else {
      for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < 8; ++column) to[8 * column + row] = rows[row][column];
      }
    }
  }
}

std::byte* CtaExecutor::local_address(const Warp& warp, int lane, std::uint64_t address) {
  const std::size_t thread = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  return local_.data() + thread * context_.kernel.local_bytes + (address - kLocalBase);
}

void CtaExecutor::local_addresses(const Warp& warp, const LaneAddresses& at, std::uint32_t mask, std::byte** host) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    host[lane] = local_address(warp, lane, at.at[static_cast<std::size_t>(lane)]);
  }
}

void CtaExecutor::check_local_initialised(Warp& warp, const Instruction& instruction, std::uint32_t mask,
                                          unsigned bytes, std::byte* const* host) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::size_t offset = static_cast<std::size_t>(host[lane] - local_.data());
    const auto first = local_written_.begin() + static_cast<std::ptrdiff_t>(offset);
    if (std::find(first, first + bytes, 0) == first + bytes) continue;
    const std::size_t in_thread = offset % context_.kernel.local_bytes;
    find(FindingKind::uninitialised_read, &warp, &instruction, lane, in_thread,
         fmt::format("a read of {} bytes at byte {} of local memory, which were never written", bytes, in_thread));
  }
}

void CtaExecutor::check_initialised(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                    std::uint32_t mask, unsigned bytes) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = at.at[static_cast<std::size_t>(lane)];
    const Allocation* allocation = find_allocation(address);
    if (!allocation->poisoned) continue;
    const std::uint8_t* first = allocation->initialised + (address - allocation->address);
    if (std::find(first, first + bytes, 0) == first + bytes) continue;
    find(FindingKind::uninitialised_read, &warp, &instruction, lane, address,
         fmt::format("a read of {} bytes of global memory at {:#x}, which were never written: {}", bytes, address,
                     context_.memory.describe(address)));
  }
}

void CtaExecutor::mark_initialised(const LaneAddresses& at, std::uint32_t mask, unsigned bytes) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const Address address = at.at[static_cast<std::size_t>(std::countr_zero(rest))];
    const Allocation* allocation = find_allocation(address);
    if (allocation->poisoned) std::memset(allocation->initialised + (address - allocation->address), 0xff, bytes);
  }
}

}  // namespace flash_ladder::emulator
