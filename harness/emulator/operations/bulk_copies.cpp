// Operations whose bytes are counted by mbarriers. TMA: cp.async.bulk and cp.async.bulk.tensor, PTX ISA, "Data Movement
// and Conversion Instructions: Bulk copy", "Bulk tensor copy"; also st.async and red.async. exec/async_copies.cpp
// decides when bytes arrive and are read.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/operations/atomics.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;

constexpr std::uint32_t kTensorAlignment = 128, kBulkAlignment = 16;
// The number of sectors that a range touches.
std::uint64_t sectors_of(Address address, std::uint64_t bytes) {
  return bytes == 0 ? 0 : (address + bytes - 1) / kSectorBytes - address / kSectorBytes + 1;
}

std::uint64_t value_of(const Warp& warp, std::int32_t reg, int lane) {
  return reinterpret_cast<const std::uint64_t*>(warp.registers + reg)[lane];
}

// The offset of the bytes in shared memory; nullopt, after a finding, if they cannot be there.
std::optional<std::uint32_t> shared_offset(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane,
                                           std::uint64_t address, std::uint64_t bytes, std::uint32_t alignment) {
  const std::uint64_t offset =
      address - kSharedBase - (address >= kSharedWindow && address < kSharedWindow + kWindowSize ? kSharedWindow : 0);
  const std::uint64_t size = cta.memory().shared_bytes();
  if (offset > size || size - offset < bytes) {
    cta.find(FindingKind::out_of_bounds, &warp, &instruction, lane, offset,
             fmt::format("a copy by TMA of {} bytes at byte {} of the block's {} bytes of shared memory", bytes,
                         static_cast<std::int64_t>(offset), size));
    return std::nullopt;
  }
  if (offset % alignment != 0) {
    cta.find(
        FindingKind::misaligned, &warp, &instruction, lane, offset,
        fmt::format("a copy by TMA at byte {} of shared memory, which is not a multiple of {}", offset, alignment));
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(offset);
}

std::optional<TensorMap> map_at(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane,
                                Address address) {
  const std::byte* bytes = nullptr;
  if (address - kParameterWindow < kWindowSize) {
    const auto parameters = cta.context().config.parameters;
    const std::uint64_t offset = address - kParameterWindow;
    if (offset <= parameters.size() && parameters.size() - offset >= kTensorMapBytes)
      bytes = parameters.data() + offset;
  } else {
    bytes = cta.memory().global_range(warp, instruction, lane, address, kTensorMapBytes, false);
    if (bytes == nullptr) return std::nullopt;
  }
  constexpr std::uint64_t kMapAlignment = 64;
  std::optional<TensorMap> map;
  if (bytes != nullptr && address % kMapAlignment == 0) map = load_tensor_map(bytes);
  if (!map) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
             "there is no tensor map at this address: cuTensorMapEncodeTiled creates one, which is passed as a "
             "const __grid_constant__ parameter, or in global memory, at a multiple of 64 bytes");
  } else if (map->dimensions != static_cast<int>(instruction.count)) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
             fmt::format("a copy of a {}-dimensional box with a tensor map of {} dimensions", instruction.count,
                         map->dimensions));
    return std::nullopt;
  }
  return map;
}

// What an H200 writes in place of each 16 bits outside the tensor: seen with elements of 2 and of 4 bytes.
constexpr std::uint16_t kOutside = 0x7ff7;

// A box of the tensor, row by row. The rows leave out everything outside the tensor.
std::optional<BulkTransfer> box_at(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane,
                                   const TensorMap& map, const std::int32_t* coordinates, bool writes) {
  BulkTransfer transfer{.row_bytes = map.row_bytes(),
                        .swizzle = map.swizzle,
                        .fill = map.fills_with_nan ? kOutside : std::uint16_t{0},
                        .of_tensor = true};
  const auto dimensions = static_cast<std::size_t>(map.dimensions);
  const auto element = static_cast<std::int64_t>(map.element_bytes);
  const std::int64_t first = coordinates[0];
  if (first * element % kBulkAlignment != 0) {
    cta.find(FindingKind::misaligned, &warp, &instruction, lane, map.address,
             fmt::format("a box that begins {} bytes from the beginning of a row: it must be a multiple of 16 (an H200 "
                         "reports “illegal instruction”)",
                         first * element));
    return std::nullopt;
  }
  if (writes && std::any_of(coordinates, coordinates + dimensions, [](std::int32_t at) { return at < 0; })) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, map.address,
             "a store of a box that begins before the tensor: a box may end beyond it, but this is an “illegal "
             "instruction” on an H200");
    return std::nullopt;
  }
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, map.box[0]);
  const std::int64_t end = std::clamp<std::int64_t>(static_cast<std::int64_t>(map.sizes[0]) - first, 0, map.box[0]);
  std::size_t num_rows = 1;
  for (std::size_t i = 1; i < dimensions; ++i) num_rows *= map.box[i];
  std::uint64_t total = 0, sectors = 0;
  for (std::size_t row = 0; row < num_rows; ++row) {
    BulkTransfer::Row& part = transfer.rows.emplace_back();
    bool inside = begin < end;
    Address address = map.address + static_cast<Address>((first + begin) * element);
    std::size_t rest = row;
    for (std::size_t i = 1; i < dimensions; ++i) {
      const std::int64_t at = coordinates[i] + static_cast<std::int64_t>(rest % map.box[i]);
      rest /= map.box[i];
      inside = inside && at >= 0 && at < static_cast<std::int64_t>(map.sizes[i]);
      address += static_cast<Address>(at) * map.strides[i];
    }
    if (!inside) continue;
    // A store writes whole pieces of 16 bytes, even if a row ends within one (as an H200 does).
    const std::int64_t end_byte =
        writes ? (end * element + kBulkAlignment - 1) / kBulkAlignment * kBulkAlignment : end * element;
    const auto bytes = static_cast<std::size_t>(end_byte - begin * element);
    part.host = cta.memory().global_range(warp, instruction, lane, address, bytes, writes);
    if (part.host == nullptr) return std::nullopt;
    part.begin = static_cast<std::uint32_t>(begin * element);
    part.end = static_cast<std::uint32_t>(end_byte);
    sectors += sectors_of(address, bytes);
    total += bytes;
  }
  count_global(cta.detail(instruction).global, map.box_bytes(), total, sectors);
  return transfer;
}

std::optional<BulkTransfer> range_at(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane,
                                     Address address, std::uint32_t bytes, bool writes) {
  if (bytes == 0 || bytes % kBulkAlignment != 0 || address % kBulkAlignment != 0) {
    cta.find(FindingKind::misaligned, &warp, &instruction, lane, address,
             fmt::format("cp.async.bulk of {} bytes at {:#x} of global memory: both must be multiples of 16", bytes,
                         address));
    return std::nullopt;
  }
  std::byte* host = cta.memory().global_range(warp, instruction, lane, address, bytes, writes);
  if (host == nullptr) return std::nullopt;
  count_global(cta.detail(instruction).global, bytes, bytes, sectors_of(address, bytes));
  BulkTransfer transfer{.row_bytes = bytes};
  transfer.rows.push_back({.host = host, .begin = 0, .end = bytes});
  return transfer;
}

// r: shared memory, the tensor map, (for a load the mbarrier,) coordinates; or shared memory, global memory, a size (,
// the mbarrier). `count` is the number of coordinates, 0 for a range of memory. has_count: with a mask of CTAs, the
// last operand.
template <bool kLoad>
void copy(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const bool of_tensor = instruction.count != 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t shared = value_of(warp, instruction.r[0], lane),
                        global = value_of(warp, instruction.r[1], lane);
    std::optional<BulkTransfer> transfer;
    std::uint32_t ranks = 1u << cta.cluster().rank();
    if (instruction.has_count) {
      ranks = reinterpret_cast<const std::uint16_t*>(
          warp.registers + instruction.r[static_cast<std::size_t>(instruction.operands) - 1])[lane];
      if (ranks >> cta.cluster().size() != 0) {
        cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
                 fmt::format("a copy to the CTAs {:#x} of a cluster that has {}", ranks, cta.cluster().size()));
      }
    }
    if (of_tensor) {
      const auto map = map_at(cta, warp, instruction, lane, global);
      if (!map) continue;
      std::int32_t coordinates[TensorMap::kMostDimensions] = {};
      for (std::size_t i = 0; i < instruction.count; ++i) {
        const std::size_t operand = i + (kLoad ? 3 : 2);
        coordinates[i] = reinterpret_cast<const std::int32_t*>(warp.registers + instruction.r[operand])[lane];
      }
      transfer = box_at(cta, warp, instruction, lane, *map, coordinates, !kLoad);
    } else {
      const auto bytes = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2])[lane];
      transfer = range_at(cta, warp, instruction, lane, global, bytes, !kLoad);
    }
    if (!transfer) continue;
    const auto offset = shared_offset(cta, warp, instruction, lane, shared, transfer->extent(),
                                      of_tensor ? kTensorAlignment : kBulkAlignment);
    if (!offset) continue;
    transfer->shared = *offset;
    if (!kLoad) {
      cta.async()->copies.issue_store(warp, instruction, lane, std::move(*transfer));
      continue;
    }
    const std::uint64_t address = value_of(warp, instruction.r[of_tensor ? 2 : 3], lane);
    const auto at = shared_offset(cta, warp, instruction, lane, address, 8, 8);
    if (!at) continue;
    if (cta.shadow() != nullptr) {
      std::uint32_t offsets[kWarpSize];
      std::fill_n(offsets, kWarpSize, *at);
      cta.shadow()->read({warp.index, cta.index_of(instruction), true, 1u << lane, 8, offsets});
    }
    for (; ranks != 0; ranks &= ranks - 1) {
      CtaExecutor* const there = cta.cluster().peer(static_cast<std::size_t>(std::countr_zero(ranks)));
      if (there == nullptr) continue;
      if (there->has_ended()) {
        cta.find(FindingKind::in_flight, &warp, &instruction, lane, *offset,
                 fmt::format("a copy to CTA {} of the cluster, which has ended", there->cluster().rank()));
        continue;
      }
      const auto barrier = std::find_if(there->mbarriers().begin(), there->mbarriers().end(),
                                        [&](const Mbarrier& known) { return known.address == *at; });
      if (barrier == there->mbarriers().end()) {
        cta.find(
            FindingKind::invalid_operation, &warp, &instruction, lane, *at,
            fmt::format("byte {} of shared memory holds no mbarrier: it was not initialised, or was invalidated", *at));
        continue;
      }
      const auto issue = [&](std::uint32_t, const PeerAccess* peer) {
        there->async()->copies.issue_load(cta, warp, instruction, lane, *transfer, *barrier, peer);
      };
      if (there == &cta) {
        issue(1u << lane, nullptr);
      } else if (cta.cluster().is_there(*there, warp, instruction, lane)) {
        cta.cluster().copy_to_peer(warp, instruction, *there, 1u << lane, issue);
      }
    }
  }
}

void commit(CtaExecutor& cta, Warp& warp, const Instruction&, std::uint32_t mask) {
  cta.async()->copies.commit_stores(warp, mask);
}

template <bool kReadOnly>
void wait(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta.async()->copies.wait_for_stores(warp, mask, instruction.count, kReadOnly);
}

// The CTA whose shared memory contains an address of the cluster, and the offset there.
struct ClusterPlace {
  std::uint64_t rank, address;
};
ClusterPlace place_in_cluster(const CtaExecutor& cta, std::uint64_t address) {
  if (address >= kSharedWindow) address -= kSharedWindow;
  return {.rank = rank_of(address).value_or(cta.cluster().rank()), .address = without_rank(address)};
}

// The mbarrier that is signalled when bytes have arrived at a CTA; null, after a finding, if it does not belong to that
// CTA.
Mbarrier* barrier_at(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane, std::uint64_t address,
                     CtaExecutor& there) {
  const ClusterPlace place = place_in_cluster(cta, address);
  const std::uint64_t at = place.address - kSharedBase;
  if (place.rank != there.cluster().rank()) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, at,
             fmt::format("bytes for CTA {} of the cluster, with an mbarrier of CTA {}: both must belong to the same "
                         "CTA",
                         there.cluster().rank(), place.rank));
    return nullptr;
  }
  const auto barrier = std::find_if(there.mbarriers().begin(), there.mbarriers().end(),
                                    [&](const Mbarrier& known) { return known.address == at; });
  if (barrier != there.mbarriers().end()) return &*barrier;
  cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, at,
           fmt::format("byte {} of the shared memory of CTA {} of the cluster holds no mbarrier",
                       static_cast<std::int64_t>(at), place.rank));
  return nullptr;
}

// From the CTA's own shared memory to that of a CTA of the cluster. r: to, from, a size, the mbarrier, which belongs to
// that CTA.
void copy_to_cluster(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto bytes = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2])[lane];
    if (bytes == 0 || bytes % kBulkAlignment != 0) {
      cta.find(FindingKind::misaligned, &warp, &instruction, lane, std::nullopt,
               fmt::format("cp.async.bulk of {} bytes: it must be a multiple of 16", bytes));
      continue;
    }
    const ClusterPlace to = place_in_cluster(cta, value_of(warp, instruction.r[0], lane));
    CtaExecutor* const there = cta.cluster().peer(to.rank);
    if (there == nullptr) {
      cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
               fmt::format("a copy to CTA {} of a cluster that has {}", to.rank, cta.cluster().size()));
      continue;
    }
    const std::uint64_t from = value_of(warp, instruction.r[1], lane);
    const auto source = shared_offset(cta, warp, instruction, lane, from, bytes, kBulkAlignment);
    const auto offset = shared_offset(cta, warp, instruction, lane, to.address, bytes, kBulkAlignment);
    if (!source || !offset || (there != &cta && !cta.cluster().is_there(*there, warp, instruction, lane))) continue;
    const std::uint64_t barrier_address = value_of(warp, instruction.r[3], lane);
    Mbarrier* const barrier = barrier_at(cta, warp, instruction, lane, barrier_address, *there);
    if (barrier == nullptr) continue;
    BulkTransfer transfer{.shared = *offset, .row_bytes = bytes, .source = BulkTransfer::Source{*source}};
    transfer.rows.push_back({.host = cta.memory().shared() + *source, .begin = 0, .end = bytes});
    cta.async()->copies.begin_source(warp, instruction, lane, transfer);
    const auto issue = [&](std::uint32_t, const PeerAccess* peer) {
      there->async()->copies.issue_load(cta, warp, instruction, lane, transfer, *barrier, peer);
    };
    if (there == &cta) {
      issue(1u << lane, nullptr);
    } else {
      cta.cluster().copy_to_peer(warp, instruction, *there, 1u << lane, issue);
    }
  }
}

template <AtomicOperation kOperation>
std::uint64_t combined(ptx::Type type, std::uint64_t old, std::uint64_t operand) {
  return apply_atomic(kOperation, type, ptx::Space::shared, old, operand, 0);
}

// r: shared memory, the mbarrier, the values.
template <LaneStores::Combine kCombine>
void store_async(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::string name = kCombine == nullptr ? "st.async" : "red.async";
  const auto refuse = [&](std::uint32_t lanes, std::optional<Address> address, const std::string& message) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(lanes), address, message);
  };
  if (cta.cluster().size() == 1)
    return refuse(mask, std::nullopt, name + " in a cluster of one CTA: it is for clusters of two or more");
  const UndefinedLanes undefined = undefined_sources(cta, warp, instruction, 2, instruction.operands, mask);
  report_undefined(cta, warp, instruction, undefined, "stored");
  cta.memory().for_each_space(
      warp, instruction, instruction.r[0], mask, [&](const MemoryAccess& access, const LaneAddresses&) {
        if (access.space != Space::shared)
          return refuse(access.lanes, std::nullopt, name + " to an address that is not in shared memory");
        CtaExecutor& there = access.peer == nullptr ? cta : *access.peer;
        if (kCombine != nullptr && &there == &cta)
          return refuse(access.lanes, std::nullopt, name + " to the CTA's own shared memory: it must be another CTA's");
        LaneStores stores{.bytes_each = access.bytes, .combine = kCombine, .type = instruction.type};
        std::copy_n(access.offsets, kWarpSize, stores.offsets.begin());
        for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
          const int lane = std::countr_zero(rest);
          for (std::size_t i = 0; i < instruction.elements; ++i) {
            std::memcpy(stores.value(lane) + i * instruction.bytes,
                        warp.registers + instruction.r[i + 2] + static_cast<std::size_t>(lane) * instruction.bytes,
                        instruction.bytes);
          }
        }
        for (std::uint32_t rest = access.good; rest != 0;) {
          const std::uint64_t barrier_address = value_of(warp, instruction.r[1], std::countr_zero(rest));
          std::uint32_t same = 0;  // the lanes that name the same mbarrier
          for (std::uint32_t others = rest; others != 0; others &= others - 1) {
            const int other = std::countr_zero(others);
            if (value_of(warp, instruction.r[1], other) == barrier_address) same |= 1u << other;
          }
          rest &= ~same;
          Mbarrier* const barrier = barrier_at(cta, warp, instruction, std::countr_zero(same), barrier_address, there);
          if (barrier == nullptr) continue;
          const auto issue = [&](std::uint32_t lanes, const PeerAccess* peer) {
            stores.lanes = lanes;
            there.async()->copies.issue_lane_stores(cta, warp, instruction, stores, *barrier, peer);
          };
          if (&there == &cta) {
            issue(same, nullptr);
          } else {
            cta.cluster().copy_to_peer(warp, instruction, there, same, issue);
          }
        }
      });
}

// An address of 64 bits, with its offset added.
int plain_address(KernelDecoder& d, const Operand& operand, Space space) {
  std::int64_t offset = 0;
  bool wide = true;
  int address = d.address_operand(operand, space, offset, wide);
  if (!wide) {
    const int widened = d.temporary(Slot::b64);
    d.emit_lane("%widen.u.32.64", {widened}, {address});
    address = widened;
  }
  if (offset == 0) return address;
  const int sum = d.temporary(Slot::b64);
  d.emit_lane("add.u64", {sum}, {address, d.constant(Slot::b64, static_cast<std::uint64_t>(offset))});
  return sum;
}

// cp.async.bulk.shared::cluster.shared::cta
void decode_copy_to_cluster(KernelDecoder& d) {
  const std::vector<std::string_view>& parts = d.parts();
  if (parts.size() != 6 || parts.back() != "mbarrier::complete_tx::bytes") d.fail_unknown();
  d.expect_operands(4);
  const std::vector<int> reads = {plain_address(d, d.operand(0), Space::shared),
                                  plain_address(d, d.operand(1), Space::shared), d.read(d.operand(2), Slot::b32),
                                  plain_address(d, d.operand(3), Space::shared)};
  Instruction& out = d.emit(copy_to_cluster, InstructionClass::tma, {}, reads);
  d.first_emitted().counted = false;  // the address computation, if there is one
  out.counted = true;
  out.role = MemoryRole::tma_load;
  out.space = Space::shared;
  out.bytes = 16;
}

// What follows the state spaces in the opcode.
struct CopyModifiers {
  bool multicast = false, hint = false;
};

CopyModifiers copy_modifiers(KernelDecoder& d, std::size_t first, bool of_tensor, bool loads) {
  CopyModifiers modifiers;
  bool completes = false;
  for (std::size_t i = first; i < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (part == (loads ? "mbarrier::complete_tx::bytes" : "bulk_group")) {
      completes = true;
    } else if (part == "multicast::cluster" && loads) {
      modifiers.multicast = true;
    } else if (part == "L2::cache_hint") {
      modifiers.hint = true;
    } else if (part != "tile" || !of_tensor) {
      d.fail_unknown();
    }
  }
  if (!completes) d.fail_unknown();
  return modifiers;
}

// Shared memory, global memory or the map, then the mbarrier of a load, and coordinates or the size.
std::vector<int> copy_operands(KernelDecoder& d, bool of_tensor, bool loads, int dimensions) {
  const Operand& shared = d.operand(loads ? 0 : 1);
  const Operand& global = d.operand(loads ? 1 : 0);
  std::vector<int> reads = {plain_address(d, shared, Space::shared)};
  // The coordinates are part of the operand with the address of the map.
  Operand address = global;
  address.elements.clear();
  reads.push_back(plain_address(d, address, of_tensor ? Space::generic : Space::global));
  if (of_tensor) {
    if (loads) reads.push_back(plain_address(d, d.operand(2), Space::shared));
    if (static_cast<int>(global.elements.size()) != dimensions) d.fail("not as many coordinates as dimensions");
    for (const Operand& coordinate : global.elements) reads.push_back(d.read(coordinate, Slot::b32));
  } else {
    reads.push_back(d.read(d.operand(2), Slot::b32));
    if (loads) reads.push_back(plain_address(d, d.operand(3), Space::shared));
  }
  return reads;
}

// cp.async.bulk[.tensor.Nd].to.from[.tile][.completion][.multicast::cluster][.L2::cache_hint], between shared and global
// memory.
void decode_copy(KernelDecoder& d) {
  const std::vector<std::string_view>& parts = d.parts();
  const bool of_tensor = parts[3] == "tensor";
  std::size_t next = of_tensor ? 5 : 3;
  int dimensions = 0;
  if (of_tensor) {
    if (parts.size() < 8 || parts[4].size() != 2 || parts[4][1] != 'd') d.fail_unknown();
    dimensions = parts[4][0] - '0';
    if (dimensions < 1 || dimensions > TensorMap::kMostDimensions) d.fail_unknown();
  }
  if (parts.size() < next + 3) d.fail_unknown();
  const std::string_view to = parts[next], from = parts[next + 1];
  if (to == "shared::cluster" && from == "shared::cta" && !of_tensor) return decode_copy_to_cluster(d);
  const bool loads = (to == "shared::cluster" || to == "shared::cta") && from == "global";
  if (!loads && !(to == "global" && from == "shared::cta")) d.fail_unknown();
  const auto [multicast, hint] = copy_modifiers(d, next + 2, of_tensor, loads);
  const std::size_t optional = (multicast ? 1u : 0u) + (hint ? 1u : 0u);
  const std::size_t operands = of_tensor ? (loads ? 3 : 2) : (loads ? 4 : 3);
  d.expect_operands(operands + optional);
  std::vector<int> reads = copy_operands(d, of_tensor, loads, dimensions);
  if (multicast) reads.push_back(d.read(d.operand(operands), Slot::b16));
  Instruction& out = d.emit(loads ? copy<true> : copy<false>, InstructionClass::tma, {}, reads);
  d.first_emitted().counted = false;  // the address computation, if there is one
  out.counted = true;
  out.role = loads ? MemoryRole::tma_load : MemoryRole::tma_store;
  out.space = Space::shared;
  out.bytes = 16;
  out.count = static_cast<std::uint32_t>(dimensions);
  out.has_count = multicast;
}

}  // namespace

void decode_bulk_copy(KernelDecoder& d) {
  const std::vector<std::string_view>& parts = d.parts();
  if (parts.size() < 4) d.fail_unknown();
  d.kernel().uses_async_proxy = true;
  if (parts[3] == "commit_group" && parts.size() == 4) {
    d.expect_operands(0);
    d.emit(commit, InstructionClass::barrier, {}, {}).computes_nothing = true;
    return;
  }
  if (parts[3] == "wait_group" && (parts.size() == 4 || (parts.size() == 5 && parts[4] == "read"))) {
    d.expect_operands(1);
    const int count = d.immediate(0);
    if (count < 0) d.fail("a negative count");
    Instruction& out = d.emit(parts.size() == 5 ? wait<true> : wait<false>, InstructionClass::barrier, {}, {});
    out.count = static_cast<std::uint32_t>(count);
    out.computes_nothing = true;
    return;
  }
  if (parts[3] == "prefetch") {
    d.emit(nothing, InstructionClass::other, {}, {});
    return;
  }
  decode_copy(d);
}

// st.async[.weak][.shared::cluster].mbarrier::complete_tx::bytes[.v2|.v4].type [a], b, [mbar];
// red.async.relaxed.cluster[.shared::cluster].mbarrier::complete_tx::bytes.op.type [a], b, [mbar]. The forms for global
// memory require sm_100.
void decode_async_store(KernelDecoder& d) {
  static const std::unordered_map<std::string_view, Execute> operations = {
      {"inc", store_async<combined<AtomicOperation::inc>>},  {"dec", store_async<combined<AtomicOperation::dec>>},
      {"min", store_async<combined<AtomicOperation::min>>},  {"max", store_async<combined<AtomicOperation::max>>},
      {"and", store_async<combined<AtomicOperation::and_>>}, {"or", store_async<combined<AtomicOperation::or_>>},
      {"xor", store_async<combined<AtomicOperation::xor_>>}, {"add", store_async<combined<AtomicOperation::add>>},
  };
  const bool reduces = d.parts()[0] == "red";
  Space space = Space::generic;
  int elements = 1;
  bool completes = false;
  std::string_view operation;
  for (std::size_t i = 2; i + 1 < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (part == "shared::cluster") {
      space = Space::shared;
    } else if (part == "mbarrier::complete_tx::bytes") {
      completes = true;
    } else if (reduces && operations.contains(part)) {
      operation = part;
    } else if (!reduces && (part == "v2" || part == "v4")) {
      elements = part[1] - '0';
    } else if (part != "cluster" && part != (reduces ? "relaxed" : "weak")) {
      d.fail_unknown();
    }
  }
  const ptx::Type type = d.last_type();
  const auto is = [&](std::initializer_list<std::string_view> types) {
    return std::find(types.begin(), types.end(), d.parts().back()) != types.end();
  };
  const bool known = operation == "inc" || operation == "dec"   ? is({"u32"})
                     : operation == "min" || operation == "max" ? is({"u32", "s32"})
                     : operation == "add"                       ? is({"u32", "s32", "u64"})
                     : !operation.empty()                       ? is({"b32"})
                                                                : !reduces && type.bits * elements <= 128 &&
                                                is({"b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"});
  if (!known || !completes) d.fail_unknown();
  d.expect_operands(3);
  d.kernel().uses_async_proxy = true;
  std::int64_t offset = 0;
  bool wide = true;
  const int address = d.address_operand(d.operand(0), space, offset, wide);
  std::vector<int> reads = {address, plain_address(d, d.operand(2), space)};
  const std::vector<Operand> values = d.elements(d.operand(1));
  if (static_cast<int>(values.size()) != elements) d.fail("a vector of the wrong length");
  for (const Operand& value : values) reads.push_back(d.read(value, slot_of(type.bits / 8)));
  if (reduces) reads.push_back(reads.back());  // other atomic operations have it twice, too, except atom.cas
  Instruction& out = d.emit(reduces ? operations.at(operation) : store_async<nullptr>,
                            reduces ? InstructionClass::atomic : InstructionClass::shared_store, {}, reads);
  d.first_emitted().counted = false;  // the address computation, if there is one
  out.counted = true;
  out.role = MemoryRole::store;
  out.own_sources = 0xfffc;  // the values
  out.bytes = static_cast<std::uint8_t>(type.bits / 8);
  out.elements = static_cast<std::uint8_t>(elements);
  out.space = space;
  out.of_cluster = true;
  out.wide_address = wide;
  out.offset = offset;
  out.type = type;
}

}  // namespace flash_ladder::emulator
