#include "emulator/exec/divergence.h"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

void reconverge(CtaExecutor& cta, Warp& warp) {
  while (!warp.stack.empty() && (warp.pc == warp.reconverge || warp.active == 0)) {
    const Warp::Parted& next = warp.stack.back();
    warp.pc = next.pc;
    warp.reconverge = next.reconverge;
    warp.active = next.mask;
    // The lanes that they wait for at a __syncwarp() have passed on without reaching it. (At a barrier of the block
    // they are before it, and execute it again.)
    if (next.sync >= 0 && next.sync != next.pc && next.mask != 0) {
      check_group(cta, warp, cta.code()[static_cast<std::size_t>(next.sync)], next.mask, next.mask, next.sync_mask);
    }
    warp.stack.pop_back();
  }
}

bool wait_for_lanes(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t named) {
  if (warp.stack.empty()) return false;
  const Warp::Parted next = warp.stack.back();
  const bool on_another_way = (next.mask & warp.active) == 0 && next.reconverge == warp.reconverge;
  if (!on_another_way || (next.mask & named) == 0 || next.sync >= 0) return false;
  auto last = std::prev(warp.stack.end());  // the warp's own lanes go below all of them
  while (last != warp.stack.begin() && (std::prev(last)->mask & warp.active) == 0 &&
         std::prev(last)->reconverge == warp.reconverge) {
    --last;
  }
  warp.stack.insert(last, {.pc = warp.pc,
                           .reconverge = warp.reconverge,
                           .mask = warp.active,
                           .branch = next.branch,
                           .sync = cta.index_of(instruction),
                           .sync_mask = named});
  warp.stack.pop_back();
  warp.pc = next.pc;
  warp.active = next.mask;
  return true;
}

bool gather_at_barrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction) {
  if (!warp.has_yielded) return false;
  const std::int32_t at = cta.index_of(instruction);
  while (!warp.stack.empty() && warp.stack.back().sync == at && warp.stack.back().reconverge == warp.reconverge) {
    warp.active |= warp.stack.back().mask;
    warp.stack.pop_back();
  }
  warp.pc = at;
  if (warp.active == warp.alive || wait_for_lanes(cta, warp, instruction, warp.alive)) return true;
  warp.pc = at + 1;
  return false;
}

void check_group(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t here,
                 std::uint32_t lanes, std::uint32_t named) {
  const auto wrong = [&](std::uint32_t which, const std::string& message) {
    if (which != 0)
      cta.find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(which), std::nullopt, message);
    return which != 0;
  };
  if (wrong(lanes & ~named, fmt::format("the lane is not in the mask that it passes, {:#010x}", named))) return;
  // The mask may include lanes that have ended: "all non-exited threads" must take part (PTX ISA, "shfl.sync",
  // "vote.sync" …).
  const std::uint32_t missing = named & warp.alive & ~here, others = named & here & ~lanes;
  if (wrong(missing, fmt::format("the mask {:#010x} names lanes that do not take part: {:#010x}", named, missing)))
    return;
  wrong(others, fmt::format("the mask {:#010x} names lanes that pass another mask: {:#010x}", named, others));
}

void part(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t taken) {
  ++cta.counters().details[static_cast<std::size_t>(warp.pc)].divergent;
  const std::uint32_t not_taken = warp.active & ~taken;
  const std::int32_t at = warp.pc, next = at + 1;
  std::int32_t meet = instruction.reconverge;
  if (meet >= 0) {
    warp.stack.push_back({meet, warp.reconverge, warp.active, warp.pc});
  } else {
    meet = warp.reconverge;
  }
  warp.reconverge = meet;
  if (next == meet) {
    warp.pc = instruction.target;
    warp.active = taken;
  } else {
    if (instruction.target != meet) warp.stack.push_back({instruction.target, meet, taken, at});
    warp.pc = next;
    warp.active = not_taken;
  }
}

void branch_by_table(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::vector<std::int32_t>& targets = cta.context().kernel.branch_tables[instruction.count];
  const auto* index = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[0]);
  // Lanes grouped by their target.
  std::vector<std::pair<std::int32_t, std::uint32_t>> ways;
  const auto add = [&](std::int32_t target, std::uint32_t lanes) {
    for (auto& [known, known_lanes] : ways) {
      if (known == target) {
        known_lanes |= lanes;
        return;
      }
    }
    ways.emplace_back(target, lanes);
  };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!((warp.active >> lane) & 1)) continue;
    if (!((mask >> lane) & 1)) {
      add(warp.pc + 1, 1u << lane);
    } else if (index[lane] < targets.size()) {
      add(targets[index[lane]], 1u << lane);
    } else {
      cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
               fmt::format("a branch to entry {} of a table of {}", index[lane], targets.size()));
      add(targets.empty() ? warp.pc + 1 : targets.back(), 1u << lane);
    }
  }
  if (ways.size() > 1) {
    ++cta.counters().details[static_cast<std::size_t>(warp.pc)].divergent;
    if (instruction.reconverge >= 0) {
      warp.stack.push_back({instruction.reconverge, warp.reconverge, warp.active, warp.pc});
      warp.reconverge = instruction.reconverge;
    }
    for (std::size_t i = ways.size() - 1; i > 0; --i)
      warp.stack.push_back({ways[i].first, warp.reconverge, ways[i].second, warp.pc});
  }
  warp.pc = ways[0].first;
  warp.active = ways[0].second;
}

void check_all_lanes(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (mask == kAllLanes) return;
  cta.find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(~mask), std::nullopt,
           fmt::format("all 32 lanes must execute this instruction together; lanes {:#010x} do not", ~mask));
}

bool let_others_run(Warp& warp, std::uint64_t changes) {
  if (warp.tried_at != changes) warp.tried = 0;
  if (warp.tried > warp.stack.size() + 1) return false;  // all have been scheduled
  warp.tried_at = changes;
  ++warp.tried;
  while (!warp.stack.empty()) {
    const Warp::Parted top = warp.stack.back();
    const Warp::Parted own{warp.pc, warp.reconverge, warp.active, warp.pc};
    if ((top.mask & warp.active) == 0) {  // on another path: goes below all of them in the stack
      auto last = warp.stack.end();
      while (last != warp.stack.begin() && (std::prev(last)->mask & warp.active) == 0 &&
             std::prev(last)->reconverge == warp.reconverge) {
        --last;
      }
      if (top.reconverge != warp.reconverge) return false;
      warp.stack.insert(last, own);
      warp.stack.pop_back();
      warp.pc = top.pc;
      warp.active = top.mask;
    } else {
      warp.stack.pop_back();
      warp.reconverge = top.reconverge;
      const std::uint32_t there = top.mask & ~warp.active;
      if (there == 0) continue;
      warp.stack.push_back({own.pc, top.reconverge, own.mask, own.branch});
      warp.pc = top.pc;
      warp.active = there;
      warp.has_yielded = true;
    }
    warp.snapshot.taken = warp.snapshot.records = false;
    return true;
  }
  return false;
}

std::string describe_parting(CtaExecutor& cta, const Warp& warp, std::uint32_t lanes) {
  for (auto parted = warp.stack.rbegin(); parted != warp.stack.rend(); ++parted) {
    if ((parted->mask & lanes) == 0) continue;
    const SourcePosition position = cta.position_of(parted->branch);
    return position.empty() ? "" : ": they diverged at " + to_string(position);
  }
  return {};
}

}  // namespace flash_ladder::emulator
