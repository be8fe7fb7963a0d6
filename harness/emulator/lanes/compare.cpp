// setp and set. PTX ISA, "Comparison and Selection Instructions". The decoder constructs setp's boolean operators and
// second result from these and the predicate logic.

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

// clang-format off
struct Eq { static constexpr char name[] = "eq"; template <typename T> static bool test(T a, T b) { return a == b; } };
struct Ne { static constexpr char name[] = "ne"; template <typename T> static bool test(T a, T b) { return a < b || a > b; } };
struct Lt { static constexpr char name[] = "lt"; template <typename T> static bool test(T a, T b) { return a < b; } };
struct Le { static constexpr char name[] = "le"; template <typename T> static bool test(T a, T b) { return a <= b; } };
struct Gt { static constexpr char name[] = "gt"; template <typename T> static bool test(T a, T b) { return a > b; } };
struct Ge { static constexpr char name[] = "ge"; template <typename T> static bool test(T a, T b) { return a >= b; } };
struct Lo : Lt { static constexpr char name[] = "lo"; };
struct Ls : Le { static constexpr char name[] = "ls"; };
struct Hi : Gt { static constexpr char name[] = "hi"; };
struct Hs : Ge { static constexpr char name[] = "hs"; };
// Unordered: true if either is NaN.
struct Equ { static constexpr char name[] = "equ"; template <typename T> static bool test(T a, T b) { return !(a < b || a > b); } };
struct Neu { static constexpr char name[] = "neu"; template <typename T> static bool test(T a, T b) { return a != b; } };
struct Ltu { static constexpr char name[] = "ltu"; template <typename T> static bool test(T a, T b) { return !(a >= b); } };
struct Leu { static constexpr char name[] = "leu"; template <typename T> static bool test(T a, T b) { return !(a > b); } };
struct Gtu { static constexpr char name[] = "gtu"; template <typename T> static bool test(T a, T b) { return !(a <= b); } };
struct Geu { static constexpr char name[] = "geu"; template <typename T> static bool test(T a, T b) { return !(a < b); } };
struct Num { static constexpr char name[] = "num"; template <typename T> static bool test(T a, T b) { return a == a && b == b; } };
struct Nan { static constexpr char name[] = "nan"; template <typename T> static bool test(T a, T b) { return a != a || b != b; } };
// clang-format on

// The compared values: integers and doubles as they are, all others as floats.
template <bool ftz, typename T>
auto value_of(T x) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
    return x;
  } else {
    return flushed<ftz>(to_float(x));
  }
}

template <typename C, bool ftz, typename T>
void add_comparison(LaneTable& table, const char* type) {
  const Opcode compare(Opcode(".", C::name), ftz ? ".ftz." : ".");
  add(table, Opcode(Opcode("setp", compare.text), type).text, InstructionClass::compare,
      [](T a, T b) { return C::test(value_of<ftz>(a), value_of<ftz>(b)); });
  if constexpr (sizeof(T) == 4) {
    for (const char* result : {"u32.", "s32."}) {
      add(table, Opcode(Opcode(Opcode("set", compare.text), result), type).text, InstructionClass::compare,
          [](T a, T b) { return C::test(value_of<ftz>(a), value_of<ftz>(b)) ? 0xffffffffu : 0u; });
    }
    add(table, Opcode(Opcode(Opcode("set", compare.text), "f32."), type).text, InstructionClass::compare,
        [](T a, T b) { return C::test(value_of<ftz>(a), value_of<ftz>(b)) ? 1.0f : 0.0f; });
  }
}

template <bool ftz, typename T, typename... C>
void add_comparisons(LaneTable& table, const char* type = Name<T>::text) {
  (add_comparison<C, ftz, T>(table, type), ...);
}

// Two 16-bit numbers at a time. PTX ISA, "Half Precision Comparison Instructions: set".
template <typename C, typename T, typename Two>
void add_comparison_of_two(LaneTable& table) {
  const Opcode compare(Opcode("set.", C::name), ".");
  const auto add_with = [&](const char* result, auto of_both) {
    add(table, Opcode(Opcode(Opcode(compare.text, result), "."), Name<Two>::text).text, InstructionClass::compare,
        of_both);
  };
  for (const char* result : {"u32", "s32"}) {
    add_with(result, [](Two a, Two b) {
      return (C::test(value_of<false>(a.low), value_of<false>(b.low)) ? 0xffffu : 0u) |
             (C::test(value_of<false>(a.high), value_of<false>(b.high)) ? 0xffff0000u : 0u);
    });
  }
  add_with(Name<Two>::text, [](Two a, Two b) {
    return Two{from_float<T>(C::test(value_of<false>(a.low), value_of<false>(b.low)) ? 1.0f : 0.0f),
               from_float<T>(C::test(value_of<false>(a.high), value_of<false>(b.high)) ? 1.0f : 0.0f)};
  });
}

// The same section, one number at a time.
template <typename C, typename T>
void add_comparison_of_half(LaneTable& table) {
  const Opcode compare(Opcode("set.", C::name), ".");
  const auto add_with = [&](const char* result, [[maybe_unused]] auto value) {
    add(table, Opcode(Opcode(Opcode(compare.text, result), "."), Name<T>::text).text, InstructionClass::compare,
        [](T a, T b) { return decltype(value){}(C::test(value_of<false>(a), value_of<false>(b))); });
  };
  for (const char* result : {"u32", "s32"}) add_with(result, [](bool is) { return is ? 0xffffffffu : 0u; });
  for (const char* result : {"u16", "s16"}) add_with(result, [](bool is) -> u16 { return is ? 0xffff : 0; });
  add_with(Name<T>::text, [](bool is) { return from_float<T>(is ? 1.0f : 0.0f); });
}

template <typename T, typename Two, typename... C>
void add_set_of_halves(LaneTable& table) {
  (add_comparison_of_half<C, T>(table), ...);
  (add_comparison_of_two<C, T, Two>(table), ...);
}

template <typename T>
void add_signed(LaneTable& table) {
  add_comparisons<false, T, Eq, Ne, Lt, Le, Gt, Ge>(table);
}
template <typename T>
void add_unsigned(LaneTable& table) {
  add_comparisons<false, T, Eq, Ne, Lt, Le, Gt, Ge, Lo, Ls, Hi, Hs>(table);
}
template <typename T, bool ftz>
void add_float(LaneTable& table) {
  add_comparisons<ftz, T, Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan>(table);
}

}  // namespace

void add_compare_operations(LaneTable& table) {
  add_signed<s16>(table);
  add_signed<s32>(table);
  add_signed<s64>(table);
  add_unsigned<u16>(table);
  add_unsigned<u32>(table);
  add_unsigned<u64>(table);
  add_comparisons<false, u16, Eq, Ne>(table, "b16");
  add_comparisons<false, u32, Eq, Ne>(table, "b32");
  add_comparisons<false, u64, Eq, Ne>(table, "b64");
  add_float<float, false>(table);
  add_float<float, true>(table);
  add_float<double, false>(table);
  add_float<f16, false>(table);
  add_float<bf16, false>(table);
  add_set_of_halves<f16, f16x2, Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan>(table);
  add_set_of_halves<bf16, bf16x2, Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan>(table);
}

}  // namespace flash_ladder::emulator
