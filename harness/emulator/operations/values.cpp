// Moves, comparisons, and conversions of addresses between spaces: everything that becomes operations on lanes.
#include <fmt/format.h>

#include <optional>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;
using Kind = Operand::Kind;

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

// mov.b128: one of the operands may be a vector of two registers of 64 bits.
void decode_wide_mov(KernelDecoder& d) {
  const auto pair = [&](std::size_t i) {
    const Operand& operand = d.operand(i);
    if (operand.kind != Kind::vector) return d.halves(operand);
    if (operand.elements.size() != 2) d.fail("a vector of the wrong length");
    std::vector<int> both;
    for (const Operand& element : operand.elements)
      both.push_back(i == 0 ? d.write(element, Slot::b64) : d.read(element, Slot::b64));
    return both;
  };
  const std::vector<int> from = pair(1), to = pair(0);
  // A register that is still to be read must not be written first.
  const int upper = d.temporary(Slot::b64);
  d.emit_lane("mov.b64", {upper}, {from[1]});
  d.emit_lane("mov.b64", {to[0]}, {from[0]});
  d.emit_lane("mov.b64", {to[1]}, {upper});
}

void decode_mov(KernelDecoder& d) {
  d.expect_operands(2);
  const Operand &to = d.operand(0), &from = d.operand(1);
  const ptx::Type type = d.last_type();
  if (type.bits == 128) return decode_wide_mov(d);
  if (from.kind == Kind::vector || to.kind == Kind::vector) {
    const Operand& vector = from.kind == Kind::vector ? from : to;
    const std::size_t count = vector.elements.size();
    if (!((type.bits == 32 && count == 2) || (type.bits == 64 && (count == 2 || count == 4)))) d.fail_unknown();
    const int part_bits = type.bits / static_cast<int>(count);
    const Slot part = slot_of(part_bits / 8), whole = slot_of(type.bits / 8);
    if (from.kind == Kind::vector) {
      std::vector<int> parts;
      for (const Operand& element : from.elements) parts.push_back(d.read(element, part));
      d.emit_lane(fmt::format("%pack.{}.{}", part_bits, type.bits), {d.write(to, whole)}, parts);
    } else {
      const int value = d.read(from, whole);
      const auto opcode = [&](std::size_t i) {
        return fmt::format("%unpack{}.{}.{}", count == 4 ? "4" : "", type.bits, i);
      };
      // If one of the parts is the source itself, all of them are read before any is written.
      std::vector<std::pair<int, int>> moves;
      for (std::size_t i = 0; i < count; ++i) {
        if (to.elements[i].kind == Kind::sink) continue;
        const int target = d.write(to.elements[i], part);
        const int result = target == value ? d.temporary(part) : target;
        d.emit_lane(opcode(i), {result}, {value});
        if (result != target) moves.emplace_back(target, result);
      }
      for (const auto& [target, result] : moves)
        d.emit_lane(part == Slot::b16 ? "mov.b16" : "mov.b32", {target}, {result});
    }
    return;
  }
  if (!d.decode_lane()) d.fail_unknown();
}

// setp.lt.and.ftz.f32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c.
void decode_setp(KernelDecoder& d) {
  std::string compare;
  std::string_view boolean;
  for (const std::string_view part : d.parts()) {
    if (part == "and" || part == "or" || part == "xor") {
      boolean = part;
    } else {
      if (!compare.empty()) compare += '.';
      compare += part;
    }
  }
  const LaneOperation* operation = lane_table().find(compare);
  if (operation == nullptr) d.fail_unknown();
  const bool two_results = d.operand(0).pair;
  const std::size_t first = two_results ? 2 : 1;
  d.expect_operands(first + 2 + (boolean.empty() ? 0 : 1));
  const int a = d.read(d.operand(first), operation->slots[1]), b = d.read(d.operand(first + 1), operation->slots[2]);
  if (boolean.empty() && !two_results) {
    d.emit_lane(*operation, {d.write(d.operand(0), Slot::predicate)}, {a, b});
    return;
  }
  const int c = boolean.empty() ? -1 : d.read(d.operand(first + 2), Slot::predicate);
  const int result = d.temporary(Slot::predicate), p = d.temporary(Slot::predicate);
  const std::string combine = std::string(boolean) + ".pred";
  d.emit_lane(*operation, {result}, {a, b});
  if (boolean.empty()) {
    d.emit_lane("mov.pred", {p}, {result});
  } else {
    d.emit_lane(combine, {p}, {result, c});
  }
  if (two_results) {
    const int inverted = d.temporary(Slot::predicate);
    const int q = d.write(d.operand(1), Slot::predicate);
    d.emit_lane("not.pred", {inverted}, {result});
    if (boolean.empty()) {
      d.emit_lane("mov.pred", {q}, {inverted});
    } else {
      d.emit_lane(combine, {q}, {inverted, c});
    }
  }
  d.emit_lane("mov.pred", {d.write(d.operand(0), Slot::predicate)}, {p});
}

// cvta.to.shared.u64 and cvta.shared.u64: generic addresses of a space are its addresses in a window.
void decode_cvta(KernelDecoder& d) {
  d.expect_operands(2);
  const bool to = d.has("to");
  const std::optional<Space> space = d.parts().size() > 2 ? named_space(d.parts()[d.parts().size() - 2]) : std::nullopt;
  if (!space || d.parts().back() != "u64") d.fail_unknown();
  const int from = d.read(d.operand(1), Slot::b64);
  d.emit_lane(to ? "sub.u64" : "add.u64", {d.write(d.operand(0), Slot::b64)},
              {from, d.constant(Slot::b64, window_of(*space))});
  d.kernel().code.back().instruction_class = InstructionClass::convert;
}

void decode_isspacep(KernelDecoder& d) {
  d.expect_operands(2);
  const std::optional<Space> space = named_space(d.parts().back());
  if (!space) d.fail_unknown();
  const int address = d.read(d.operand(1), Slot::b64), relative = d.temporary(Slot::b64);
  const int result = d.write(d.operand(0), Slot::predicate);
  if (*space == Space::constant) {  // constants are not distinguished from global memory
    d.emit_lane("mov.pred", {result}, {d.constant(Slot::predicate, 0)});
    return;
  }
  const bool global = *space == Space::global;
  d.emit_lane("sub.u64", {relative}, {address, d.constant(Slot::b64, global ? kSharedWindow : window_of(*space))});
  d.emit_lane(global ? "setp.ge.u64" : "setp.lt.u64", {result},
              {relative, d.constant(Slot::b64, global ? 3 * kWindowSize : kWindowSize)});
}

void decode_createpolicy(KernelDecoder& d) {
  if (d.num_operands() == 0) d.fail_unknown();
  d.emit_lane("mov.b64", {d.write(d.operand(0), Slot::b64)}, {d.constant(Slot::b64, 0)});
}

}  // namespace

void add_value_operations(OperationTable& table) {
  table.add("mov", decode_mov);
  table.add("setp", decode_setp);
  table.add("cvta", decode_cvta);
  table.add("isspacep", decode_isspacep);
  table.add("createpolicy", decode_createpolicy);
}

}  // namespace flash_ladder::emulator
