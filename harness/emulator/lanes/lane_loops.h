// Turns a lambda over the values of one lane into a LaneFunction. Everything here has internal linkage, because
// lanes/rounding.cpp is compiled with options that differ from the rest, and must not be linked to a function compiled
// without them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {
namespace {  // NOLINT(google-build-namespaces): see above

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

// 16-bit floating point, as bits.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct f16x2 {
  f16 low, high;
};
struct bf16x2 {
  bf16 low, high;
};

template <typename T>
constexpr Slot slot_for() {
  if constexpr (sizeof(T) == 2) return Slot::b16;
  if constexpr (sizeof(T) == 4) return Slot::b32;
  if constexpr (sizeof(T) == 8) return Slot::b64;
  return Slot::predicate;
}
template <>
constexpr Slot slot_for<bool>() {
  return Slot::predicate;
}

template <typename T>
struct Name;
#define EMULATOR_NAMED(type)              \
  template <>                             \
  struct Name<type> {                     \
    static constexpr char text[] = #type; \
  };
EMULATOR_NAMED(u16)
EMULATOR_NAMED(s16)
EMULATOR_NAMED(u32)
EMULATOR_NAMED(s32)
EMULATOR_NAMED(u64)
EMULATOR_NAMED(s64)
EMULATOR_NAMED(f16)
EMULATOR_NAMED(bf16)
EMULATOR_NAMED(f16x2)
EMULATOR_NAMED(bf16x2)
#undef EMULATOR_NAMED
template <>
struct Name<float> {
  static constexpr char text[] = "f32";
};
template <>
struct Name<double> {
  static constexpr char text[] = "f64";
};

// "add." + "s32", without std::string, whose functions must not be compiled here.
struct Opcode {
  char text[48];
  Opcode(const char* mnemonic, const char* type) {
    int length = 0;
    for (; *mnemonic != '\0'; ++mnemonic) text[length++] = *mnemonic;
    for (; *type != '\0'; ++type) text[length++] = *type;
    text[length] = '\0';
  }
  Opcode(const Opcode& before, const char* after) : Opcode(before.text, after) {}
};

// The lanes of one source.
template <typename T>
struct Source {
  const T* lanes;
  Source(const std::byte* registers, std::int32_t offset) : lanes(reinterpret_cast<const T*>(registers + offset)) {}
  T operator[](int lane) const { return lanes[lane]; }
};
template <>
struct Source<bool> {
  u32 bits;
  Source(const std::byte* registers, std::int32_t offset) : bits(*reinterpret_cast<const u32*>(registers + offset)) {}
  bool operator[](int lane) const { return (bits >> lane) & 1; }
};

// Copies the lanes in the mask.
template <typename T>
inline void blend(T* to, const T* from, u32 mask) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane) & 1) to[lane] = from[lane];
  }
}

template <typename F, typename R, typename... S>
struct Lanewise {
  template <int... I>
  static void loop(std::byte* registers, const std::int32_t* r, u32 mask, std::integer_sequence<int, I...>) {
    if constexpr (std::is_same_v<R, bool>) {
      u32 bits = 0;
      const auto body = [&](const auto&... source) {
#pragma GCC ivdep
        for (int lane = 0; lane < kWarpSize; ++lane) bits |= static_cast<u32>(F{}(source[lane]...)) << lane;
      };
      body(Source<S>(registers, r[1 + I])...);
      u32& to = *reinterpret_cast<u32*>(registers + r[0]);
      to = (to & ~mask) | (bits & mask);
    } else {
      R* to = reinterpret_cast<R*>(registers + r[0]);
      const auto body = [&](R* out, const auto&... source) {
#pragma GCC ivdep
        for (int lane = 0; lane < kWarpSize; ++lane) out[lane] = F{}(source[lane]...);
      };
      if (mask == kAllLanes) {
        body(to, Source<S>(registers, r[1 + I])...);
      } else {
        alignas(64) R result[kWarpSize];
        body(result, Source<S>(registers, r[1 + I])...);
        blend(to, result, mask);
      }
    }
  }
  static void run(std::byte* registers, const std::int32_t* r, u32 mask) {
    loop(registers, r, mask, std::make_integer_sequence<int, sizeof...(S)>());
  }
};

template <typename F, typename R, typename... S>
LaneOperation lane_operation(InstructionClass instruction_class, R (F::*)(S...) const) {
  return {.function = Lanewise<F, R, S...>::run,
          .instruction_class = instruction_class,
          .writes = 1,
          .sign_extend = std::is_signed_v<R> && std::is_integral_v<R>,
          .operands = 1 + sizeof...(S),
          .slots = {slot_for<R>(), slot_for<S>()...}};
}

// Adds an opcode whose result in a lane is f(sources in that lane). `f` must not capture anything.
template <typename F>
void add(LaneTable& table, const char* opcode, InstructionClass instruction_class, F) {
  table.add(opcode, lane_operation<F>(instruction_class, &F::operator()));
}

}  // namespace
}  // namespace flash_ladder::emulator
