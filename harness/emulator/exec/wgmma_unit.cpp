#include "emulator/exec/wgmma_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "emulator/exec/async_chunks.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/exec/wgmma_product.h"

namespace flash_ladder::emulator {

WgmmaUnit::WgmmaUnit(CtaExecutor& cta, AsyncProxy& proxy, std::size_t num_warps)
    : cta_(cta),
      proxy_(proxy),
      num_warps_(num_warps),
      warpgroups_((num_warps + kWarpgroup - 1) / kWarpgroup),
      queues_(num_warps) {}

void WgmmaUnit::start() {
  std::fill(warpgroups_.begin(), warpgroups_.end(), Warpgroup{});
  std::fill(queues_.begin(), queues_.end(), WarpQueue{});
}

void WgmmaUnit::finish() {
  for (std::size_t w = 0; w < queues_.size(); ++w) {
    const WarpQueue& queue = queues_[w];
    if (queue.done == queue.issued) continue;
    const Warp& warp = cta_.warps()[w];
    cta_.find(FindingKind::in_flight, warp, issue_of(warp, queue.done).instruction, -1, std::nullopt,
              "the warp ends while this wgmma is in flight: " + why_in_flight(warp, queue.done));
  }
}

void WgmmaUnit::renumber(const Renumbering& renumbering) {
  for (Warpgroup& group : warpgroups_)
    for (Issue& issue : group.issues) issue.since = renumbering(issue.since);
}

bool WgmmaUnit::checks() const { return cta_.context().options.checks; }

const Wgmma& WgmmaUnit::wgmma_of(std::int32_t instruction) const {
  const Instruction& at = cta_.code()[static_cast<std::size_t>(instruction)];
  return cta_.context().kernel.wgmmas[static_cast<std::size_t>(at.wgmma)];
}

WgmmaUnit::Issue& WgmmaUnit::issue_of(const Warp& warp, std::uint64_t number) {
  Warpgroup& group = group_of(warp);
  return group.issues[number - group.first];
}

void WgmmaUnit::issue(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta_, warp, instruction, mask);
  const std::int32_t index = cta_.index_of(instruction);
  const int first_warp = warp.index / kWarpgroup * kWarpgroup;
  if (static_cast<std::size_t>(first_warp + kWarpgroup) > num_warps_) {
    cta_.find(
        FindingKind::invalid_operation, &warp, &instruction, -1, std::nullopt,
        fmt::format("wgmma is for warpgroups of four warps, the first of which is a multiple of four; the block has {} "
                    "warps, so none starts at warp {}",
                    num_warps_, first_warp));
    return;
  }
  const WgmmaScalars scalars = wgmma_scalars(cta_, warp, instruction, mask);
  warp.work.multiplies = true;
  Warpgroup& group = group_of(warp);
  const std::uint64_t number = queue_of(warp).issued++;
  const bool is_first = number == group.first + group.issues.size();
  if (is_first) begin(group.issues.emplace_back(), warp, instruction, scalars);
  Issue& issue = issue_of(warp, number);
  issue.issued |= 1u << (warp.index - first_warp);
  if (issue.instruction != index || issue.scalars != scalars) {
    cta_.find(
        FindingKind::invalid_operation, warp, index, std::countr_zero(mask), std::nullopt,
        fmt::format("the four warps of a warpgroup must execute the same wgmma together, with the same descriptors "
                    "and scale-d; warp {} executes a different one",
                    warp.index),
        {.what = "executed",
         .instruction = issue.instruction,
         .warp = first_warp + std::countr_zero(issue.issued),
         .lane = 0});
  }
  if (checks()) {
    check_registers(warp, instruction);
    check_operands(warp, instruction, issue, is_first);
  }
  if (!warp.undefined.empty()) check_defined(warp, instruction, mask, scalars.accumulates);
  if (cta_.context().options.early_async) execute(issue, warp.index, 1);

  // Another warp may be waiting for this.
  for (int other = first_warp; other < first_warp + kWarpgroup; ++other) {
    Warp& waiting = cta_.warps()[static_cast<std::size_t>(other)];
    if (queues_[static_cast<std::size_t>(other)].waiting >= 0 && try_to_wait(waiting)) cta_.note_progress();
  }
}

// The first warp of a warpgroup issues a wgmma.
void WgmmaUnit::begin(Issue& issue, const Warp& warp, const Instruction& instruction, const WgmmaScalars& scalars) {
  issue.instruction = cta_.index_of(instruction);
  issue.scalars = scalars;
  if (cta_.shadow() != nullptr) issue.since = cta_.shadow()->clocks().next();
  if (cta_.trace() != nullptr) issue.traced = cta_.trace()->clock(warp.index) - 1;
  issue.chunks = wgmma_chunks(cta_, warp, instruction, scalars);
  count_chunks(cta_, warp, instruction, issue.chunks);
}

// Reports registers that are read and were never written.
void WgmmaUnit::check_defined(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool accumulates) {
  const Wgmma& wgmma = wgmma_of(cta_.index_of(instruction));
  for (const std::int32_t which : wgmma.watched_a) {
    const UndefinedLanes& a = warp.undefined[static_cast<std::size_t>(which)];
    report_undefined(cta_, warp, instruction, {a.lanes & mask, a.origin}, "multiplied by this wgmma");
  }
  for (const std::int32_t which : wgmma.watched_d) {
    UndefinedLanes& d = warp.undefined[static_cast<std::size_t>(which)];
    if (accumulates) report_undefined(cta_, warp, instruction, {d.lanes & mask, d.origin}, "added to by this wgmma");
    d.lanes &= ~mask;
  }
}

// Why a wgmma is still in flight.
std::string WgmmaUnit::why_in_flight(const Warp& warp, std::uint64_t number) const {
  const WarpQueue& queue = queue_of(warp);
  if (number >= queue.committed) return "no wgmma.commit_group has put it into a group";
  if (number >= queue.seen) return "no wgmma.wait_group has come since";
  const std::string at = to_string(cta_.position_of(queue.waited));
  if (queue.leaves == 1)
    return fmt::format("wgmma.wait_group 1 at {} leaves the newest group pending, and this wgmma is in it", at);
  return fmt::format("wgmma.wait_group {} at {} leaves the {} newest groups pending, and this wgmma is in one of them",
                     queue.leaves, at, queue.leaves);
}

// wgmma may use registers that were accessed earlier only after a wgmma.fence, and may not use those of another wgmma
// in flight, except for accumulators of the same shape.
void WgmmaUnit::check_registers(const Warp& warp, const Instruction& instruction) {
  WarpQueue& queue = queue_of(warp);
  const Wgmma& wgmma = cta_.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  const std::int32_t index = cta_.index_of(instruction);
  const auto is_in = [](const std::vector<std::int32_t>& registers, std::int32_t reg) {
    return std::find(registers.begin(), registers.end(), reg) != registers.end();
  };
  if (!queue.fenced) {
    cta_.find(FindingKind::missing_fence, warp, index, -1, std::nullopt,
              "a wgmma before any wgmma.fence: nothing orders it after the warp's earlier accesses to these registers");
  } else {
    for (const auto& [reg, by] : queue.touched) {
      const bool is_a = is_in(wgmma.a, reg);
      if (!is_a && !is_in(wgmma.d, reg)) continue;
      cta_.find(
          FindingKind::missing_fence, warp, index, -1, std::nullopt,
          fmt::format("a register of {} was read or written since the last wgmma.fence: nothing orders this wgmma "
                      "after that access. Put a wgmma.fence between the two",
                      is_a ? "A" : "the accumulator"),
          {.what = "touched", .instruction = by, .warp = warp.index, .lane = 0});
      break;
    }
  }
  for (std::uint64_t number = queue.done; number + 1 < queue.issued; ++number) {
    const Issue& before = issue_of(warp, number);
    const Wgmma& other = wgmma_of(before.instruction);
    const bool reads_its_d = !wgmma.a.empty() && is_in(other.d, wgmma.a[0]);
    const bool writes_its_a = !other.a.empty() && is_in(wgmma.d, other.a[0]);
    const bool other_shape = other.n != wgmma.n && is_in(other.d, wgmma.d[0]);
    if (!reads_its_d && !writes_its_a && !other_shape) continue;
    cta_.find(FindingKind::in_flight, warp, index, -1, std::nullopt,
              (reads_its_d    ? "A is the accumulator of a wgmma that is in flight: "
               : writes_its_a ? "the accumulator is A of a wgmma that is in flight: "
                              : "the accumulator belongs to a wgmma of another shape that is in flight: ") +
                  why_in_flight(warp, number),
              {.what = "wgmma issued", .instruction = before.instruction, .warp = warp.index, .lane = 0});
    break;
  }
}

// Checks the data in shared memory: they must be written, ordered, visible to the asynchronous proxy, and in the layout
// of the descriptor.
void WgmmaUnit::check_operands(const Warp& warp, const Instruction& instruction, const Issue& issue, bool first) {
  const std::int32_t index = cta_.index_of(instruction);
  for (int operand = 0; operand < 2; ++operand) {
    const std::vector<std::uint32_t>& chunks = issue.chunks[operand];
    if (SharedShadow* shadow = cta_.shadow()) {
      for_each_access(warp, index, -1, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
    }
    proxy_.check_visible(warp, index, -1, chunks);
    if (!first || chunks.empty()) continue;
    proxy_.check_layout(warp, index, chunks, swizzle_of(issue.scalars.descriptors[operand]), operand == 0 ? "A" : "B");
  }
}

void WgmmaUnit::fence_registers(Warp& warp) {
  WarpQueue& queue = queue_of(warp);
  queue.fenced = true;
  queue.touched.clear();
}

void WgmmaUnit::commit(Warp& warp) {
  WarpQueue& queue = queue_of(warp);
  queue.groups.push_back(queue.issued);
  queue.committed = queue.issued;
}

void WgmmaUnit::wait(Warp& warp, const Instruction& instruction) {
  WarpQueue& queue = queue_of(warp);
  queue.waits_until = queue.done;
  queue.seen = queue.issued;
  queue.leaves = static_cast<unsigned>(instruction.count);
  queue.waited = cta_.index_of(instruction);
  while (queue.groups.size() > instruction.count) {
    queue.waits_until = queue.groups.front();
    queue.groups.pop_front();
  }
  queue.waiting = cta_.index_of(instruction);
  if (!try_to_wait(warp)) warp.status = WarpStatus::waiting;
}

// Whether everything that the warp waits for could be done, because all four warps have issued it.
bool WgmmaUnit::try_to_wait(Warp& warp) {
  WarpQueue& queue = queue_of(warp);
  Warpgroup& group = group_of(warp);
  const int first_warp = warp.index / kWarpgroup * kWarpgroup;
  constexpr unsigned kAll = (1u << kWarpgroup) - 1;
  for (std::uint64_t number = queue.done; number < queue.waits_until; ++number) {
    if (issue_of(warp, number).issued != kAll) return false;
  }
  SharedShadow* shadow = cta_.shadow();
  const Warp& owner = cta_.warps()[static_cast<std::size_t>(first_warp)];  // the warp to which the reads are attributed
  const bool early = cta_.context().options.early_async;
  for (std::uint64_t number = group.first; number < queue.waits_until; ++number) {
    Issue& issue = issue_of(warp, number);
    if (issue.executed) continue;
    if (!early) execute(issue, first_warp, kWarpgroup);
    if (shadow != nullptr) {
      for (const std::vector<std::uint32_t>& chunks : issue.chunks)
        for_each_access(owner, issue.instruction, -1, chunks,
                        [&](const SharedAccess& access) { shadow->complete_async_read(access, issue.since); });
    }
    issue.executed = true;
    if (TraceRecorder* trace = cta_.trace())
      trace->finish_wgmma(first_warp, issue.traced, warp.index, issue.instruction);
  }
  if (shadow != nullptr && queue.waits_until > queue.done) {
    Clock clock = shadow->clocks().empty();
    shadow->clocks().publish_async(first_warp, clock);
    shadow->clocks().acquire(warp.index, warp.alive, warp.alive, clock);
  }
  queue.done = std::max(queue.done, queue.waits_until);
  queue.waiting = -1;
  retire(group, first_warp);
  if (warp.status == WarpStatus::waiting) warp.status = WarpStatus::ready;
  return true;
}

// Discards what all four warps have waited for.
void WgmmaUnit::retire(Warpgroup& group, int first_warp) {
  std::uint64_t done = queues_[static_cast<std::size_t>(first_warp)].done;
  const auto end = std::min(num_warps_, static_cast<std::size_t>(first_warp + kWarpgroup));
  for (auto i = static_cast<std::size_t>(first_warp) + 1; i < end; ++i) done = std::min(done, queues_[i].done);
  while (group.first < done) {
    group.issues.pop_front();
    ++group.first;
  }
}

// Computes these warps' part of D.
void WgmmaUnit::execute(const Issue& issue, int first_warp, int warps) {
  const WgmmaProduct product(wgmma_of(issue.instruction), issue.chunks, issue.scalars.accumulates,
                             cta_.memory().shared());
  for (int w = first_warp; w < first_warp + warps; ++w) product.add_to(cta_.warps()[static_cast<std::size_t>(w)]);
}

void WgmmaUnit::probe(Warp& warp, const Instruction& instruction) {
  if (!checks()) return;
  WarpQueue& queue = queue_of(warp);
  const std::int32_t index = cta_.index_of(instruction);
  for (std::size_t k = 0; k < instruction.operands; ++k) {
    const std::int32_t reg = instruction.r[k];
    if ((instruction.probe & kIsUnfenced) != 0) {
      const auto known = std::find_if(queue.touched.begin(), queue.touched.end(),
                                      [&](const auto& touched) { return touched.first == reg; });
      if (known == queue.touched.end()) queue.touched.emplace_back(reg, index);
    }
    if ((instruction.probe & kMayBeInFlight) == 0) continue;
    for (std::uint64_t number = queue.done; number < queue.issued; ++number) {
      const Issue& issue = issue_of(warp, number);
      const Wgmma& wgmma = wgmma_of(issue.instruction);
      const bool of_d = std::find(wgmma.d.begin(), wgmma.d.end(), reg) != wgmma.d.end();
      // Registers that hold A may be read.
      const bool of_a = k < instruction.writes && std::find(wgmma.a.begin(), wgmma.a.end(), reg) != wgmma.a.end();
      if (!of_d && !of_a) continue;
      cta_.find(FindingKind::in_flight, warp, index, -1, std::nullopt,
                fmt::format("a {} of a register of {} of a wgmma that is in flight: {}",
                            k < instruction.writes ? "write" : "read", of_d ? "the accumulator" : "A",
                            why_in_flight(warp, number)),
                {.what = "wgmma issued", .instruction = issue.instruction, .warp = warp.index, .lane = 0});
      break;
    }
  }
}

std::string WgmmaUnit::describe_wait(const Warp& warp, std::int32_t& at) const {
  const WarpQueue& queue = queue_of(warp);
  if (queue.waiting < 0) return {};
  at = queue.waiting;
  const Warpgroup& group = warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)];
  for (std::uint64_t number = queue.done; number < queue.waits_until; ++number) {
    const Issue& issue = group.issues[number - group.first];
    std::vector<int> missing;
    for (int i = 0; i < kWarpgroup; ++i)
      if (((issue.issued >> i) & 1) == 0) missing.push_back(warp.index / kWarpgroup * kWarpgroup + i);
    if (missing.empty()) continue;
    const SourcePosition position = cta_.position_of(issue.instruction);
    return fmt::format("for a wgmma{} that {} not executed: all four warps of a warpgroup must",
                       position.empty() ? "" : " (" + to_string(position) + ")",
                       list_of_warps(missing) + (missing.size() == 1 ? " has" : " have"));
  }
  return {};
}

}  // namespace flash_ladder::emulator
