// f32 and f64 arithmetic, rounded to nearest even. PTX ISA, "Floating Point Instructions".

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

constexpr InstructionClass kFloat = InstructionClass::float32;
constexpr InstructionClass kSpecial = InstructionClass::special;

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <bool ftz, bool sat, typename T>
T finished(T x) {
  if constexpr (sat) return saturate(flushed<ftz>(x));
  return canonical(flushed<ftz>(x));
}

// add, sub, mul, fma with and without .ftz and .sat.
template <typename T, bool ftz, bool sat>
void add_arithmetic(LaneTable& table, InstructionClass instruction_class) {
  const Opcode suffix(Opcode(ftz ? ".ftz" : "", sat ? ".sat." : "."), Name<T>::text);
  const auto name = [&](const char* mnemonic) { return Opcode(mnemonic, suffix.text); };
  add(table, name("add[.rn]").text, instruction_class,
      [](T a, T b) { return finished<ftz, sat>(flushed<ftz>(a) + flushed<ftz>(b)); });
  add(table, name("sub[.rn]").text, instruction_class,
      [](T a, T b) { return finished<ftz, sat>(flushed<ftz>(a) - flushed<ftz>(b)); });
  add(table, name("mul[.rn]").text, instruction_class,
      [](T a, T b) { return finished<ftz, sat>(flushed<ftz>(a) * flushed<ftz>(b)); });
  for (const char* mnemonic : {"fma.rn", "mad.rn"}) {
    add(table, name(mnemonic).text, instruction_class,
        [](T a, T b, T c) { return finished<ftz, sat>(fused(flushed<ftz>(a), flushed<ftz>(b), flushed<ftz>(c))); });
  }
}

template <bool ftz>
void add_sign_operations(LaneTable& table) {
  const char* suffix = ftz ? ".ftz.f32" : ".f32";
  add(table, Opcode("neg", suffix).text, kFloat,
      [](float a) { return canonical(float_of(bits_of(flushed<ftz>(a)) ^ 0x80000000)); });
  add(table, Opcode("abs", suffix).text, kFloat,
      [](float a) { return canonical(float_of(bits_of(flushed<ftz>(a)) & 0x7fffffff)); });
}

template <bool ftz>
void add_min_max(LaneTable& table) {
  const char* suffix = ftz ? ".ftz" : "";
  const auto name = [&](const char* mnemonic, const char* nan) {
    return Opcode(Opcode(Opcode(mnemonic, suffix), nan), ".f32");
  };
  add(table, name("min", "").text, kFloat,
      [](float a, float b) { return canonical(minimum(flushed<ftz>(a), flushed<ftz>(b))); });
  add(table, name("max", "").text, kFloat,
      [](float a, float b) { return canonical(maximum(flushed<ftz>(a), flushed<ftz>(b))); });
  // .NaN: the result is NaN if either operand is.
  add(table, name("min", ".NaN").text, kFloat,
      [](float a, float b) { return a != a || b != b ? float_of(kNan) : minimum(flushed<ftz>(a), flushed<ftz>(b)); });
  add(table, name("max", ".NaN").text, kFloat,
      [](float a, float b) { return a != a || b != b ? float_of(kNan) : maximum(flushed<ftz>(a), flushed<ftz>(b)); });
  // .xorsign.abs: compares the magnitudes; the result has the sign of the product.
  add(table, name("min", ".xorsign.abs").text, kFloat, [](float a, float b) {
    const u32 sign = (bits_of(a) ^ bits_of(b)) & 0x80000000;
    const float least =
        minimum(float_of(bits_of(flushed<ftz>(a)) & 0x7fffffff), float_of(bits_of(flushed<ftz>(b)) & 0x7fffffff));
    return least != least ? float_of(kNan) : float_of(bits_of(least) | sign);
  });
  add(table, name("max", ".xorsign.abs").text, kFloat, [](float a, float b) {
    const u32 sign = (bits_of(a) ^ bits_of(b)) & 0x80000000;
    const float most =
        maximum(float_of(bits_of(flushed<ftz>(a)) & 0x7fffffff), float_of(bits_of(flushed<ftz>(b)) & 0x7fffffff));
    return most != most ? float_of(kNan) : float_of(bits_of(most) | sign);
  });
}

// PTX ISA, "div": .approx is a · (1/b), which is 0 if 1/b is a denormal that is flushed.
inline float divide_approx(float a, float b) {
  const bool huge = bits_of(b) << 1 > u32{0x7e800000} << 1 && bits_of(b) << 1 < u32{0x7f800000}
                                                                                    << 1;  // 2^126 < |b| < inf
  const float scale = huge ? 0.0f : 1.0f;
  return canonical((a / b) * (huge && a - a != 0 ? float_of(kNan) : scale));
}

template <bool ftz>
void add_division(LaneTable& table) {
  const char* suffix = ftz ? ".ftz.f32" : ".f32";
  const auto name = [&](const char* mnemonic) { return Opcode(mnemonic, suffix); };
  const auto quotient = [](float a, float b) { return canonical(flushed<ftz>(flushed<ftz>(a) / flushed<ftz>(b))); };
  const auto reciprocal = [](float a) { return canonical(flushed<ftz>(1.0f / flushed<ftz>(a))); };
  const auto root = [](float a) { return canonical(flushed<ftz>(__builtin_sqrtf(flushed<ftz>(a)))); };
  add(table, name("div.rn").text, kSpecial, quotient);
  add(table, name("div.full").text, kSpecial, quotient);
  add(table, name("div.approx").text, kSpecial,
      [](float a, float b) { return flushed<ftz>(divide_approx(flushed<ftz>(a), flushed<ftz>(b))); });
  add(table, name("rcp.rn").text, kSpecial, reciprocal);
  add(table, name("rcp.approx").text, kSpecial, reciprocal);
  add(table, name("sqrt.rn").text, kSpecial, root);
  add(table, name("sqrt.approx").text, kSpecial, root);
  add(table, name("rsqrt.approx").text, kSpecial, [](float a) {
    return canonical(static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(flushed<ftz>(a)))));
  });
}

// 2^x. With x = n + f, where n is an integer and f is in [-0.5, 0.5], 2^f is a polynomial (a Taylor series in double,
// so that only the final rounding contributes an error), and n goes into the exponent.
template <bool ftz>
float exp2_approx(float x) {
  x = flushed<ftz>(x);
  // Beyond these bounds every result is infinite or 0; the clamp also keeps n in range. A NaN passes through to the end.
  const float clamped = x > 130.0f ? 130.0f : x < -155.0f ? -155.0f : x != x ? 0.0f : x;
  const float shifted = clamped + 12582912.0f;  // 1.5 · 2^23: the integer part is rounded into the low bits
  const s32 n = static_cast<s32>(bits_of(shifted)) - 0x4b400000;
  const double f = static_cast<double>(clamped - (shifted - 12582912.0f)) * 0.693147180559945309;
  double p = 1.0 / 40320;
  p = p * f + 1.0 / 5040;
  p = p * f + 1.0 / 720;
  p = p * f + 1.0 / 120;
  p = p * f + 1.0 / 24;
  p = p * f + 1.0 / 6;
  p = p * f + 0.5;
  p = p * f + 1.0;
  p = p * f + 1.0;
  const double scale = double_of(static_cast<u64>(static_cast<s64>(n) + 1023) << 52);
  const float result = static_cast<float>(p * scale);
  return x != x ? float_of(kNan) : flushed<ftz>(result);
}

}  // namespace

void add_float_operations(LaneTable& table) {
  add_arithmetic<float, false, false>(table, kFloat);
  add_arithmetic<float, false, true>(table, kFloat);
  add_arithmetic<float, true, false>(table, kFloat);
  add_arithmetic<float, true, true>(table, kFloat);
  add_arithmetic<double, false, false>(table, InstructionClass::float64);
  add_sign_operations<false>(table);
  add_sign_operations<true>(table);
  add_min_max<false>(table);
  add_min_max<true>(table);
  add_division<false>(table);
  add_division<true>(table);
  add(table, "ex2.approx.f32", kSpecial, [](float a) { return exp2_approx<false>(a); });
  add(table, "ex2.approx.ftz.f32", kSpecial, [](float a) { return exp2_approx<true>(a); });
  add(table, "copysign.f32", kFloat,
      [](float a, float b) { return float_of((bits_of(b) & 0x7fffffff) | (bits_of(a) & 0x80000000)); });

  constexpr InstructionClass kDouble = InstructionClass::float64;
  add(table, "neg.f64", kDouble, [](double a) { return -a; });
  add(table, "abs.f64", kDouble, [](double a) { return double_of(bits_of(a) & 0x7fffffffffffffff); });
  add(table, "copysign.f64", kDouble, [](double a, double b) {
    return double_of((bits_of(b) & 0x7fffffffffffffff) | (bits_of(a) & 0x8000000000000000));
  });
  add(table, "min.f64", kDouble, [](double a, double b) { return minimum(a, b); });
  add(table, "max.f64", kDouble, [](double a, double b) { return maximum(a, b); });
  add(table, "div.rn.f64", kSpecial, [](double a, double b) { return a / b; });
  add(table, "rcp.rn.f64", kSpecial, [](double a) { return 1.0 / a; });
  add(table, "rcp.approx.ftz.f64", kSpecial, [](double a) {
    // The result keeps only the upper 32 bits; denormals are flushed (PTX ISA, "rcp.approx.ftz.f64").
    const auto ftz = [](double x) {
      return double_of((bits_of(x) & 0x7ff0000000000000) == 0 ? bits_of(x) >> 63 << 63 : bits_of(x));
    };
    return ftz(double_of(bits_of(1.0 / ftz(double_of(bits_of(a) >> 32 << 32))) >> 32 << 32));
  });
  add(table, "sqrt.rn.f64", kSpecial, [](double a) { return __builtin_sqrt(a); });
  add(table, "rsqrt.approx.f64", kSpecial, [](double a) { return 1.0 / __builtin_sqrt(a); });
  add(table, "rsqrt.approx.ftz.f64", kSpecial, [](double a) { return 1.0 / __builtin_sqrt(flush(a)); });

  // testp
  const InstructionClass compare = InstructionClass::compare;
  add(table, "testp.finite.f32", compare, [](float a) { return (bits_of(a) & 0x7f800000) != 0x7f800000; });
  add(table, "testp.infinite.f32", compare, [](float a) { return (bits_of(a) & 0x7fffffff) == 0x7f800000; });
  add(table, "testp.number.f32", compare, [](float a) { return a == a; });
  add(table, "testp.notanumber.f32", compare, [](float a) { return a != a; });
  // PTX ISA, "testp": zeros count as normal.
  add(table, "testp.normal.f32", compare, [](float a) {
    return (bits_of(a) & 0x7f800000) != 0x7f800000 &&
           ((bits_of(a) & 0x7f800000) != 0 || (bits_of(a) & 0x7fffffff) == 0);
  });
  add(table, "testp.subnormal.f32", compare,
      [](float a) { return (bits_of(a) & 0x7f800000) == 0 && (bits_of(a) & 0x7fffffff) != 0; });
}

}  // namespace flash_ladder::emulator
