// printf and assert of device code. CUDA Programming Guide, "Formatted Output": the arguments lie in local memory, 4 or 8 bytes
// each, aligned to their size; char and short have become int, float has become double.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using Kind = Operand::Kind;

std::string string_at(const CtaExecutor& cta, Address address) {
  const std::vector<Allocation>& all = cta.context().allocations;
  std::string text;
  for (const Allocation& allocation : all) {
    if (allocation.freed || address - allocation.address >= allocation.size) continue;
    for (std::size_t i = address - allocation.address; i < allocation.size; ++i) {
      const char c = static_cast<char>(allocation.data[i]);
      if (c == '\0') break;
      text += c;
    }
  }
  return text;
}

void print(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Address format_address, arguments;
    std::memcpy(&format_address, warp.registers + instruction.r[0] + 8 * lane, 8);
    std::memcpy(&arguments, warp.registers + instruction.r[1] + 8 * lane, 8);
    const std::string text = string_at(cta, format_address);
    std::uint64_t offset = arguments - kLocalWindow - kLocalBase;
    const std::uint64_t end = cta.context().kernel.local_bytes;
    const auto next = [&](std::size_t bytes) {
      std::uint64_t value = 0;
      offset = (offset + bytes - 1) / bytes * bytes;
      if (offset < end && end - offset >= bytes)
        std::memcpy(&value, cta.local_address(warp, lane, offset + kLocalBase), bytes);
      offset += bytes;
      return value;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        cta.output() += text[i];
        continue;
      }
      std::string format = "%";
      bool is_long = false;
      for (++i; i < text.size(); ++i) {
        const char c = text[i];
        if (c == 'l' || c == 'j' || c == 'z' || c == 't') {
          is_long = true;
        } else if (c == '*') {
          format += std::to_string(static_cast<std::int32_t>(next(4)));
        } else if (c == 'h' || c == 'L') {  // no effect on what was passed
        } else if (std::string_view("-+ #.0123456789").find(c) != std::string_view::npos) {
          format += c;
        } else {
          break;
        }
      }
      if (i == text.size()) break;
      const char conversion = text[i];
      const auto put = [&](const char* length, auto value) {
        const std::string full = format + length + conversion;
        const int size = std::snprintf(nullptr, 0, full.c_str(), value);
        std::string piece(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
        std::snprintf(piece.data(), piece.size(), full.c_str(), value);
        piece.pop_back();
        cta.output() += piece;
      };
      switch (conversion) {
        case '%':
          cta.output() += '%';
          break;
        case 'd':
        case 'i':
          put("ll", is_long ? static_cast<long long>(next(8)) : static_cast<std::int32_t>(next(4)) + 0LL);
          break;
        case 'u':
        case 'x':
        case 'X':
        case 'o':
          put("ll", is_long ? static_cast<unsigned long long>(next(8)) : next(4) + 0ULL);
          break;
        case 'c':
          put("", static_cast<int>(next(4)));
          break;
        case 'p':
          put("", std::bit_cast<void*>(next(8)));
          break;
        case 's': {
          const std::string argument = string_at(cta, next(8));
          put("", argument.c_str());
          break;
        }
        case 'f':
        case 'F':
        case 'e':
        case 'E':
        case 'g':
        case 'G':
        case 'a':
        case 'A':
          put("", std::bit_cast<double>(next(8)));
          break;
        default:
          cta.output() += format + conversion;
          break;
      }
    }
  }
}

void assertion(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const auto text_of = [&](std::size_t operand) {
    Address address;
    std::memcpy(&address, warp.registers + instruction.r[operand] + 8 * lane, 8);
    return string_at(cta, address);
  };
  std::uint32_t line;
  std::memcpy(&line, warp.registers + instruction.r[2] + 4 * lane, 4);
  const Dim3& block = cta.context().config.block;
  const std::uint32_t thread = static_cast<std::uint32_t>(warp.index * kWarpSize + lane);
  cta.find(FindingKind::assertion, &warp, &instruction, lane, std::nullopt,
           fmt::format("{}:{}: the assertion `{}` failed for thread ({}, {}, {})", text_of(1), line, text_of(0),
                       thread % block.x, thread / block.x % block.y, thread / block.x / block.y));
}

// Only printf and assert: the functions that the text defines have been inlined (inline_calls.h).
void decode_call(KernelDecoder& d) {
  const std::size_t callee = d.operand(0).kind == Kind::vector ? 1 : 0;
  if (callee >= d.num_operands() || d.operand(callee).kind != Kind::function) {
    d.fail("calls through pointers are not supported");
  }
  const std::string_view name = d.operand(callee).name;
  const std::vector<Operand> arguments =
      callee + 1 < d.num_operands() ? d.elements(d.operand(callee + 1)) : std::vector<Operand>{};
  const auto argument = [&](std::size_t i, int bytes = 8) {
    if (i >= arguments.size() || arguments[i].kind != Kind::variable) d.fail("a malformed call");
    const int value = d.temporary(slot_of(bytes));
    emit_local_load(d, value, d.address_of(arguments[i]), bytes);
    return value;
  };
  if (name == "vprintf") {
    const int format = argument(0), values = argument(1);
    d.emit(print, InstructionClass::other, {}, {format, values});
    if (callee == 1 && !d.elements(d.operand(0)).empty() && d.elements(d.operand(0))[0].kind == Kind::variable) {
      emit_local_store(d, d.constant(Slot::b32, 0), d.address_of(d.elements(d.operand(0))[0]), 4);
    }
  } else if (name == "__assertfail") {
    const int message = argument(0), file = argument(1), line = argument(2, 4);
    d.emit(Action::exit, InstructionClass::other, {}, {message, file, line}).execute = assertion;
  } else {
    d.fail(fmt::format("the virtual GPU does not know the function {}, which this file only declares", name));
  }
}

}  // namespace

void add_call_operations(OperationTable& table) { table.add("call", decode_call); }

}  // namespace flash_ladder::emulator
