// Operations that the lanes of a warp execute together: shuffles, votes, transposition. PTX ISA, "shfl.sync",
// "vote.sync", "movmatrix" …
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/lanes/across_lanes.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using Kind = Operand::Kind;

enum class VoteMode : std::uint8_t { all, any, uni, ballot };
enum class ReduceOperation : std::uint8_t { add_u, min_u, max_u, min_s, max_s, and_, or_, xor_ };

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

// Calls f(lanes, named) for each group of executing lanes that pass the same mask; `named` are the lanes among them
// that the mask names. A lane must be in the mask that it passes, and all lanes in it must be present, with the same
// mask. `members` is the operand with the mask.
template <typename F>
void for_each_group(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask,
                    std::int32_t members, F f) {
  const auto* masks = reinterpret_cast<const std::uint32_t*>(warp.registers + members);
  for (std::uint32_t rest = mask; rest != 0;) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t named = masks[lane];
    std::uint32_t different = 0;
    if (std::memcmp(masks, masks + 1, (kWarpSize - 1) * sizeof *masks) != 0) {  // they hardly ever differ
      for (int other = 0; other < kWarpSize; ++other)
        different |= static_cast<std::uint32_t>(masks[other] != named) << other;
    }
    const std::uint32_t lanes = rest & ~different;
    if (lanes != named) check_group(cta, warp, instruction, mask, lanes, named);
    f(lanes, named & mask);
    rest &= ~lanes;
  }
}

// PTX ISA, "movmatrix": a lane contains two neighbours of a row of the 8 × 8 matrix, as in the result of ldmatrix, so
// the lanes of a register are the matrix row by row.
void transpose_matrix(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  std::uint16_t matrix[8][8], transposed[8][8];
  std::memcpy(matrix, warp.registers + instruction.r[1], sizeof matrix);
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column) transposed[column][row] = matrix[row][column];
  }
  std::memcpy(warp.registers + instruction.r[0], transposed, sizeof transposed);
}

void decode_movmatrix(KernelDecoder& d) {
  if (d.instruction().opcode != "movmatrix.sync.aligned.m8n8.trans.b16") d.fail_unknown();
  d.expect_operands(2);
  const int from = d.read(d.operand(1), Slot::b32);
  d.emit(transpose_matrix, InstructionClass::shuffle, {d.write(d.operand(0), Slot::b32)}, {from});
}

// PTX ISA, "shfl.sync".
template <lanes::ShuffleMode kMode>
void shuffle(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint32_t named_by[kWarpSize];  // one for each executing lane
  bool all_take_part = false;
  for_each_group(cta, warp, instruction, mask, instruction.r[5], [&](std::uint32_t lanes, std::uint32_t named) {
    all_take_part = lanes == kAllLanes && named == kAllLanes;
    for (std::uint32_t rest = all_take_part ? 0 : lanes; rest != 0; rest &= rest - 1)
      named_by[std::countr_zero(rest)] = named;
  });
  const auto* value = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[2]);
  const auto* delta = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[3]);
  const auto* control = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[4]);
  alignas(64) std::uint32_t result[kWarpSize], sources[kWarpSize];
  std::uint32_t absent = 0;
  const std::uint32_t in_range = lanes::shuffle<kMode>(value, delta, control, sources, result);
  if (!all_take_part) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (((named_by[lane] >> sources[lane]) & 1) == 0) absent |= 1u << lane;
    }
  }
  if (absent != 0) {
    const int lane = std::countr_zero(absent);
    cta.find(
        FindingKind::missing_lanes, &warp, &instruction, lane, std::nullopt,
        fmt::format("a shuffle reads from lanes that do not take part; those that do are {:#010x}", named_by[lane]));
  }
  // A lane may pass on a value that only it has: __shfl_sync(mask, x, 0).
  if (watches(warp, instruction)) {
    const UndefinedLanes given =
        undefined_sources(cta, warp, instruction, instruction.writes, instruction.writes + 1, kAllLanes);
    UndefinedLanes taken{.lanes = 0, .origin = given.origin};
    for (int lane = 0; lane < kWarpSize; ++lane) taken.lanes |= ((given.lanes >> sources[lane]) & 1) << lane;
    set_undefined(cta, warp, instruction, 0, mask, taken);
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

void decode_shfl(KernelDecoder& d) {
  if (d.parts().size() != 4 || d.parts()[1] != "sync" || d.parts()[3] != "b32") d.fail_unknown();
  static const std::unordered_map<std::string_view, Execute> modes = {{"up", shuffle<lanes::ShuffleMode::up>},
                                                                      {"down", shuffle<lanes::ShuffleMode::down>},
                                                                      {"bfly", shuffle<lanes::ShuffleMode::bfly>},
                                                                      {"idx", shuffle<lanes::ShuffleMode::idx>}};
  const auto mode = modes.find(d.parts()[2]);
  if (mode == modes.end()) d.fail_unknown();
  const bool pair = d.operand(0).pair;
  const std::size_t first = pair ? 2 : 1;
  d.expect_operands(first + 4);
  std::vector<int> reads;
  for (std::size_t i = first; i < d.num_operands(); ++i) reads.push_back(d.read(d.operand(i), Slot::b32));
  const int value = d.write(d.operand(0), Slot::b32);
  const int in_range = pair ? d.write(d.operand(1), Slot::predicate) : d.temporary(Slot::predicate);
  d.emit(mode->second, InstructionClass::shuffle, {value, in_range}, reads).own_sources = 1;
}

// Writes the value to the first destination of these lanes.
void give(Warp& warp, const Instruction& instruction, std::uint32_t lanes, std::uint32_t value) {
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) to[std::countr_zero(rest)] = value;
}

template <VoteMode kMode>
void vote(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint32_t predicates;
  std::memcpy(&predicates, warp.registers + instruction.r[1], 4);
  for_each_group(cta, warp, instruction, mask, instruction.r[2], [&](std::uint32_t lanes, std::uint32_t named) {
    const std::uint32_t votes = predicates & named;
    if (kMode == VoteMode::ballot) {
      give(warp, instruction, lanes, votes);
      return;
    }
    const bool result = kMode == VoteMode::all   ? votes == named
                        : kMode == VoteMode::any ? votes != 0
                                                 : votes == 0 || votes == named;
    auto& to = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
    to = (to & ~lanes) | (result ? lanes : 0);
  });
}

void decode_vote(KernelDecoder& d) {
  // CUB writes vote.ballot.sync.b32, which is the same as vote.sync.ballot.b32.
  if (d.parts().size() != 4 || (d.parts()[1] != "sync" && d.parts()[2] != "sync")) d.fail_unknown();
  const std::string_view which = d.parts()[d.parts()[1] == "sync" ? 2 : 1];
  static const std::unordered_map<std::string_view, Execute> modes = {{"all", vote<VoteMode::all>},
                                                                      {"any", vote<VoteMode::any>},
                                                                      {"uni", vote<VoteMode::uni>},
                                                                      {"ballot", vote<VoteMode::ballot>}};
  const bool ballot = which == "ballot";
  const auto mode = modes.find(which);
  if (mode == modes.end() || d.parts()[3] != (ballot ? "b32" : "pred")) d.fail_unknown();
  d.expect_operands(3);
  const int source = d.read(d.operand(1), Slot::predicate), members = d.read(d.operand(2), Slot::b32);
  const int result = d.write(d.operand(0), ballot ? Slot::b32 : Slot::predicate);
  d.emit(mode->second, InstructionClass::shuffle, {result}, {source, members});
}

template <bool kAll>
void match(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  std::uint64_t values[kWarpSize] = {};
  for (int lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(&values[lane], warp.registers + instruction.r[2] + lane * instruction.bytes, instruction.bytes);
  }
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  auto& predicate = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[1]);
  for_each_group(cta, warp, instruction, mask, instruction.r[3], [&](std::uint32_t lanes, std::uint32_t named) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::uint32_t equal = 0;
      for (int other = 0; other < kWarpSize; ++other) {
        if (((named >> other) & 1) && values[other] == values[lane]) equal |= 1u << other;
      }
      if (kAll) {
        const bool all = equal == named;
        to[lane] = all ? named : 0;
        predicate = (predicate & ~(1u << lane)) | (static_cast<std::uint32_t>(all) << lane);
      } else {
        to[lane] = equal;
      }
    }
  });
}

void decode_match(KernelDecoder& d) {
  const bool all = d.parts().size() == 4 && d.parts()[1] == "all";
  if (d.parts().size() != 4 || d.parts()[2] != "sync" || !(all || d.parts()[1] == "any")) d.fail_unknown();
  const ptx::Type type = d.last_type();
  if (type.bits != 32 && type.bits != 64) d.fail_unknown();
  const bool pair = d.operand(0).pair;
  const std::size_t first = pair ? 2 : 1;
  d.expect_operands(first + 2);
  const int value = d.read(d.operand(first), slot_of(type.bits / 8)), members = d.read(d.operand(first + 1), Slot::b32);
  const int result = d.write(d.operand(0), Slot::b32);
  const int equal = pair ? d.write(d.operand(1), Slot::predicate) : d.temporary(Slot::predicate);
  Instruction& out =
      d.emit(all ? match<true> : match<false>, InstructionClass::shuffle, {result, equal}, {value, members});
  out.bytes = static_cast<std::uint8_t>(type.bits / 8);
}

template <ReduceOperation kOperation>
void reduce(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto* values = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[1]);
  for_each_group(cta, warp, instruction, mask, instruction.r[2], [&](std::uint32_t lanes, std::uint32_t named) {
    if (named == 0) return;
    std::uint32_t result = values[std::countr_zero(named)];
    for (std::uint32_t rest = named & (named - 1); rest != 0; rest &= rest - 1)
      result = reduced(kOperation, result, values[std::countr_zero(rest)]);
    give(warp, instruction, lanes, result);
  });
}

void decode_redux(KernelDecoder& d) {
  if (d.parts().size() != 4 || d.parts()[1] != "sync") d.fail_unknown();
  static const std::unordered_map<std::string_view, Execute> operations = {
      {"add.u32", reduce<ReduceOperation::add_u>}, {"add.s32", reduce<ReduceOperation::add_u>},
      {"min.u32", reduce<ReduceOperation::min_u>}, {"min.s32", reduce<ReduceOperation::min_s>},
      {"max.u32", reduce<ReduceOperation::max_u>}, {"max.s32", reduce<ReduceOperation::max_s>},
      {"and.b32", reduce<ReduceOperation::and_>},  {"or.b32", reduce<ReduceOperation::or_>},
      {"xor.b32", reduce<ReduceOperation::xor_>}};
  const auto operation = operations.find(d.instruction().opcode.substr(std::string_view("redux.sync.").size()));
  if (operation == operations.end()) d.fail_unknown();
  d.expect_operands(3);
  const int value = d.read(d.operand(1), Slot::b32), members = d.read(d.operand(2), Slot::b32);
  d.emit(operation->second, InstructionClass::shuffle, {d.write(d.operand(0), Slot::b32)}, {value, members});
}

void active_mask(CtaExecutor&, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  give(warp, instruction, mask, mask);
}

void decode_activemask(KernelDecoder& d) {
  if (d.instruction().opcode != "activemask.b32") d.fail_unknown();
  d.expect_operands(1);
  d.emit(active_mask, InstructionClass::shuffle, {d.write(d.operand(0), Slot::b32)}, {});
}

// bar.warp.sync. Diverged lanes may arrive at different instructions, which the hardware treats as one if the masks are
// equal.
void warp_barrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto synchronise = [&](std::uint32_t lanes) {
    if (cta.ordering() == nullptr) return;
    cta.ordering()->arrive(warp.index, lanes, warp.alive);
    cta.ordering()->clocks().synchronise(warp.index, lanes, warp.alive);
  };
  const auto* masks = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[0]);
  const std::uint32_t named = masks[std::countr_zero(mask)];
  bool same = mask == warp.active && (mask & ~named) == 0 && (named & warp.alive & ~mask) != 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) same &= masks[std::countr_zero(rest)] == named;
  if (same) {
    std::uint32_t here = mask;
    for (const Warp::Parted& parted : warp.stack) {
      if (parted.sync >= 0 && parted.sync_mask == named) here |= parted.mask;
    }
    if ((named & warp.alive & ~here) == 0) {
      for (Warp::Parted& parted : warp.stack) {
        if (parted.sync_mask == named) parted.sync = -1;
      }
      synchronise(named & warp.alive);
      return;
    }
    if (wait_for_lanes(cta, warp, instruction, named)) return;
  }
  for_each_group(cta, warp, instruction, mask, instruction.r[0],
                 [&](std::uint32_t, std::uint32_t of_group) { synchronise(of_group); });
}

}  // namespace

void decode_warp_barrier(KernelDecoder& d) {
  d.expect_operands(1);
  d.emit(warp_barrier, InstructionClass::barrier, {}, {d.read(d.operand(0), Slot::b32)}).computes_nothing = true;
}

void add_exchange_operations(OperationTable& table) {
  table.add("movmatrix", decode_movmatrix);
  table.add("shfl", decode_shfl);
  table.add("vote", decode_vote);
  table.add("match", decode_match);
  table.add("redux", decode_redux);
  table.add("activemask", decode_activemask);
}

}  // namespace flash_ladder::emulator
