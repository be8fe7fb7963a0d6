// f32 and f64 arithmetic with the directed roundings .rz, .rm, .rp. These are rare, so this sets the processor's
// rounding mode and computes lane by lane. Compiled with -frounding-math.

#include <cfenv>
#include <cmath>

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

class RoundingMode {
 public:
  explicit RoundingMode(int mode) : before_(std::fegetround()) { std::fesetround(mode); }
  ~RoundingMode() { std::fesetround(before_); }
  RoundingMode(const RoundingMode&) = delete;
  RoundingMode& operator=(const RoundingMode&) = delete;

 private:
  int before_;
};

// Each in a separate function that is never inlined, so that no arithmetic is moved across the change of mode.
template <typename T>
[[gnu::noinline]] T sum(T a, T b) {
  return a + b;
}
template <typename T>
[[gnu::noinline]] T difference(T a, T b) {
  return a - b;
}
template <typename T>
[[gnu::noinline]] T product(T a, T b) {
  return a * b;
}
template <typename T>
[[gnu::noinline]] T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <typename T>
[[gnu::noinline]] T quotient(T a, T b) {
  return a / b;
}
template <typename T>
[[gnu::noinline]] T reciprocal(T a) {
  return T{1} / a;
}
template <typename T>
[[gnu::noinline]] T root(T a) {
  return std::sqrt(a);
}
template <typename To, typename From>
[[gnu::noinline]] To converted(From a) {
  return static_cast<To>(a);
}

template <int mode, typename T, bool ftz, bool sat>
void add_arithmetic(LaneTable& table, const char* rounding, InstructionClass instruction_class) {
  const Opcode suffix(Opcode(Opcode(rounding, ftz ? ".ftz" : ""), sat ? ".sat." : "."), Name<T>::text);
  const auto name = [&](const char* mnemonic) { return Opcode(mnemonic, suffix.text); };
  add(table, name("add").text, instruction_class, [](T a, T b) {
    const RoundingMode rounding_mode(mode);
    const T result = flushed<ftz>(sum(flushed<ftz>(a), flushed<ftz>(b)));
    return sat ? saturate(result) : canonical(result);
  });
  add(table, name("sub").text, instruction_class, [](T a, T b) {
    const RoundingMode rounding_mode(mode);
    const T result = flushed<ftz>(difference(flushed<ftz>(a), flushed<ftz>(b)));
    return sat ? saturate(result) : canonical(result);
  });
  add(table, name("mul").text, instruction_class, [](T a, T b) {
    const RoundingMode rounding_mode(mode);
    const T result = flushed<ftz>(product(flushed<ftz>(a), flushed<ftz>(b)));
    return sat ? saturate(result) : canonical(result);
  });
  for (const char* mnemonic : {"fma", "mad"}) {
    add(table, name(mnemonic).text, instruction_class, [](T a, T b, T c) {
      const RoundingMode rounding_mode(mode);
      const T result = flushed<ftz>(fused(flushed<ftz>(a), flushed<ftz>(b), flushed<ftz>(c)));
      return sat ? saturate(result) : canonical(result);
    });
  }
}

template <int mode, typename T, bool ftz>
void add_division(LaneTable& table, const char* rounding) {
  const Opcode suffix(Opcode(rounding, ftz ? ".ftz." : "."), Name<T>::text);
  const auto name = [&](const char* mnemonic) { return Opcode(mnemonic, suffix.text); };
  add(table, name("div").text, InstructionClass::special, [](T a, T b) {
    const RoundingMode rounding_mode(mode);
    return canonical(flushed<ftz>(quotient(flushed<ftz>(a), flushed<ftz>(b))));
  });
  add(table, name("rcp").text, InstructionClass::special, [](T a) {
    const RoundingMode rounding_mode(mode);
    return canonical(flushed<ftz>(reciprocal(flushed<ftz>(a))));
  });
  add(table, name("sqrt").text, InstructionClass::special, [](T a) {
    const RoundingMode rounding_mode(mode);
    return canonical(flushed<ftz>(root(flushed<ftz>(a))));
  });
}

template <int mode, typename To, typename From>
void add_conversion(LaneTable& table, const char* rounding, const char* from) {
  const Opcode cvt(Opcode(Opcode("cvt", rounding), "."), Name<To>::text);
  add(table, Opcode(Opcode(cvt, "."), from).text, InstructionClass::convert, [](From a) {
    const RoundingMode rounding_mode(mode);
    return converted<To>(a);
  });
}

template <int mode>
void add_mode(LaneTable& table, const char* rounding) {
  add_arithmetic<mode, float, false, false>(table, rounding, InstructionClass::float32);
  add_arithmetic<mode, float, false, true>(table, rounding, InstructionClass::float32);
  add_arithmetic<mode, float, true, false>(table, rounding, InstructionClass::float32);
  add_arithmetic<mode, float, true, true>(table, rounding, InstructionClass::float32);
  add_arithmetic<mode, double, false, false>(table, rounding, InstructionClass::float64);
  add_division<mode, float, false>(table, rounding);
  add_division<mode, float, true>(table, rounding);
  add_division<mode, double, false>(table, rounding);
  add_conversion<mode, float, double>(table, rounding, "f64");
  add_conversion<mode, float, s32>(table, rounding, "s32");
  add_conversion<mode, float, u32>(table, rounding, "u32");
  add_conversion<mode, float, s64>(table, rounding, "s64");
  add_conversion<mode, float, u64>(table, rounding, "u64");
  add_conversion<mode, double, s64>(table, rounding, "s64");
  add_conversion<mode, double, u64>(table, rounding, "u64");
}

}  // namespace

void add_rounding_operations(LaneTable& table) {
  add_mode<FE_TOWARDZERO>(table, ".rz");
  add_mode<FE_DOWNWARD>(table, ".rm");
  add_mode<FE_UPWARD>(table, ".rp");
}

}  // namespace flash_ladder::emulator
