// printf, assert, malloc and free in device code, and calls whose target is not a function. CUDA Programming Guide,
// "Formatted Output": the arguments are in local memory, 4 or 8 bytes each, aligned to their size; char and short have
// been promoted to int, and float to double. See also "Dynamic Global Memory Allocation and Operations".

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/function_name.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using Kind = Operand::Kind;

std::string string_at(CtaExecutor& cta, Address address) {
  const Allocation* const allocation = cta.memory().find_allocation(address);
  std::string text;
  if (allocation == nullptr || allocation->freed) return text;
  for (std::size_t i = address - allocation->address; i < allocation->size; ++i) {
    const char c = static_cast<char>(allocation->data[i]);
    if (c == '\0') break;
    text += c;
  }
  return text;
}

// The arguments of a call of printf: values of 4 or 8 bytes in the thread's local memory.
class PrintArguments {
 public:
  PrintArguments(CtaExecutor& cta, const Warp& warp, int lane, Address address)
      : cta_(cta), warp_(warp), lane_(lane), offset_(address - kLocalWindow - kLocalBase) {}

  std::uint64_t next(std::size_t bytes) {
    const std::uint64_t end = cta_.context().kernel.local_bytes;
    std::uint64_t value = 0;
    offset_ = (offset_ + bytes - 1) / bytes * bytes;
    if (offset_ < end && end - offset_ >= bytes)
      std::memcpy(&value, cta_.memory().local_address(warp_, lane_, offset_ + kLocalBase), bytes);
    offset_ += bytes;
    return value;
  }

 private:
  CtaExecutor& cta_;
  const Warp& warp_;
  const int lane_;
  std::uint64_t offset_;
};

// A conversion without its last character: "%-8".
struct Conversion {
  std::string format = "%";
  bool is_long = false;
};

// `i`: the % in the text, and afterwards the character that ends the conversion.
Conversion conversion_at(const std::string& text, std::size_t& i, PrintArguments& arguments) {
  Conversion conversion;
  for (++i; i < text.size(); ++i) {
    const char c = text[i];
    if (c == 'l' || c == 'j' || c == 'z' || c == 't') {
      conversion.is_long = true;
    } else if (c == '*') {
      conversion.format += std::to_string(static_cast<std::int32_t>(arguments.next(4)));
    } else if (c == 'h' || c == 'L') {  // does not change what was passed
    } else if (std::string_view("-+ #.0123456789").find(c) != std::string_view::npos) {
      conversion.format += c;
    } else {
      break;
    }
  }
  return conversion;
}

std::string converted(CtaExecutor& cta, const Conversion& as, char conversion, PrintArguments& arguments) {
  const auto next = [&](std::size_t bytes) { return arguments.next(bytes); };
  const auto put = [&](const char* length, auto value) {
    const std::string full = as.format + length + conversion;
    const int size = std::snprintf(nullptr, 0, full.c_str(), value);
    std::string piece(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
    std::snprintf(piece.data(), piece.size(), full.c_str(), value);
    piece.pop_back();
    return piece;
  };
  switch (conversion) {
    case '%':
      return "%";
    case 'd':
    case 'i':
      return put("ll", as.is_long ? static_cast<long long>(next(8)) : static_cast<std::int32_t>(next(4)) + 0LL);
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      return put("ll", as.is_long ? static_cast<unsigned long long>(next(8)) : next(4) + 0ULL);
    case 'c':
      return put("", static_cast<int>(next(4)));
    case 'p':
      return put("", std::bit_cast<void*>(next(8)));
    case 's': {
      const std::string argument = string_at(cta, next(8));
      return put("", argument.c_str());
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
      return put("", std::bit_cast<double>(next(8)));
    default:
      return as.format + conversion;
  }
}

void print(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Address format_address, values;
    std::memcpy(&format_address, warp.registers + instruction.r[0] + 8 * lane, 8);
    std::memcpy(&values, warp.registers + instruction.r[1] + 8 * lane, 8);
    const std::string text = string_at(cta, format_address);
    PrintArguments arguments(cta, warp, lane, values);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        cta.output() += text[i];
        continue;
      }
      const Conversion conversion = conversion_at(text, i, arguments);
      if (i == text.size()) break;
      cta.output() += converted(cta, conversion, text[i], arguments);
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

// r: the address, the size
void allocate(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto lanes = [&](std::size_t operand) {
    return reinterpret_cast<std::uint64_t*>(warp.registers + instruction.r[operand]);
  };
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint64_t bytes = lanes(1)[lane];
    lanes(0)[lane] = bytes == 0 ? 0 : cta.memory().allocate_on_heap(bytes);
  }
  cta.note_progress();
}

void release(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Address address;
    std::memcpy(&address, warp.registers + instruction.r[0] + 8 * lane, 8);
    if (address == 0) continue;
    try {
      cta.memory().free_on_heap(address);
    } catch (const MemoryError& error) {
      const Allocation* const allocation = cta.memory().find_allocation(address);
      cta.find(
          allocation != nullptr && allocation->freed ? FindingKind::use_after_free : FindingKind::invalid_operation,
          &warp, &instruction, lane, address, error.what());
    }
  }
  cta.note_progress();
}

// The remainder of a call through a pointer, after the pointer has been compared with all functions that it may refer to.
void call_nothing(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const int lane = std::countr_zero(mask);
  Address address;
  std::memcpy(&address, warp.registers + instruction.r[0] + 8 * lane, 8);
  std::string what = "which is not the address of a function";
  for (const auto& [function, name] : cta.context().kernel.functions) {
    if (function != address) continue;
    what = fmt::format(
        "which is {}: it takes other arguments than this call has, or is being called already. The virtual GPU "
        "does not run "
        "recursive functions",
        demangled(name));
  }
  cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
           fmt::format("a call of {:#x}, {}", address, address == 0 ? "the null pointer" : what));
}

// Functions that the text defines have already been inlined (inline_calls.h).
void decode_call(KernelDecoder& d) {
  const std::size_t callee = d.operand(0).kind == Kind::vector ? 1 : 0;
  if (callee >= d.num_operands()) d.fail("a malformed call");
  if (d.operand(callee).kind == Kind::reg) {
    d.name_functions();
    d.emit(Action::exit, InstructionClass::other, {}, {d.read(d.operand(callee), Slot::b64)}).execute = call_nothing;
    return;
  }
  if (d.operand(callee).kind != Kind::function) d.fail("a malformed call");
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
  } else if (name == "malloc" || name == "__nv_aligned_device_malloc") {  // every address is a multiple of 256
    const int bytes = argument(0), address = d.temporary(Slot::b64);
    const std::vector<Operand> results = callee == 1 ? d.elements(d.operand(0)) : std::vector<Operand>{};
    if (results.size() != 1 || results[0].kind != Kind::variable) d.fail("a malformed call");
    d.emit(allocate, InstructionClass::other, {address}, {bytes});
    emit_local_store(d, address, d.address_of(results[0]), 8);
    d.kernel().serial = true;
  } else if (name == "free") {
    const int address = argument(0);
    d.emit(release, InstructionClass::other, {}, {address});
    d.kernel().serial = true;
  } else {
    d.fail(fmt::format("the virtual GPU does not know the function {}, which this file only declares", name));
  }
}

}  // namespace

void add_call_operations(OperationTable& table) { table.add("call", decode_call); }

}  // namespace flash_ladder::emulator
