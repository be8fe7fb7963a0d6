// Instructions for lanes of a warp that name one another in a mask: shfl, vote, match, redux, bar.warp. PTX ISA, "shfl.sync", …

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

std::uint32_t reduced(ReduceOperation operation, std::uint32_t a, std::uint32_t b) {
  const auto signed_a = static_cast<std::int32_t>(a), signed_b = static_cast<std::int32_t>(b);
  switch (operation) {
    case ReduceOperation::add_u:
      return a + b;
    case ReduceOperation::min_u:
      return std::min(a, b);
    case ReduceOperation::max_u:
      return std::max(a, b);
    case ReduceOperation::min_s:
      return static_cast<std::uint32_t>(std::min(signed_a, signed_b));
    case ReduceOperation::max_s:
      return static_cast<std::uint32_t>(std::max(signed_a, signed_b));
    case ReduceOperation::and_:
      return a & b;
    case ReduceOperation::or_:
      return a | b;
    case ReduceOperation::xor_:
      return a ^ b;
  }
  return a;
}

}  // namespace

// For instructions of the whole warp that take no mask.
void CtaExecutor::check_all_lanes(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (mask == kAllLanes) return;
  find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(~mask), std::nullopt,
       fmt::format("all 32 lanes must execute this instruction together; lanes {:#010x} do not", ~mask));
}

// Calls f(lanes, named) for each group of the executing lanes that pass the same mask; `named` are those of them that the mask
// names. A lane must be in the mask that it passes, and all lanes in it must be here, with the same mask. `members` is the
// operand with the mask.
template <typename F>
void CtaExecutor::for_each_group(Warp& warp, const Instruction& instruction, std::uint32_t mask, std::int32_t members,
                                 F f) {
  const auto* masks = reinterpret_cast<const std::uint32_t*>(warp.registers + members);
  for (std::uint32_t rest = mask; rest != 0;) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t named = masks[lane];
    std::uint32_t different = 0;
    for (int other = 0; other < kWarpSize; ++other)
      different |= static_cast<std::uint32_t>(masks[other] != named) << other;
    const std::uint32_t lanes = rest & ~different;
    if (lanes != named) check_group(warp, instruction, mask, lanes, named);
    f(lanes, named & mask);
    rest &= ~lanes;
  }
}

// What is wrong with lanes that pass the mask `named`, which are not all that it names.
void CtaExecutor::check_group(Warp& warp, const Instruction& instruction, std::uint32_t mask, std::uint32_t lanes,
                              std::uint32_t named) {
  const auto wrong = [&](std::uint32_t which, const std::string& message) {
    if (which != 0)
      find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(which), std::nullopt, message);
    return which != 0;
  };
  if (wrong(lanes & ~named, fmt::format("the lane is not in the mask that it passes, {:#010x}", named))) return;
  const std::uint32_t missing = named & warp.alive & ~mask, gone = named & ~warp.alive, others = named & mask & ~lanes;
  if (wrong(missing, fmt::format("the mask {:#010x} names lanes that are not here: {:#010x}", named, missing))) return;
  if (wrong(gone, fmt::format("the mask {:#010x} names lanes that have ended: {:#010x}", named, gone))) return;
  wrong(others, fmt::format("the mask {:#010x} names lanes that pass another mask: {:#010x}", named, others));
}

// PTX ISA, "shfl.sync": c holds the clamp in bits 0–4 and the mask of the segment in bits 8–12.
void CtaExecutor::shuffle(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint32_t named_by[kWarpSize];  // of the lanes that execute it
  for_each_group(warp, instruction, mask, instruction.r[5], [&](std::uint32_t lanes, std::uint32_t named) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) named_by[std::countr_zero(rest)] = named;
  });
  const auto mode = static_cast<ShuffleMode>(instruction.operation);
  const auto* value = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2]);
  const auto* delta = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[3]);
  const auto* control = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[4]);
  alignas(64) std::uint32_t result[kWarpSize], sources[kWarpSize];
  std::uint32_t in_range = 0, absent = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const std::uint32_t segment_mask = (control[lane] >> 8) & 31, clamp = control[lane] & 31;
    const auto own = static_cast<std::uint32_t>(lane);
    const std::uint32_t lowest = own & segment_mask, highest = lowest | (clamp & ~segment_mask);
    const std::uint32_t by = delta[lane] & 31;
    std::uint32_t source = own;
    bool valid = false;
    switch (mode) {
      case ShuffleMode::up:
        source = own - by;
        valid = static_cast<std::int32_t>(source) >= static_cast<std::int32_t>(highest);
        break;
      case ShuffleMode::down:
        source = own + by;
        valid = source <= highest;
        break;
      case ShuffleMode::bfly:
        source = own ^ by;
        valid = source <= highest;
        break;
      case ShuffleMode::idx:
        source = lowest | (by & ~segment_mask);
        valid = source <= highest;
        break;
    }
    if (!valid) source = own;
    result[lane] = value[source];
    sources[lane] = source;
    in_range |= static_cast<std::uint32_t>(valid) << lane;
    if ((mask >> lane) & 1) absent |= ((named_by[lane] >> source) & 1) == 0 ? 1u << lane : 0;
  }
  if (absent != 0) {
    const int lane = std::countr_zero(absent);
    find(FindingKind::missing_lanes, &warp, &instruction, lane, std::nullopt,
         fmt::format("a shuffle reads from lanes that do not take part; those that do are {:#010x}", named_by[lane]));
  }
  // One lane may pass on what only it has: __shfl_sync(mask, x, 0).
  if (watches(warp, instruction)) {
    const UndefinedLanes given =
        undefined_sources(warp, instruction, instruction.writes, instruction.writes + 1, kAllLanes);
    UndefinedLanes taken{.lanes = 0, .origin = given.origin};
    for (int lane = 0; lane < kWarpSize; ++lane) taken.lanes |= ((given.lanes >> sources[lane]) & 1) << lane;
    set_undefined(warp, instruction, 0, mask, taken);
  }
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  if (mask == kAllLanes) {
    std::memcpy(to, result, sizeof result);
  } else {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((mask >> lane) & 1) to[lane] = result[lane];
    }
  }
  auto& predicate = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[1]);
  predicate = (predicate & ~mask) | (in_range & mask);
}

void CtaExecutor::vote(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint32_t predicates;
  std::memcpy(&predicates, warp.registers + instruction.r[1], 4);
  const auto mode = static_cast<VoteMode>(instruction.operation);
  for_each_group(warp, instruction, mask, instruction.r[2], [&](std::uint32_t lanes, std::uint32_t named) {
    const std::uint32_t votes = predicates & named;
    if (mode == VoteMode::ballot) {
      give(warp, instruction, lanes, votes);
      return;
    }
    const bool result = mode == VoteMode::all   ? votes == named
                        : mode == VoteMode::any ? votes != 0
                                                : votes == 0 || votes == named;
    auto& to = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
    to = (to & ~lanes) | (result ? lanes : 0);
  });
}

// Writes the value to the first destination of these lanes.
void CtaExecutor::give(Warp& warp, const Instruction& instruction, std::uint32_t lanes, std::uint32_t value) {
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) to[std::countr_zero(rest)] = value;
}

void CtaExecutor::match(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint64_t values[kWarpSize] = {};
  for (int lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(&values[lane], warp.registers + instruction.r[2] + lane * instruction.bytes, instruction.bytes);
  }
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  auto& predicate = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[1]);
  for_each_group(warp, instruction, mask, instruction.r[3], [&](std::uint32_t lanes, std::uint32_t named) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::uint32_t equal = 0;
      for (int other = 0; other < kWarpSize; ++other) {
        if (((named >> other) & 1) && values[other] == values[lane]) equal |= 1u << other;
      }
      if (instruction.operation) {  // match.all
        const bool all = equal == named;
        to[lane] = all ? named : 0;
        predicate = (predicate & ~(1u << lane)) | (static_cast<std::uint32_t>(all) << lane);
      } else {
        to[lane] = equal;
      }
    }
  });
}

void CtaExecutor::reduce(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto* values = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[1]);
  const auto operation = static_cast<ReduceOperation>(instruction.operation);
  for_each_group(warp, instruction, mask, instruction.r[2], [&](std::uint32_t lanes, std::uint32_t named) {
    if (named == 0) return;
    std::uint32_t result = values[std::countr_zero(named)];
    for (std::uint32_t rest = named & (named - 1); rest != 0; rest &= rest - 1)
      result = reduced(operation, result, values[std::countr_zero(rest)]);
    give(warp, instruction, lanes, result);
  });
}

// bar.warp.sync.
void CtaExecutor::warp_barrier(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for_each_group(warp, instruction, mask, instruction.r[0], [&](std::uint32_t, std::uint32_t named) {
    if (shadow_ != nullptr) shadow_->clocks().synchronise(warp.index, named, warp.alive);
  });
}

}  // namespace flash_ladder::emulator
