#include "emulator/exec/cta_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/async_chunks.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/function_name.h"
#include "emulator/lanes/accesses.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {
namespace {

// 32-byte sectors of local memory, in which the same word of 32 threads is contiguous.
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

std::uint64_t ideal_sectors(std::uint32_t mask, unsigned bytes) {
  return (static_cast<std::uint64_t>(std::popcount(mask)) * bytes + kSectorBytes - 1) / kSectorBytes;
}

// An access counts where it begins, because none crosses the end of a sector.
std::uint64_t sectors_of(const std::uint64_t* addresses, std::uint32_t good, bool consecutive) {
  return consecutive ? addresses[kWarpSize - 1] / kSectorBytes - addresses[0] / kSectorBytes + 1
                     : count_sectors(addresses, good);
}

// The lanes whose generic addresses are in a window.
std::uint32_t lanes_in_window(const std::uint64_t* addresses, std::uint32_t mask, Address window) {
  std::uint32_t lanes = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (((mask >> lane) & 1) && addresses[lane] - window < kWindowSize) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace

void AlignedBytes::resize(std::size_t size) {
  constexpr std::size_t kAlignment = 64;
  storage_ = std::make_unique<std::byte[]>(size + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.get());
  data_ = storage_.get() + (kAlignment - address % kAlignment) % kAlignment;
  size_ = size;
}

CtaMemory::CtaMemory(CtaExecutor& cta, LaunchContext& context, ClusterMember& cluster, InstructionCounters& counters,
                     std::size_t num_warps)
    : cta_(cta), context_(context), cluster_(cluster), counters_(counters), last_patterns_(context.kernel.code.size()) {
  const CompiledKernel& kernel = context.kernel;
  shared_bytes_ = static_cast<std::uint32_t>(kernel.reserved_shared_bytes + kernel.static_shared_bytes +
                                             context.config.dynamic_shared_bytes);
  // A wgmma whose operand is out of bounds, which is a finding, reads the first chunk.
  shared_.resize(std::max<std::uint32_t>(shared_bytes_, kernel.uses_async_proxy ? kChunk : 0));
  local_.resize(kernel.local_bytes * num_warps * kWarpSize);
  if (!context.options.checks) return;
  global_ = context.shadow;
  if (global_ == nullptr) {
    own_global_ = std::make_unique<GlobalShadow>(kernel.global_granule, GlobalShadow::Of::cta);
    global_ = own_global_.get();
  }
  local_written_.resize(local_.size());
}

void CtaMemory::start() {
  std::memset(shared_.data(), 0, shared_.size());
  std::memset(local_.data(), 0, local_.size());
  if (own_global_ != nullptr) own_global_->reset();
  std::fill(local_written_.begin(), local_written_.end(), 0);
}

void CtaMemory::addresses(const Warp& warp, const Instruction& instruction, std::int32_t reg, LaneAddresses& to) const {
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

// The lanes whose accesses are inside a window of memory and aligned; the others are reported. `offsets` are relative
// to the start of the window.
std::uint32_t CtaMemory::check_window(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                      std::uint32_t mask, unsigned bytes, const Window& window,
                                      std::uint32_t* offsets) {
  const std::uint64_t limit = window.size >= bytes ? window.size - bytes + 1 : 0;
  bool all_good = true;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)] - window.base;
    offsets[lane] = static_cast<std::uint32_t>(offset);
    const bool good = offset < limit && (offset & (bytes - 1)) == 0;
    all_good &= good | !((mask >> lane) & 1);
  }
  if (all_good) return mask;
  std::uint32_t good_lanes = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)] - window.base;
    if (offset >= limit) {
      cta_.find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
                fmt::format("an access of {} bytes at byte {} of the {}'s {} bytes of {} memory", bytes,
                            static_cast<std::int64_t>(offset), window.owner, window.size, window.name));
    } else if ((offset & (bytes - 1)) != 0) {
      cta_.find(FindingKind::misaligned, &warp, &instruction, lane, offset,
                fmt::format("an access of {} bytes at byte {} of {} memory, which is not a multiple of {}", bytes,
                            offset, window.name, bytes));
    } else {
      continue;
    }
    good_lanes &= ~(1u << lane);
  }
  return good_lanes;
}

std::uint32_t CtaMemory::check_shared(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                      std::uint32_t mask, unsigned bytes, std::uint32_t* offsets) {
  const std::uint32_t good =
      check_window(warp, instruction, at, mask, bytes, {kSharedBase, shared_bytes_, "block", "shared"}, offsets);
  check_variable(warp, instruction, ptx::Space::shared, good, bytes, offsets);
  return good;
}

const Allocation* CtaMemory::find_allocation(Address address) {
  if (last_allocation_ != nullptr && address - last_allocation_->address < last_allocation_->size)
    return last_allocation_;
  const std::vector<Allocation>& all = context_.allocations;
  auto next = std::upper_bound(all.begin(), all.end(), address,
                               [](Address a, const Allocation& allocation) { return a < allocation.address; });
  if (next != all.begin()) {
    const Allocation& found = *std::prev(next);
    if (address - found.address < found.size) return last_allocation_ = &found;
  }
  const auto made = context_.made.upper_bound(address);
  if (made == context_.made.begin()) return nullptr;
  const Allocation& found = std::prev(made)->second;
  return address - found.address < found.size ? last_allocation_ = &found : nullptr;
}

Address CtaMemory::allocate_on_heap(std::size_t bytes) {
  const Address address = context_.memory.allocate_on_heap(bytes);
  if (address != 0) context_.made[address] = *context_.memory.find(address);
  return address;
}

void CtaMemory::free_on_heap(Address address) {
  context_.memory.free_on_heap(address);
  const auto made = context_.made.find(address);
  const auto is_it = [&](const Allocation& allocation) { return allocation.address == address; };
  Allocation& allocation = made != context_.made.end()
                               ? made->second
                               : *std::find_if(context_.allocations.begin(), context_.allocations.end(), is_it);
  allocation.freed = true;
  allocation.data = nullptr;
}

// The common case of an access to global memory: all lanes take part, and the access is aligned and within one allocation.
bool CtaMemory::check_whole_warp(const LaneAddresses& at, unsigned bytes, std::byte** host) {
  const Allocation* const allocation = find_allocation(at.at[0]);
  if (allocation == nullptr || allocation->freed || allocation->size < bytes) return false;
  bool consecutive;
  if (!lanes::inside(at.at.data(), allocation->address, allocation->size, bytes, allocation->data, host,
                     &consecutive)) {
    return false;
  }
  whole_access_ = allocation;
  consecutive_ = consecutive;
  return true;
}

// The same for some of the lanes.
bool CtaMemory::check_part_of_warp(const LaneAddresses& at, std::uint32_t mask, unsigned bytes, std::byte** host) {
  std::uint64_t lowest = ~std::uint64_t{0}, highest = 0, low_bits = 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const std::uint64_t address = at.at[static_cast<std::size_t>(std::countr_zero(rest))];
    lowest = std::min(lowest, address);
    highest = std::max(highest, address);
    low_bits |= address;
  }
  const Allocation* allocation = find_allocation(lowest);
  if (allocation == nullptr || allocation->freed || highest - allocation->address >= allocation->size ||
      allocation->size - (highest - allocation->address) < bytes || (low_bits & (bytes - 1)) != 0) {
    return false;
  }
  whole_access_ = allocation;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    // Lanes that do not take part may contain any address.
    const bool active = (mask >> lane) & 1;
    host[lane] = allocation->data + (active ? at.at[static_cast<std::size_t>(lane)] - allocation->address : 0);
  }
  return true;
}

// The lanes whose accesses are aligned and inside allocations of global memory; `host` receives the addresses of the bytes.
std::uint32_t CtaMemory::check_global(Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                                      std::uint32_t mask, unsigned bytes, std::byte** host) {
  whole_access_ = nullptr;
  consecutive_ = false;
  if (mask == kAllLanes ? check_whole_warp(at, bytes, host) : check_part_of_warp(at, mask, bytes, host)) return mask;
  const Allocation* allocation = nullptr;
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
      cta_.find(FindingKind::out_of_bounds, &warp, &instruction, lane, address,
                fmt::format("an access of {} bytes of global memory at {:#x}, which is {}", bytes, address, where()));
    } else if (allocation->freed) {
      cta_.find(FindingKind::use_after_free, &warp, &instruction, lane, address,
                fmt::format("an access of {} bytes of global memory at {:#x}, which is {}", bytes, address, where()));
    } else if ((address & (bytes - 1)) != 0) {
      cta_.find(FindingKind::misaligned, &warp, &instruction, lane, address,
                fmt::format("an access of {} bytes at {:#x}, which is not a multiple of {}", bytes, address, bytes));
    } else {
      host[lane] = allocation->data + (address - allocation->address);
      continue;
    }
    good_lanes &= ~(1u << lane);
  }
  return good_lanes;
}

std::byte* CtaMemory::local_address(const Warp& warp, int lane, std::uint64_t address) {
  const std::size_t thread = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  return local_.data() + thread * context_.kernel.local_bytes + (address - kLocalBase);
}

std::byte* CtaMemory::global_range(const Warp& warp, const Instruction& instruction, int lane, Address address,
                                   std::size_t bytes, bool writes) {
  const Allocation* allocation = find_allocation(address);
  const auto refuse = [&](FindingKind kind) {
    cta_.find(kind, &warp, &instruction, lane, address,
              fmt::format("an access of {} bytes of global memory at {:#x}, which is {}", bytes, address,
                          context_.memory.describe(address)));
    return nullptr;
  };
  if (allocation == nullptr || allocation->size - (address - allocation->address) < bytes)
    return refuse(FindingKind::out_of_bounds);
  if (allocation->freed) return refuse(FindingKind::use_after_free);
  if (allocation->poisoned && context_.options.checks) {
    std::uint8_t* const first = allocation->initialised + (address - allocation->address);
    if (writes) {
      std::memset(first, 0xff, bytes);
    } else if (std::find(first, first + bytes, 0) != first + bytes) {
      cta_.find(FindingKind::uninitialised_read, &warp, &instruction, lane, address,
                fmt::format("a read of {} bytes of global memory at {:#x}, which were never written: {}", bytes,
                            address, context_.memory.describe(address)));
    }
  }
  return allocation->data + (address - allocation->address);
}

PlacedPattern CtaMemory::pattern_of(const std::uint32_t* offsets, std::uint32_t mask, unsigned bytes, bool matrices) {
  if (patterns_.full()) {
    if (cta_.shadow() != nullptr) cta_.shadow()->forget_patterns();
    std::fill(last_patterns_.begin(), last_patterns_.end(), nullptr);
    patterns_.clear();
  }
  return patterns_.find(offsets, mask, bytes, matrices);
}

PlacedPattern CtaMemory::whole_warp_access(const Warp& warp, const Instruction& instruction, std::int32_t reg,
                                           std::uint32_t mask, unsigned bytes, bool matrices) {
  if (mask != kAllLanes || shared_bytes_ < bytes) return {};
  const std::byte* const addresses = warp.registers + reg;
  const std::int64_t offset = instruction.offset - kSharedBase;
  // Instructions in loops repeat their earlier access patterns, at the same place or elsewhere.
  const AccessPattern*& last = last_patterns_[static_cast<std::size_t>(cta_.index_of(instruction))];
  PlacedPattern placed;
  std::uint64_t base = 0;
  if (last != nullptr && lanes::repeats(addresses, instruction.wide_address, offset, last->offsets.data(), &base) &&
      base < shared_bytes_ && base + last->span <= shared_bytes_ && base % std::max(bytes, 4u) == 0) {
    placed = {last, static_cast<std::uint32_t>(base)};
  } else {
    alignas(64) std::uint32_t offsets[kWarpSize];
    if (!lanes::shared_offsets(addresses, instruction.wide_address, offset, shared_bytes_ - bytes + 1, bytes, offsets))
      return {};
    placed = pattern_of(offsets, kAllLanes, bytes, matrices);
    last = placed.pattern;
  }
  if (instruction.variable < 0) return placed;
  const KnownVariable& variable = context_.kernel.variables[static_cast<std::size_t>(instruction.variable)];
  const bool inside = variable.space == ptx::Space::shared && placed.base + placed.pattern->first >= variable.begin &&
                      placed.base + placed.pattern->span <= variable.end;
  return inside ? placed : PlacedPattern{};
}

// An array in shared or local memory ends where another begins, and writing there is an error like any other. `offsets`
// are relative to the start of the space.
void CtaMemory::check_variable(Warp& warp, const Instruction& instruction, ptx::Space space, std::uint32_t mask,
                               unsigned bytes, const std::uint32_t* offsets) {
  if (instruction.variable < 0 || !context_.options.checks) return;
  const std::vector<KnownVariable>& variables = context_.kernel.variables;
  const KnownVariable& own = variables[static_cast<std::size_t>(instruction.variable)];
  if (own.space != space) return;
  const auto words_for = [](const KnownVariable& variable) {
    if (variable.name.empty()) return fmt::format("the local variable at byte {}", variable.begin);
    if (variable.name.starts_with(kLocalVariables)) return std::string("a function's local variables");
    return fmt::format("`{}`", variable_name(variable.name));
  };
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t offset = offsets[lane];
    if (offset >= own.begin && offset < own.end && own.end - offset >= bytes) continue;
    if (!cta_.findings().is_new(FindingKind::out_of_bounds, cta_.place_of(cta_.index_of(instruction)), -1)) continue;
    const bool before = offset < own.begin, across = !before && offset < own.end;
    const std::uint32_t wrong = across ? own.end : offset;
    // A variable that contains others comes before them.
    const auto other = std::find_if(variables.rbegin(), variables.rend(), [&](const KnownVariable& variable) {
      return variable.space == space && wrong >= variable.begin && wrong < variable.end;
    });
    const std::string where = before   ? fmt::format("{} bytes before the beginning of", own.begin - offset)
                              : across ? "across the end of"
                                       : fmt::format("{} bytes after the end of", offset - own.end);
    cta_.findings().add(cta_.describe(
        FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
        fmt::format(
            "an access of {} bytes of {} memory {} {}{}{}", bytes, space == ptx::Space::shared ? "shared" : "local",
            where, words_for(own),
            own.end == ~0u
                ? ""
                : fmt::format(", which has {}{} bytes", own.name.empty() ? "at most " : "", own.end - own.begin),
            other == variables.rend() ? "" : fmt::format(": byte {} of {}", wrong - other->begin, words_for(*other)))));
  }
}

// Groups lanes by the space of their addresses, and calls f(space, lanes, addresses in that space). For an
// instruction's access to one space: checks the addresses, finds the bytes, and counts.
void CtaMemory::resolve(Warp& warp, const Instruction& instruction, const LaneAddresses& at, MemoryAccess& access) {
  DetailCount& counters = detail(instruction);
  const unsigned bytes = access.bytes;
  access.consecutive = false;
  switch (access.space) {
    case ptx::Space::shared: {
      access.good = check_shared(warp, instruction, at, access.lanes, bytes, access.offsets);
      const PlacedPattern placed = count_shared(instruction, access.lanes, access.good, bytes, access.offsets);
      access.placed = access.good == kAllLanes ? placed : PlacedPattern{};
      std::byte* const memory = access.peer == nullptr ? shared() : access.peer->memory().shared();
      for (int lane = 0; lane < kWarpSize; ++lane) access.host[lane] = memory + access.offsets[lane];
      break;
    }
    case ptx::Space::local:
      access.good = check_window(warp, instruction, at, access.lanes, bytes,
                                 {kLocalBase, context_.kernel.local_bytes, "thread", "local"}, access.offsets);
      check_variable(warp, instruction, ptx::Space::local, access.good, bytes, access.offsets);
      count(counters.local, access.lanes, bytes, count_local_sectors(at.at.data(), access.good, bytes),
            ideal_sectors(access.lanes, bytes));
      for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        access.host[lane] = local_address(warp, lane, kLocalBase + access.offsets[lane]);
      }
      break;
    case ptx::Space::param: {
      const auto parameters = context_.config.parameters;
      access.good = access.lanes;
      for (std::uint32_t rest = access.lanes; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        const std::uint64_t offset = at.at[static_cast<std::size_t>(lane)];
        if (offset >= parameters.size() || parameters.size() - offset < bytes) {
          cta_.find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
                    fmt::format("an access of {} bytes at byte {} of the kernel's {} bytes of parameters", bytes,
                                static_cast<std::int64_t>(offset), parameters.size()));
          access.good &= ~(1u << lane);
          continue;
        }
        access.host[lane] = const_cast<std::byte*>(parameters.data()) + offset;
      }
      break;
    }
    default:
      access.good = check_global(warp, instruction, at, access.lanes, bytes, access.host);
      access.consecutive = consecutive_;
      if (access.space == ptx::Space::global) {
        const std::uint64_t requested = static_cast<std::uint64_t>(std::popcount(access.lanes)) * bytes;
        count_global(counters.global, requested, requested, sectors_of(at.at.data(), access.good, consecutive_));
      }
      break;
  }
}

// Lanes grouped by the space of their generic addresses.
std::array<CtaMemory::SpaceLanes, 4> CtaMemory::spaces_of(const Instruction& instruction, const LaneAddresses& at,
                                                          std::uint32_t mask) {
  const std::uint32_t shared = lanes_in_window(at.at.data(), mask, kSharedWindow);
  const std::uint32_t local = lanes_in_window(at.at.data(), mask, kLocalWindow);
  const std::uint32_t parameter = lanes_in_window(at.at.data(), mask, kParameterWindow);
  if (shared == mask) ++detail(instruction).shared_accesses;
  return {{{ptx::Space::global, mask & ~(shared | local | parameter), 0},
           {ptx::Space::shared, shared, kSharedWindow},
           {ptx::Space::local, local, kLocalWindow},
           {ptx::Space::param, parameter, kParameterWindow}}};
}

}  // namespace flash_ladder::emulator
