#include "emulator/exec/definedness.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

// The lanes in which every byte of a source is `value`.
std::uint32_t lanes_filled_with(int value, const std::byte* source, Slot slot) {
  std::uint32_t lanes = 0;
  if (slot == Slot::predicate) {
    std::memcpy(&lanes, source, sizeof lanes);
    return value != 0 ? lanes : ~lanes;
  }
  const int bytes = slot_bytes(slot) / kWarpSize;
  std::byte wanted[8];
  std::memset(wanted, value, sizeof wanted);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (std::memcmp(source + lane * bytes, wanted, static_cast<std::size_t>(bytes)) == 0) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace

UndefinedLanes undefined_sources(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::size_t first,
                                 std::size_t last, std::uint32_t mask) {
  UndefinedLanes found;
  if (!watches(warp, instruction)) return found;
  const WatchedOperands& watched = cta.context().kernel.watched[static_cast<std::size_t>(instruction.watched)];
  for (std::size_t k = first; k < last; ++k) {
    if (watched.r[k] < 0) continue;
    const UndefinedLanes& source = warp.undefined[static_cast<std::size_t>(watched.r[k])];
    if ((source.lanes & mask) == 0) continue;
    if (found.lanes == 0) found.origin = source.origin;
    found.lanes |= source.lanes & mask;
  }
  return found;
}

void set_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::size_t k, std::uint32_t mask,
                   const UndefinedLanes& to) {
  const std::int32_t number = cta.context().kernel.watched[static_cast<std::size_t>(instruction.watched)].r[k];
  if (number < 0) return;
  UndefinedLanes& result = warp.undefined[static_cast<std::size_t>(number)];
  result.lanes = (result.lanes & ~mask) | (to.lanes & mask);
  if ((to.lanes & mask) == 0) return;
  const bool is_move =
      instruction.lane_operation != nullptr && instruction.lane_operation->undefined_rule == UndefinedRule::move;
  result.origin = to.origin < 0 && !is_move ? cta.index_of(instruction) : to.origin;
}

void follow_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const WatchedOperands& watched = cta.context().kernel.watched[static_cast<std::size_t>(instruction.watched)];
  if (watched.guard >= 0) {
    const UndefinedLanes& guard = warp.undefined[static_cast<std::size_t>(watched.guard)];
    report_undefined(cta, warp, instruction, {guard.lanes & warp.active, guard.origin}, "branched on");
  }
  const std::size_t first = instruction.writes, last = instruction.operands;
  UndefinedLanes result;
  switch (instruction.action) {
    case Action::watched_lane: {
      result = undefined_sources(cta, warp, instruction, first, last, mask);
      const auto of = [&](std::size_t k) { return undefined_sources(cta, warp, instruction, k, k + 1, mask).lanes; };
      const auto filled_with = [&](int value) {
        std::uint32_t lanes = 0;
        for (std::size_t k = first; k < last; ++k) {
          const Slot slot = instruction.lane_operation->slots[k];
          lanes |= lanes_filled_with(value, warp.registers + instruction.r[k], slot) & ~of(k);
        }
        return lanes;
      };
      switch (instruction.lane_operation->undefined_rule) {
        case UndefinedRule::selp: {
          std::uint32_t chosen;
          std::memcpy(&chosen, warp.registers + instruction.r[3], sizeof chosen);
          result.lanes = of(3) | (chosen & of(1)) | (~chosen & of(2));
          break;
        }
        case UndefinedRule::and_:
          result.lanes &= ~filled_with(0x00);
          break;
        case UndefinedRule::or_:
          result.lanes &= ~filled_with(0xff);
          break;
        default:
          break;
      }
      break;
    }
    default: {
      const bool has_address = instruction.role != MemoryRole::none || instruction.space == ptx::Space::shared;
      for (std::size_t k = first; k < last; ++k) {
        if ((instruction.own_sources >> (k - first)) & 1) continue;
        report_undefined(cta, warp, instruction, undefined_sources(cta, warp, instruction, k, k + 1, mask),
                         has_address && k == first ? "used as an address" : "used");
      }
      break;
    }
  }
  for (std::size_t k = 0; k < first; ++k) set_undefined(cta, warp, instruction, k, mask, result);
}

void report_undefined(CtaExecutor& cta, Warp& warp, const Instruction& instruction, const UndefinedLanes& found,
                      const char* use) {
  if (found.lanes == 0) return;
  const std::int32_t here = cta.index_of(instruction), read = found.origin < 0 ? here : found.origin;
  if (!cta.findings().is_new(FindingKind::uninitialised_read, cta.place_of(read), -1)) return;
  const int lane = std::countr_zero(found.lanes);
  const char* what = read == here ? "it" : "what was computed from it";
  RawFinding raw = cta.describe(
      FindingKind::uninitialised_read, &warp, &cta.code()[static_cast<std::size_t>(read)], lane, std::nullopt,
      fmt::format("a read of {}, and {} is {}: a variable without an initial value?",
                  cta.code()[static_cast<std::size_t>(read)].hands_on ? "local memory that was never written"
                                                                      : "a register that nothing has written",
                  what, use));
  if (read != here) {
    raw.finding.other = {.what = use, .position = cta.position_of(here), .warp = warp.index, .lane = lane};
  }
  cta.findings().add(std::move(raw));
}

}  // namespace flash_ladder::emulator
