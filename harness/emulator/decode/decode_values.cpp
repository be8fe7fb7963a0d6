// Moves, comparisons, and addresses of one space as those of another.
#include <fmt/format.h>

#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {
namespace {

Address window_of(ptx::Space space) {
  using enum ptx::Space;
  switch (space) {
    case shared:
      return kSharedWindow;
    case local:
      return kLocalWindow;
    case param:
      return kParameterWindow;
    default:
      return 0;
  }
}

}  // namespace

void KernelDecoder::mov() {
  expect_operands(2);
  const Operand &to = operand(0), &from = operand(1);
  const ptx::Type type = last_type();
  if (from.kind == Kind::vector || to.kind == Kind::vector) {
    const Operand& vector = from.kind == Kind::vector ? from : to;
    const std::size_t count = vector.elements.size();
    if (!((type.bits == 32 && count == 2) || (type.bits == 64 && (count == 2 || count == 4)))) fail_unknown();
    const int part_bits = type.bits / static_cast<int>(count);
    const Slot part = slot_of(part_bits / 8), whole = slot_of(type.bits / 8);
    if (from.kind == Kind::vector) {
      std::vector<int> parts;
      for (const Operand& element : from.elements) parts.push_back(read(element, part));
      emit_lane(fmt::format("%pack.{}.{}", part_bits, type.bits), {write(to, whole)}, parts);
    } else {
      const int value = read(from, whole);
      const auto opcode = [&](std::size_t i) {
        return fmt::format("%unpack{}.{}.{}", count == 4 ? "4" : "", type.bits, i);
      };
      // All parts are read before any is written, if one of them is the source itself.
      std::vector<std::pair<int, int>> moves;
      for (std::size_t i = 0; i < count; ++i) {
        if (to.elements[i].kind == Kind::sink) continue;
        const int target = write(to.elements[i], part);
        const int result = target == value ? temporary(part) : target;
        emit_lane(opcode(i), {result}, {value});
        if (result != target) moves.emplace_back(target, result);
      }
      for (const auto& [target, result] : moves)
        emit_lane(part == Slot::b16 ? "mov.b16" : "mov.b32", {target}, {result});
    }
    return;
  }
  if (!decode_lane()) fail_unknown();
}

// setp.lt.and.ftz.f32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c.
void KernelDecoder::setp() {
  std::string compare;
  std::string_view boolean;
  for (const std::string_view part : parts_) {
    if (part == "and" || part == "or" || part == "xor") {
      boolean = part;
    } else {
      if (!compare.empty()) compare += '.';
      compare += part;
    }
  }
  const LaneOperation* operation = lane_table().find(compare);
  if (operation == nullptr) fail_unknown();
  const bool two_results = operand(0).pair;
  const std::size_t first = two_results ? 2 : 1;
  expect_operands(first + 2 + (boolean.empty() ? 0 : 1));
  const int a = read(operand(first), operation->slots[1]), b = read(operand(first + 1), operation->slots[2]);
  if (boolean.empty() && !two_results) {
    emit_lane(*operation, {write(operand(0), Slot::predicate)}, {a, b});
    return;
  }
  const int c = boolean.empty() ? -1 : read(operand(first + 2), Slot::predicate);
  const int result = temporary(Slot::predicate), p = temporary(Slot::predicate);
  const std::string combine = std::string(boolean) + ".pred";
  emit_lane(*operation, {result}, {a, b});
  if (boolean.empty()) {
    emit_lane("mov.pred", {p}, {result});
  } else {
    emit_lane(combine, {p}, {result, c});
  }
  if (two_results) {
    const int inverted = temporary(Slot::predicate);
    const int q = write(operand(1), Slot::predicate);
    emit_lane("not.pred", {inverted}, {result});
    if (boolean.empty()) {
      emit_lane("mov.pred", {q}, {inverted});
    } else {
      emit_lane(combine, {q}, {inverted, c});
    }
  }
  emit_lane("mov.pred", {write(operand(0), Slot::predicate)}, {p});
}

// cvta.to.shared.u64 and cvta.shared.u64: generic addresses of a space are its addresses in a window.
void KernelDecoder::cvta() {
  expect_operands(2);
  const bool to = has("to");
  const std::optional<Space> space = parts_.size() > 2 ? named_space(parts_[parts_.size() - 2]) : std::nullopt;
  if (!space || parts_.back() != "u64") fail_unknown();
  const int from = read(operand(1), Slot::b64);
  emit_lane(to ? "sub.u64" : "add.u64", {write(operand(0), Slot::b64)}, {from, constant(Slot::b64, window_of(*space))});
  kernel_->code.back().instruction_class = InstructionClass::convert;
}

void KernelDecoder::isspacep() {
  expect_operands(2);
  const std::optional<Space> space = named_space(parts_.back());
  if (!space) fail_unknown();
  const int address = read(operand(1), Slot::b64), relative = temporary(Slot::b64);
  const int result = write(operand(0), Slot::predicate);
  if (*space == Space::constant) {  // constants are told apart from global memory by nobody
    emit_lane("mov.pred", {result}, {constant(Slot::predicate, 0)});
    return;
  }
  const bool global = *space == Space::global;
  emit_lane("sub.u64", {relative}, {address, constant(Slot::b64, global ? kSharedWindow : window_of(*space))});
  emit_lane(global ? "setp.ge.u64" : "setp.lt.u64", {result},
            {relative, constant(Slot::b64, global ? 3 * kWindowSize : kWindowSize)});
}

}  // namespace flash_ladder::emulator
