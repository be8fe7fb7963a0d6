// bar, and instructions that order memory accesses. PTX ISA, "Parallel Synchronization and Communication Instructions".
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/divergence.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using Kind = Operand::Kind;

// Barriers count threads; a warp counts as a whole, as on the hardware.
template <BarrierMode kMode>
void barrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  constexpr bool kReduces = kMode >= BarrierMode::red_popc;
  const int lane = std::countr_zero(mask);
  const auto* ids = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes]);
  const auto* counts = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes + 1u]);
  const std::uint32_t id = ids[lane];
  if (id >= kNamedBarriers) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
             fmt::format("barrier {}; allowed are 0 to 15", id));
    return;
  }
  if (mask != warp.alive) {
    if (mask == warp.active && gather_at_barrier(cta, warp, instruction)) return;
    cta.find(FindingKind::divergent_barrier, &warp, &instruction, std::countr_zero(warp.alive & ~mask), std::nullopt,
             fmt::format("lanes {:#010x} of the warp are at a barrier that its lanes {:#010x} do not reach with them{}",
                         mask, warp.alive & ~mask, describe_parting(cta, warp, warp.alive & ~mask)));
  }
  const std::uint32_t count = instruction.has_count ? counts[lane] : 0;
  if (instruction.has_count && (count == 0 || count % kWarpSize != 0)) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
             fmt::format("a barrier for {} threads; the count must be a multiple of 32", count));
    return;
  }
  Barrier& barrier = cta.barriers()[id];
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.instruction = cta.index_of(instruction);
  } else if (barrier.expected != count) {
    cta.find(FindingKind::divergent_barrier, &warp, &instruction, lane, std::nullopt,
             fmt::format("barrier {} for {} threads while others wait at it for {}", id, count, barrier.expected));
  }
  if (Ordering* const ordering = cta.ordering(); ordering != nullptr) {
    if (barrier.clock.empty()) barrier.clock = ordering->clocks().empty();
    ordering->arrive(warp.index, mask, warp.alive);
    ordering->clocks().release(warp.index, mask, barrier.clock);
  }
  // __syncthreads(): all threads must be at the same one. Compilers may duplicate it, but the copies keep its line.
  if (!instruction.has_count && barrier.instruction != cta.index_of(instruction)) {
    const SourcePosition here = cta.position_of(cta.index_of(instruction)),
                         there = cta.position_of(barrier.instruction);
    if (here != there && cta.findings().is_new(FindingKind::divergent_barrier, cta.place_of(cta.index_of(instruction)),
                                               cta.place_of(barrier.instruction))) {
      RawFinding raw = cta.describe(FindingKind::divergent_barrier, &warp, &instruction, lane, std::nullopt,
                                    "the warp is at a different barrier of the program from the warps that wait");
      raw.other_place = cta.place_of(barrier.instruction);
      raw.finding.other = {
          .what = "waited for", .position = there, .warp = std::countr_zero(barrier.waiting), .lane = 0};
      cta.findings().add(std::move(raw));
    }
  }
  barrier.arrived += instruction.has_count ? kWarpSize : static_cast<std::uint32_t>(std::popcount(warp.alive));
  cta.note_progress();
  if (TraceRecorder* trace = cta.trace()) {
    if (trace->clock(warp.index) >= barrier.traced) barrier.traced_warp = warp.index;
    barrier.traced = std::max(barrier.traced, trace->clock(warp.index));
    trace->note({.warp = warp.index, .barrier = TraceBarrier{false, id, trace->phase_of_barrier(id)}},
                cta.index_of(instruction));
  }
  if (kReduces) {
    std::uint32_t votes;
    std::memcpy(&votes, warp.registers + instruction.r[instruction.writes + 2u], 4);
    barrier.ones += static_cast<std::uint32_t>(std::popcount(votes & mask));
    barrier.voters += static_cast<std::uint32_t>(std::popcount(mask));
  }
  if (kMode != BarrierMode::arrive) {
    barrier.waiting |= 1u << warp.index;
    barrier.warps[static_cast<std::size_t>(warp.index)] = {cta.index_of(instruction), kMode};
    warp.status = WarpStatus::waiting;
  }
  const std::uint32_t expected = barrier.expected == 0 ? cta.threads_alive() : barrier.expected;
  if (barrier.arrived >= expected) release(cta, barrier);
}

void decode_cluster_barrier(KernelDecoder& d);

// bar.sync a[, b]; bar.arrive a, b; bar.red.op d, a[, b], c; bar.warp.sync m; the same as barrier.…[.aligned].
void decode_bar(KernelDecoder& d) {
  if (d.has("cluster")) return decode_cluster_barrier(d);
  std::vector<std::string_view> words;
  for (std::size_t i = 1; i < d.parts().size(); ++i) {
    if (d.parts()[i] != "cta" && d.parts()[i] != "aligned") words.push_back(d.parts()[i]);
  }
  if (words.size() == 2 && words[0] == "warp" && words[1] == "sync") {
    decode_warp_barrier(d);
    return;
  }
  BarrierMode mode{};
  if (words.size() == 1 && words[0] == "sync") {
    mode = BarrierMode::sync;
  } else if (words.size() == 1 && words[0] == "arrive") {
    mode = BarrierMode::arrive;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "popc" && words[2] == "u32") {
    mode = BarrierMode::red_popc;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "and" && words[2] == "pred") {
    mode = BarrierMode::red_and;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "or" && words[2] == "pred") {
    mode = BarrierMode::red_or;
  } else {
    d.fail_unknown();
  }
  const bool reduces = mode >= BarrierMode::red_popc;
  const std::size_t first = reduces ? 1 : 0, last = reduces ? 1 : 0;
  d.expect_operands(first + 1 + last, first + 2 + last);
  const bool has_count = d.num_operands() == first + 2 + last;
  if (mode == BarrierMode::arrive && !has_count) d.fail("bar.arrive needs a thread count");
  std::vector<int> writes, reads;
  reads.push_back(d.read(d.operand(first), Slot::b32));
  reads.push_back(has_count ? d.read(d.operand(first + 1), Slot::b32) : d.constant(Slot::b32, 0));
  if (reduces) {
    reads.push_back(d.read(d.operand(d.num_operands() - 1), Slot::predicate));
    writes.push_back(d.write(d.operand(0), mode == BarrierMode::red_popc ? Slot::b32 : Slot::predicate));
  }
  constexpr Execute kExecute[] = {barrier<BarrierMode::sync>, barrier<BarrierMode::arrive>,
                                  barrier<BarrierMode::red_popc>, barrier<BarrierMode::red_and>,
                                  barrier<BarrierMode::red_or>};
  Instruction& out = d.emit(kExecute[static_cast<std::size_t>(mode)], InstructionClass::barrier, writes, reads);
  out.has_count = has_count;
  out.arrives = true;
  out.computes_nothing = !reduces;
}

// Nothing here reorders memory accesses; but a fence makes what precedes it part of what later operations release, and
// the asynchronous proxy sees only what was made visible to it.
void fence(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (cta.ordering() != nullptr) cta.ordering()->fence(warp.index, mask, warp.alive, instruction.block_only);
  if (!instruction.block_only) cta.cluster().note_fence(warp, mask);
}
template <bool kOnlyMbarriers>
void fence_proxy(CtaExecutor& cta, Warp& warp, const Instruction&, std::uint32_t mask) {
  if (kOnlyMbarriers) cta.cluster().note_fence(warp, mask);  // .release.cluster
  if (cta.async() != nullptr) cta.async()->proxy.fence(warp, mask, kOnlyMbarriers);
}

void decode_fence(KernelDecoder& d) {
  const std::string_view opcode = d.instruction().opcode;
  const Execute execute = opcode.starts_with("fence.proxy.async")     ? fence_proxy<false>
                          : opcode.starts_with("fence.mbarrier_init") ? fence_proxy<true>
                                                                      : fence;
  Instruction& out = d.emit(execute, InstructionClass::barrier, {}, {});
  out.computes_nothing = true;
  out.block_only = d.has("cta");
}

template <bool kRelaxed>
void arrive_at_cluster(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta.cluster().arrive(warp, instruction, mask, kRelaxed);
}

void wait_for_cluster(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta.cluster().wait(warp, instruction, mask);
}

void decode_cluster_barrier(KernelDecoder& d) {
  d.expect_operands(0);
  const bool arrives = d.has("arrive");
  if (!arrives && !d.has("wait")) d.fail_unknown();
  Instruction& out = d.emit(!arrives           ? wait_for_cluster
                            : d.has("relaxed") ? arrive_at_cluster<true>
                                               : arrive_at_cluster<false>,
                            InstructionClass::barrier, {}, {});
  out.arrives = !arrives;
  out.computes_nothing = true;
}

}  // namespace

void add_barrier_operations(OperationTable& table) {
  table.add("bar", decode_bar);
  table.add("barrier", decode_bar);
  table.add("membar", decode_fence);
  table.add("fence", decode_fence);
}

}  // namespace flash_ladder::emulator
