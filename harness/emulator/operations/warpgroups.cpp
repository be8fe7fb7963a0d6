// The other instructions that Hopper introduced for warps, warpgroups and clusters. PTX ISA, "stmatrix", "elect.sync",
// "setmaxnreg", "mapa", "getctarank", "griddepcontrol".
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;

// The inverse of ldmatrix: lanes 8i … 8i+7 supply the addresses of the rows of matrix i, and every lane has two
// elements of each.
template <bool kTransposed>
void store_matrix(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  const int matrices = instruction.operands - 1;
  const std::uint32_t row_lanes = matrices == 4 ? kAllLanes : (1u << (8 * matrices)) - 1;
  report_undefined(cta, warp, instruction, undefined_sources(cta, warp, instruction, 0, 1, row_lanes),
                   "used as an address");
  report_undefined(cta, warp, instruction, undefined_sources(cta, warp, instruction, 1, instruction.operands, mask),
                   "stored");
  LaneAddresses at;
  cta.memory().addresses(warp, instruction, instruction.r[0], at);
  alignas(64) std::uint32_t offsets[kWarpSize];
  const std::uint32_t good = cta.memory().check_shared(warp, instruction, at, row_lanes, 16, offsets);
  cta.memory().count_shared(instruction, row_lanes, good, 16, offsets, true);
  std::uint32_t unchanged = 0;
  alignas(16) std::uint16_t rows[kWarpSize][8];
  for (int matrix = 0; matrix < matrices; ++matrix) {
    const auto* from =
        reinterpret_cast<const std::uint16_t*>(warp.registers + instruction.r[static_cast<std::size_t>(matrix) + 1]);
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column)
        rows[8 * matrix + row][column] = from[kTransposed ? 8 * column + row : 8 * row + column];
  }
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (std::memcmp(cta.memory().shared() + offsets[lane], rows[lane], 16) == 0) unchanged |= 1u << lane;
  }
  if (SharedShadow* shadow = cta.shadow()) {
    const SharedAccess access{warp.index, cta.index_of(instruction), false, good, 16, offsets};
    const std::uint32_t overwritten = shadow->write(access, unchanged);
    if (overwritten != 0) shadow->report_overwritten(access, overwritten & ~unchanged);
  }
  if (cta.async() != nullptr) cta.async()->proxy.note_write(warp.index, cta.index_of(instruction), good, 16, offsets);
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::memcpy(cta.memory().shared() + offsets[lane], rows[lane], 16);
  }
  if (unchanged != good) cta.note_progress();
}

void decode_stmatrix(KernelDecoder& d) {
  d.expect_operands(2);
  std::size_t count = 0;
  for (const std::string_view part : d.parts())
    if (part == "x1" || part == "x2" || part == "x4") count = static_cast<std::size_t>(part[1] - '0');
  const bool known = d.has("sync") && d.has("aligned") && d.has("m8n8") && (d.has("shared") || d.has("shared::cta")) &&
                     d.parts().back() == "b16" && count != 0 && d.parts().size() == 7u + (d.has("trans") ? 1u : 0u);
  if (!known) d.fail_unknown();
  std::int64_t offset = 0;
  bool wide = true;
  std::vector<int> reads = {d.address_operand(d.operand(0), Space::shared, offset, wide)};
  const std::vector<Operand> values = d.elements(d.operand(1));
  if (values.size() != count) d.fail("a vector of the wrong length");
  for (const Operand& value : values) reads.push_back(d.read(value, Slot::b32));
  Instruction& out =
      d.emit(d.has("trans") ? store_matrix<true> : store_matrix<false>, InstructionClass::shared_store, {}, reads);
  out.role = MemoryRole::store;
  out.own_sources = 0xffff;
  out.bytes = 16;
  out.space = Space::shared;
  out.wide_address = wide;
  out.offset = offset;
}

// d|p: the leader's lane, and whether this lane is the leader. The ISA does not specify which lane it is, only that it
// is always the same.
void elect(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto* named = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2]);
  auto* leaders = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  auto& is_leader = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[1]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t members = named[lane];
    if ((members & warp.alive & ~mask) != 0 || ((members >> lane) & 1) == 0) {
      cta.find(
          FindingKind::missing_lanes, &warp, &instruction, lane, std::nullopt,
          fmt::format("the mask {:#010x} of elect.sync names lanes that do not take part, or does not name the lane "
                      "itself; those that do take part are "
                      "{:#010x}",
                      members, mask));
    }
    const int leader = members == 0 ? lane : std::countr_zero(members);
    leaders[lane] = static_cast<std::uint32_t>(leader);
    is_leader = (is_leader & ~(1u << lane)) | (static_cast<std::uint32_t>(leader == lane) << lane);
  }
}

void decode_elect(KernelDecoder& d) {
  if (d.instruction().opcode != "elect.sync" || !d.operand(0).pair) d.fail_unknown();
  d.expect_operands(3);
  const int members = d.read(d.operand(2), Slot::b32);
  d.emit(elect, InstructionClass::shuffle, {d.write(d.operand(0), Slot::b32), d.write(d.operand(1), Slot::predicate)},
         {members});
}

template <bool kIncrease>
void set_registers(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  cta.async()->registers.set(warp, instruction, kIncrease);
}

void decode_setmaxnreg(KernelDecoder& d) {
  const std::string_view opcode = d.instruction().opcode;
  const bool increase = opcode == "setmaxnreg.inc.sync.aligned.u32";
  if (!increase && opcode != "setmaxnreg.dec.sync.aligned.u32") d.fail_unknown();
  d.expect_operands(1);
  const int count = d.immediate(0);
  if (count < 24 || count > 256 || count % 8 != 0) d.fail("setmaxnreg takes a multiple of 8 from 24 to 256");
  // ptxas ignores it, with a warning, if it does not know with how many registers a kernel begins.
  if (!d.limits_registers()) return;
  d.kernel().uses_async_proxy = true;
  Instruction& out = d.emit(increase ? set_registers<true> : set_registers<false>, InstructionClass::barrier, {}, {});
  out.count = static_cast<std::uint32_t>(count);
  out.computes_nothing = true;
}

// The address of the same location in the shared memory of another CTA of the cluster.
void map_to_rank(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto* ranks = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (ranks[lane] >= cta.cluster().size()) {
      cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
               fmt::format("mapa for CTA {} of a cluster that has {}", ranks[lane], cta.cluster().size()));
    }
    const std::size_t bytes = instruction.bytes, at = static_cast<std::size_t>(lane) * bytes;
    std::uint64_t address = 0;
    std::memcpy(&address, warp.registers + instruction.r[1] + at, bytes);
    // For a CTA's own rank, the plain shared-memory address works for every purpose.
    if (ranks[lane] != cta.cluster().rank()) address = in_cta(address, ranks[lane]);
    std::memcpy(warp.registers + instruction.r[0] + at, &address, bytes);
  }
}

void rank_of_address(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
    std::uint64_t address = 0;
    std::memcpy(&address, warp.registers + instruction.r[1] + lane * instruction.bytes, instruction.bytes);
    reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0])[lane] =
        static_cast<std::uint32_t>(rank_of(address & 0xffffffff).value_or(cta.cluster().rank()));
  }
}

void decode_mapa(KernelDecoder& d) {
  const std::string_view type = d.parts().back();
  if (d.parts().size() > 3 || (d.parts().size() == 3 && !d.has("shared::cluster")) || (type != "u32" && type != "u64"))
    d.fail_unknown();
  d.expect_operands(3);
  const Slot slot = type == "u32" ? Slot::b32 : Slot::b64;
  const int address = d.read(d.operand(1), slot), rank = d.read(d.operand(2), Slot::b32);
  d.emit(map_to_rank, InstructionClass::integer, {d.write(d.operand(0), slot)}, {address, rank}).bytes =
      slot == Slot::b32 ? 4 : 8;
}

void decode_getctarank(KernelDecoder& d) {
  const std::string_view type = d.parts().back();
  if (type != "u32" && type != "u64") d.fail_unknown();
  d.expect_operands(2);
  const Slot slot = type == "u32" ? Slot::b32 : Slot::b64;
  const int address = d.read(d.operand(1), slot);
  d.emit(rank_of_address, InstructionClass::integer, {d.write(d.operand(0), Slot::b32)}, {address}).bytes =
      slot == Slot::b32 ? 4 : 8;
}

// Overlapping launches: here each begins only when the one before it has ended, but accesses to memory that come before the wait
// are compared with what that one has accessed.
void wait_for_kernel_ahead(CtaExecutor& /*cta*/, Warp& warp, const Instruction& /*instruction*/, std::uint32_t mask) {
  warp.waited_for_kernel_ahead |= mask;
}

void decode_griddepcontrol(KernelDecoder& d) {
  const bool waits = d.has("wait");
  if (!waits && !d.has("launch_dependents")) d.fail_unknown();
  if (!waits) d.kernel().lets_next_kernel_begin = true;
  d.emit(waits ? wait_for_kernel_ahead : nothing, InstructionClass::other, {}, {});
}

}  // namespace

void add_warpgroup_operations(OperationTable& table) {
  table.add("stmatrix", decode_stmatrix);
  table.add("elect", decode_elect);
  table.add("setmaxnreg", decode_setmaxnreg);
  table.add("mapa", decode_mapa);
  table.add("getctarank", decode_getctarank);
  table.add("griddepcontrol", decode_griddepcontrol);
}

}  // namespace flash_ladder::emulator
