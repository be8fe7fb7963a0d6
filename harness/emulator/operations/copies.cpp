// cp.async. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy". A copy happens as late as the
// program allows: when a wait, or the phase of an mbarrier, guarantees that it is complete. Until then its destination
// contains NaNs.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/async_units.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;
using Kind = Operand::Kind;

// For a size known at compile time, without a call.
void poison(std::byte* to, unsigned bytes) {
  if (bytes == 16) {
    std::memset(to, kPoison, 16);
  } else {
    std::memset(to, kPoison, bytes);
  }
}

template <bool kIgnoreSource>
void copy_async(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const unsigned bytes = instruction.bytes;
  LaneAddresses from;
  std::memcpy(from.at.data(), warp.registers + instruction.r[1], sizeof from.at);
  PendingCopy& copy = warp.copies.emplace_back();
  std::uint32_t good = mask;
  const PlacedPattern placed = cta.memory().whole_warp_access(warp, instruction, instruction.r[0], mask, bytes);
  if (placed.pattern != nullptr) {
    cta.memory().count_shared(instruction, *placed.pattern);
    placed.expand(copy.to);
  } else {
    LaneAddresses to;
    cta.memory().addresses(warp, instruction, instruction.r[0], to);
    good = cta.memory().check_shared(warp, instruction, to, mask, bytes, copy.to);
    cta.memory().count_shared(instruction, good, good, bytes, copy.to);
  }

  // The number of bytes that each lane reads; the rest of the destination becomes zero.
  std::uint32_t from_bytes[kWarpSize];
  std::fill_n(from_bytes, kWarpSize, bytes);
  std::uint32_t readers = good;
  for (int lane = 0; instruction.operands > 2 && lane < kWarpSize; ++lane) {
    if (kIgnoreSource) {  // a predicate: true means that nothing is read
      std::uint32_t ignore;
      std::memcpy(&ignore, warp.registers + instruction.r[2], 4);
      if ((ignore >> lane) & 1) from_bytes[lane] = 0;
    } else {
      std::memcpy(&from_bytes[lane], warp.registers + instruction.r[2] + 4 * lane, 4);
      if (((good >> lane) & 1) && from_bytes[lane] > bytes) {
        cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
                 fmt::format("cp.async of {} bytes with a source of {}", bytes, from_bytes[lane]));
        from_bytes[lane] = bytes;
      }
    }
    if (from_bytes[lane] == 0) readers &= ~(1u << lane);
  }
  readers = cta.memory().check_global(warp, instruction, from, readers, bytes, copy.from);
  if (cta.context().options.checks) {
    cta.memory().check_initialised(warp, instruction, from, readers, bytes);
    cta.memory().read_global(warp, instruction, from, readers, bytes);
  }
  if (cta.shadow() != nullptr) {
    const SharedAccess access{.warp = warp.index,
                              .instruction = cta.index_of(instruction),
                              .strength = kWeak,
                              .mask = good,
                              .bytes = bytes,
                              .offsets = copy.to,
                              .placed = placed};
    if (!cta.mbarriers().empty()) cta.shadow()->look_for_lost(access);
    cta.shadow()->issue_copy(access);
  }

  if (readers != 0) {
    std::uint64_t total = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) total += (readers >> lane & 1) * from_bytes[lane];
    count_global(cta.detail(instruction).global, total, total, count_sectors(from.at.data(), readers));
  }

  copy.instruction = cta.index_of(instruction);
  copy.number = warp.copies_issued++;
  copy.mask = good;
  copy.bytes = static_cast<std::uint8_t>(bytes);
  std::copy_n(warp.groups, kWarpSize, copy.group);
  for (int lane = 0; lane < kWarpSize; ++lane)
    copy.from_bytes[lane] = static_cast<std::uint8_t>((readers >> lane & 1) * from_bytes[lane]);
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1)
    poison(cta.memory().shared() + copy.to[std::countr_zero(rest)], bytes);
}

void commit_copies(CtaExecutor&, Warp& warp, const Instruction&, std::uint32_t mask) {
  for (int lane = 0; lane < kWarpSize; ++lane) warp.groups[lane] += (mask >> lane) & 1;
}

void note_wait(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask,
               std::uint32_t newest_left) {
  if (cta.shadow() == nullptr) return;
  warp.note_wait({.instruction = cta.index_of(instruction),
                  .lanes = mask,
                  .before = cta.shadow()->clocks().next(),
                  .copies_issued = warp.copies_issued,
                  .newest_left = newest_left});
}

// Completes the copies of all groups except the newest `count` of each lane.
void wait_for_copies(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::uint32_t newest_left = instruction.count;
  for (PendingCopy& copy : warp.copies) {
    std::uint32_t lanes = copy.mask & mask;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      // The copies since the last commit belong to group `groups`, which is not committed, so no wait_group waits for them.
      if (std::uint64_t{copy.group[lane]} + newest_left >= warp.groups[lane]) lanes &= ~(1u << lane);
    }
    if (lanes != 0) complete(cta, warp, copy, lanes, false);
  }
  std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
  note_wait(cta, warp, instruction, mask, newest_left);
}

void wait_for_all_copies(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (PendingCopy& copy : warp.copies) {
    if ((copy.mask & mask) != 0) complete(cta, warp, copy, copy.mask & mask, false);
  }
  std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
  note_wait(cta, warp, instruction, mask, 0);
}

void decode_cp(KernelDecoder& d) {
  if (d.parts().size() < 3 || d.parts()[1] != "async") d.fail_unknown();
  const std::string_view kind = d.parts()[2];
  if (kind == "bulk") return decode_bulk_copy(d);
  if (kind == "commit_group" && d.parts().size() == 3) {
    d.expect_operands(0);
    d.emit(commit_copies, InstructionClass::barrier, {}, {}).computes_nothing = true;
  } else if (kind == "wait_group" && d.parts().size() == 3) {
    d.expect_operands(1);
    const int count = d.immediate(0);
    if (count < 0) d.fail("a negative count");
    Instruction& out = d.emit(wait_for_copies, InstructionClass::barrier, {}, {});
    out.count = static_cast<std::uint32_t>(count);
    out.computes_nothing = true;
  } else if (kind == "wait_all" && d.parts().size() == 3) {
    d.expect_operands(0);
    d.emit(wait_for_all_copies, InstructionClass::barrier, {}, {}).computes_nothing = true;
  } else if (kind == "mbarrier") {
    decode_arrive_when_copied(d);
  } else if (kind == "ca" || kind == "cg") {
    std::size_t next = 3;
    if (next >= d.parts().size() || named_space(d.parts()[next++]) != Space::shared) d.fail_unknown();
    if (next >= d.parts().size() || d.parts()[next++] != "global") d.fail_unknown();
    for (; next < d.parts().size(); ++next) {
      if (!d.parts()[next].starts_with("L2::")) d.fail_unknown();
    }
    const bool cache_hint = d.has("L2::cache_hint");
    d.expect_operands(3, cache_hint ? 5 : 4);
    const int bytes = d.immediate(2);
    if (!(bytes == 16 || (kind == "ca" && (bytes == 4 || bytes == 8))))
      d.fail("the size of a copy is 4, 8 or 16 bytes (.cg: 16)");
    std::int64_t to_offset = 0, from_offset = 0;
    bool to_wide = true, from_wide = true;
    const int to = d.address_operand(d.operand(0), Space::shared, to_offset, to_wide);
    int from = d.address_operand(d.operand(1), Space::global, from_offset, from_wide);
    if (!from_wide) d.fail("a global address is 64 bits wide");
    if (from_offset != 0) {
      const int sum = d.temporary(Slot::b64);
      d.emit_lane("add.u64", {sum}, {from, d.constant(Slot::b64, static_cast<std::uint64_t>(from_offset))});
      from = sum;
    }
    std::vector<int> reads = {to, from};
    bool ignore = false;
    if (d.num_operands() - (cache_hint ? 1 : 0) == 4) {
      ignore = d.is_predicate(d.operand(3));
      reads.push_back(d.read(d.operand(3), ignore ? Slot::predicate : Slot::b32));
    }
    Instruction& out = d.emit(ignore ? copy_async<true> : copy_async<false>, InstructionClass::cp_async, {}, reads);
    out.counted = true;
    if (d.kernel().code.size() >= 2) {
      Instruction& before = d.kernel().code[d.kernel().code.size() - 2];
      if (before.source == out.source) before.counted = false;
    }
    out.bytes = static_cast<std::uint8_t>(bytes);
    out.role = MemoryRole::copy;
    out.space = Space::shared;
    out.wide_address = to_wide;
    out.offset = to_offset;
  } else {
    d.fail_unknown();
  }
}

}  // namespace

void add_copy_operations(OperationTable& table) { table.add("cp", decode_cp); }

}  // namespace flash_ladder::emulator
