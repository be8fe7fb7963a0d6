// printf and assert of device code. CUDA Programming Guide, "Formatted Output": the arguments lie in local memory, 4 or 8 bytes
// each, aligned to their size; char and short have become int, float has become double.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

std::string CtaExecutor::string_at(Address address) const {
  const std::vector<Allocation>& all = context_.allocations;
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

void CtaExecutor::print(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Address format_address, arguments;
    std::memcpy(&format_address, warp.registers + instruction.r[0] + 8 * lane, 8);
    std::memcpy(&arguments, warp.registers + instruction.r[1] + 8 * lane, 8);
    const std::string text = string_at(format_address);
    std::uint64_t offset = arguments - kLocalWindow - kLocalBase;
    const std::uint64_t end = context_.kernel.local_bytes;
    const auto next = [&](std::size_t bytes) {
      std::uint64_t value = 0;
      offset = (offset + bytes - 1) / bytes * bytes;
      if (offset < end && end - offset >= bytes)
        std::memcpy(&value, local_address(warp, lane, offset + kLocalBase), bytes);
      offset += bytes;
      return value;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        output_ += text[i];
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
        output_ += piece;
      };
      switch (conversion) {
        case '%':
          output_ += '%';
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
          const std::string argument = string_at(next(8));
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
          output_ += format + conversion;
          break;
      }
    }
  }
}

void CtaExecutor::trap(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const int lane = std::countr_zero(mask);
  if (instruction.operation) {
    Address message;
    std::memcpy(&message, warp.registers + instruction.r[0] + 8 * lane, 8);
    find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
         fmt::format("the assertion `{}` failed", string_at(message)));
  } else {
    find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt, "the kernel executed a trap");
  }
  ++warp.pc;
  end_lanes(warp, mask);
}

}  // namespace flash_ladder::emulator
