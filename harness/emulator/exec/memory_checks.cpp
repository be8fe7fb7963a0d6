// Checks whether the data that a CTA reads have been written, and whether its accesses are ordered relative to those of
// other threads.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"
#include "emulator/exec/cta_memory.h"
#include "emulator/exec/definedness.h"
#include "emulator/used_memory.h"

namespace flash_ladder::emulator {
namespace {

// Whether everything that 32 lanes access, sizeof(T) bytes each, has been written: the bytes that record it are 0 or 255.
template <typename T>
bool all_written(const std::uint8_t* initialised, Address begin, const LaneAddresses& at) {
  T all = static_cast<T>(~T{0});
  for (const std::uint64_t address : at.at) {
    T bytes;
    std::memcpy(&bytes, initialised + (address - begin), sizeof bytes);
    all &= bytes;
  }
  return all == static_cast<T>(~T{0});
}

}  // namespace

void CtaMemory::check_local_initialised(Warp& warp, const Instruction& instruction, std::uint32_t mask, unsigned bytes,
                                        std::byte* const* host) {
  UndefinedLanes unwritten{.lanes = 0, .origin = cta_.index_of(instruction)};
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::size_t offset = static_cast<std::size_t>(host[lane] - local_.data());
    const auto first = local_written_.begin() + static_cast<std::ptrdiff_t>(offset);
    if (std::find(first, first + bytes, 0) == first + bytes) continue;
    if (instruction.hands_on && watches(warp, instruction)) {
      unwritten.lanes |= 1u << lane;
      continue;
    }
    const std::size_t in_thread = offset % context_.kernel.local_bytes;
    cta_.find(FindingKind::uninitialised_read, &warp, &instruction, lane, in_thread,
              fmt::format("a read of {} bytes at byte {} of local memory, which were never written", bytes, in_thread));
  }
  if (unwritten.lanes == 0) return;
  for (std::size_t k = 0; k < instruction.writes; ++k) set_undefined(cta_, warp, instruction, k, mask, unwritten);
}

void CtaMemory::check_initialised(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                  std::uint32_t mask, unsigned bytes) {
  if (whole_access_ != nullptr && !whole_access_->poisoned) return;
  if (whole_access_ != nullptr && mask == kAllLanes) {
    const std::uint8_t* const first = whole_access_->initialised;
    const Address begin = whole_access_->address;
    const bool all = consecutive_
                         ? std::memchr(first + (at.at[0] - begin), 0, std::size_t{kWarpSize} * bytes) == nullptr
                     : bytes == 2 ? all_written<std::uint16_t>(first, begin, at)
                     : bytes == 4 ? all_written<std::uint32_t>(first, begin, at)
                                  : false;
    if (all) return;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = at.at[static_cast<std::size_t>(lane)];
    const Allocation* allocation = whole_access_ != nullptr ? whole_access_ : find_allocation(address);
    if (!allocation->poisoned) continue;
    const std::uint8_t* first = allocation->initialised + (address - allocation->address);
    if (std::find(first, first + bytes, 0) == first + bytes) continue;
    cta_.find(FindingKind::uninitialised_read, &warp, &instruction, lane, address,
              fmt::format("a read of {} bytes of global memory at {:#x}, which were never written: {}", bytes, address,
                          context_.memory.describe(address)));
  }
}

void CtaMemory::mark_initialised(const LaneAddresses& at, std::uint32_t mask, unsigned bytes) {
  if (whole_access_ != nullptr && !whole_access_->poisoned) return;
  if (whole_access_ != nullptr && consecutive_ && mask == kAllLanes) {
    std::memset(whole_access_->initialised + (at.at[0] - whole_access_->address), 0xff, std::size_t{kWarpSize} * bytes);
    return;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const Address address = at.at[static_cast<std::size_t>(std::countr_zero(rest))];
    const Allocation* allocation = find_allocation(address);
    if (allocation->poisoned) std::memset(allocation->initialised + (address - allocation->address), 0xff, bytes);
  }
}

// Whether the data read have been written, and in order.
void CtaMemory::check_read(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                           const MemoryAccess& access) {
  if (access.space == ptx::Space::shared) {
    if (cta_.shadow() == nullptr) return;
    const Strength strength = cta_.ordering()->strength_of(instruction.strength, warp.index);
    if (access.peer != nullptr)
      return cluster_.read_peer(warp, instruction, *access.peer, strength, access.good, access.bytes, access.offsets);
    cta_.shadow()->read({.warp = warp.index,
                         .instruction = cta_.index_of(instruction),
                         .strength = strength,
                         .mask = access.good,
                         .bytes = access.bytes,
                         .offsets = access.offsets,
                         .placed = access.placed});
  } else if (access.space == ptx::Space::local) {
    if (!local_written_.empty()) check_local_initialised(warp, instruction, access.good, access.bytes, access.host);
  } else if (access.space != ptx::Space::param && context_.options.checks) {
    check_initialised(warp, instruction, at, access.good, access.bytes);
    if (access.space == ptx::Space::global) read_global(warp, instruction, at, access.good, access.bytes);
  }
}

GlobalAccess CtaMemory::global_access(const Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                      std::uint32_t mask, unsigned bytes) const {
  return {.cta = cta_.index(),
          .warp = warp.index,
          .instruction = cta_.index_of(instruction),
          .strength = cta_.ordering()->strength_of(instruction.strength, warp.index),
          .mask = mask,
          .bytes = bytes,
          .addresses = at.at.data(),
          .consecutive = consecutive_ && mask == kAllLanes};
}

void CtaMemory::check_kernel_ahead(const Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                   std::uint32_t mask, unsigned bytes, bool writes) {
  if (context_.config.ahead == nullptr) return;
  const std::vector<UsedMemory>& ahead = *context_.config.ahead;
  for (std::uint32_t rest = mask & ~warp.waited_for_kernel_ahead; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = at.at[static_cast<std::size_t>(lane)];
    const auto range = std::ranges::upper_bound(ahead, address, {}, &UsedMemory::end);
    if (range == ahead.end() || range->begin >= address + bytes || (!range->writes && !writes)) continue;
    cta_.find(
        FindingKind::race, &warp, &instruction, lane, address,
        fmt::format(
            "a {} of global memory that the kernel ahead of this one {}: {}. That kernel may still be running, because "
            "this is a dependent launch, and the thread has not waited for it (griddepcontrol.wait)",
            writes ? "write" : "read", range->writes ? "writes" : "reads", context_.memory.describe(address)));
    return;
  }
}

void CtaMemory::read_global(const Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                            std::uint32_t mask, unsigned bytes) {
  check_kernel_ahead(warp, instruction, at, mask, bytes, /*writes=*/false);
  if (global_ == nullptr || mask == 0) return;
  const GlobalAccess access = global_access(warp, instruction, at, mask, bytes);
  global_->read(access, *cta_.ordering(), cta_.conflicts());
  if (cluster_global_ != nullptr) cluster_global_->read(access, *cta_.ordering(), cta_.conflicts());
}

std::uint32_t CtaMemory::write_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                                      const LaneAddresses& at, std::uint32_t unchanged) {
  if (whole_access_ != nullptr && whole_access_->constant) {
    cta_.find(
        FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(access.good), at.at[0],
        "a write to __constant__ memory, which kernels can only read: cudaMemcpyToSymbol writes it, between launches");
  }
  check_kernel_ahead(warp, instruction, at, access.good, access.bytes, /*writes=*/true);
  const GlobalAccess global = global_access(warp, instruction, at, access.good, access.bytes);
  if (cluster_global_ != nullptr) cluster_global_->write(global, unchanged, *cta_.ordering(), cta_.conflicts());
  return global_->write(global, unchanged, *cta_.ordering(), cta_.conflicts());
}

bool CtaMemory::write_untouched_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                                       const LaneAddresses& at) {
  if (!access.consecutive || whole_access_->constant) return false;
  check_kernel_ahead(warp, instruction, at, access.good, access.bytes, /*writes=*/true);
  const GlobalAccess global = global_access(warp, instruction, at, access.good, access.bytes);
  if (cluster_global_ != nullptr && !cluster_global_->write_untouched(global, *cta_.ordering())) return false;
  return global_->write_untouched(global, *cta_.ordering());
}

bool CtaMemory::kept_at(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                        const LaneAddresses& at, std::byte** places) {
  return global_->kept_at(global_access(warp, instruction, at, access.good, access.bytes), places);
}

void CtaMemory::report_overwritten_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                                          const LaneAddresses& at, std::uint32_t lanes) {
  global_->report_overwritten(global_access(warp, instruction, at, access.good, access.bytes), lanes, cta_.conflicts());
}

// What other threads have released at the addresses that are read with a strong operation.
void CtaMemory::acquire(Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                        const LaneAddresses& at) {
  if (cta_.ordering() == nullptr || !is_strong(instruction.strength)) return;
  if (cluster_.has_peers() && access.space == ptx::Space::shared) cluster_.acquire_flags(warp, access);
  if (access.peer != nullptr) return;
  for_each_place(access, at, [&](int lane, Ordering::Place place) {
    cta_.ordering()->strong_read(warp.index, lane, warp.alive, place,
                                 {instruction.acquires, instruction.releases, instruction.block_only});
  });
}

void CtaMemory::release(Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at,
                        bool adds) {
  if (cta_.ordering() == nullptr || !is_strong(instruction.strength)) return;
  if (cluster_.has_peers() && access.space == ptx::Space::shared) cluster_.release_flags(warp, instruction, access);
  if (access.peer != nullptr) return;
  for_each_place(access, at, [&](int lane, Ordering::Place place) {
    cta_.ordering()->strong_write(warp.index, lane, place,
                                  {instruction.acquires, instruction.releases, instruction.block_only}, adds);
  });
}

// Records which bytes of global and local memory are written; `undefined` are lanes that store an uninitialised value.
void CtaMemory::note_written(const LaneAddresses& at, const MemoryAccess& access, std::uint32_t undefined) {
  if (access.space == ptx::Space::local) {
    if (local_written_.empty()) return;
    for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const bool written = ((undefined >> lane) & 1) == 0;
      std::memset(local_written_.data() + (access.host[lane] - local_.data()), written, access.bytes);
    }
  } else if (context_.options.checks) {
    mark_initialised(at, access.good, access.bytes);
  }
}

}  // namespace flash_ladder::emulator
