// Instructions by which the lanes of a warp exchange values: shfl, vote, match, redux. PTX ISA, "shfl.sync", "vote.sync", …

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

// The lanes that take part. A lane must be in the mask that it passes, and all lanes in that mask must be here, with the same
// mask. `members` is the operand with the mask, -1: all 32 must be here.
std::uint32_t CtaExecutor::check_members(Warp& warp, const Instruction& instruction, std::uint32_t mask,
                                         std::int32_t members) {
  const int first = std::countr_zero(mask);
  if (members < 0) {
    find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(~mask), std::nullopt,
         fmt::format("all 32 lanes must execute this instruction together; lanes {:#010x} do not", ~mask));
    return mask;
  }
  const auto* masks = reinterpret_cast<const std::uint32_t*>(warp.registers + members);
  const std::uint32_t named = masks[first];
  if (named == mask) {
    std::uint32_t different = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) different |= (masks[lane] ^ named) & (0u - ((mask >> lane) & 1));
    if (different == 0) return named;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t lanes_named = masks[lane];
    if (!((lanes_named >> lane) & 1)) {
      find(FindingKind::missing_lanes, &warp, &instruction, lane, std::nullopt,
           fmt::format("the lane is not in the mask that it passes, {:#010x}", lanes_named));
    } else if (const std::uint32_t missing = lanes_named & warp.alive & ~mask; missing != 0) {
      find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(missing), std::nullopt,
           fmt::format("the mask {:#010x} names lanes that are not here: {:#010x}", lanes_named, missing));
    } else if (const std::uint32_t gone = lanes_named & ~warp.alive; gone != 0) {
      find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(gone), std::nullopt,
           fmt::format("the mask {:#010x} names lanes that have ended: {:#010x}", lanes_named, gone));
    }
  }
  return named;
}

// PTX ISA, "shfl.sync": c holds the clamp in bits 0–4 and the mask of the segment in bits 8–12.
void CtaExecutor::shuffle(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_members(warp, instruction, mask, instruction.r[5]);
  const auto mode = static_cast<ShuffleMode>(instruction.operation);
  const auto* value = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2]);
  const auto* delta = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[3]);
  const auto* control = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[4]);
  alignas(64) std::uint32_t result[kWarpSize];
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
    in_range |= static_cast<std::uint32_t>(valid) << lane;
    absent |= ((mask >> source) & 1) == 0 ? 1u << lane : 0;
  }
  if ((absent & mask) != 0) {
    find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(absent & mask), std::nullopt,
         fmt::format("a shuffle reads from lanes that do not take part; those that do are {:#010x}", mask));
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
  const std::uint32_t members = check_members(warp, instruction, mask, instruction.r[2]) & mask;
  std::uint32_t votes;
  std::memcpy(&votes, warp.registers + instruction.r[1], 4);
  votes &= members;
  const auto mode = static_cast<VoteMode>(instruction.operation);
  if (mode == VoteMode::ballot) {
    auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((mask >> lane) & 1) to[lane] = votes;
    }
    return;
  }
  const bool result = mode == VoteMode::all   ? votes == members
                      : mode == VoteMode::any ? votes != 0
                                              : votes == 0 || votes == members;
  auto& to = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  to = (to & ~mask) | (result ? mask : 0);
}

void CtaExecutor::match(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::uint32_t members = check_members(warp, instruction, mask, instruction.r[3]) & mask;
  std::uint64_t values[kWarpSize] = {};
  for (int lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(&values[lane], warp.registers + instruction.r[2] + lane * instruction.bytes, instruction.bytes);
  }
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  auto& predicate = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[1]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::uint32_t equal = 0;
    for (int other = 0; other < kWarpSize; ++other) {
      if (((members >> other) & 1) && values[other] == values[lane]) equal |= 1u << other;
    }
    if (instruction.operation) {  // match.all
      const bool all = equal == members;
      to[lane] = all ? members : 0;
      predicate = (predicate & ~(1u << lane)) | (static_cast<std::uint32_t>(all) << lane);
    } else {
      to[lane] = equal;
    }
  }
}

void CtaExecutor::reduce(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::uint32_t members = check_members(warp, instruction, mask, instruction.r[2]) & mask;
  const auto* values = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[1]);
  const auto operation = static_cast<ReduceOperation>(instruction.operation);
  if (members == 0) return;
  std::uint32_t result = values[std::countr_zero(members)];
  for (std::uint32_t rest = members & (members - 1); rest != 0; rest &= rest - 1) {
    const std::uint32_t value = values[std::countr_zero(rest)];
    const auto a = static_cast<std::int32_t>(result), b = static_cast<std::int32_t>(value);
    switch (operation) {
      case ReduceOperation::add_u:
        result += value;
        break;
      case ReduceOperation::min_u:
        result = std::min(result, value);
        break;
      case ReduceOperation::max_u:
        result = std::max(result, value);
        break;
      case ReduceOperation::min_s:
        result = static_cast<std::uint32_t>(std::min(a, b));
        break;
      case ReduceOperation::max_s:
        result = static_cast<std::uint32_t>(std::max(a, b));
        break;
      case ReduceOperation::and_:
        result &= value;
        break;
      case ReduceOperation::or_:
        result |= value;
        break;
      case ReduceOperation::xor_:
        result ^= value;
        break;
    }
  }
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane) & 1) to[lane] = result;
  }
}

}  // namespace flash_ladder::emulator
