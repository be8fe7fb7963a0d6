// cvt, rounded to nearest even or to an integer. PTX ISA, "Data Movement and Conversion Instructions: cvt".

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

constexpr InstructionClass kConvert = InstructionClass::convert;

// An integer type of the instruction, and how a register holds it: 8-bit values are kept in 16-bit registers.
template <typename T, typename Register_>
struct Integer {
  using Value = T;
  using Register = Register_;
  static constexpr bool kSigned = std::is_signed_v<T>;
  static constexpr T kMin = kSigned ? static_cast<T>(T{1} << (8 * sizeof(T) - 1)) : T{0};
  static constexpr T kMax = static_cast<T>(~kMin);
};
// clang-format off
struct U8 : Integer<std::uint8_t, u16> { static constexpr char name[] = "u8"; };
struct S8 : Integer<std::int8_t, s16> { static constexpr char name[] = "s8"; };
struct U16 : Integer<u16, u16> { static constexpr char name[] = "u16"; };
struct S16 : Integer<s16, s16> { static constexpr char name[] = "s16"; };
struct U32 : Integer<u32, u32> { static constexpr char name[] = "u32"; };
struct S32 : Integer<s32, s32> { static constexpr char name[] = "s32"; };
struct U64 : Integer<u64, u64> { static constexpr char name[] = "u64"; };
struct S64 : Integer<s64, s64> { static constexpr char name[] = "s64"; };
// clang-format on

template <typename D, typename S>
typename D::Value clamp_integer(typename S::Value x) {
  using T = typename D::Value;
  if constexpr (S::kSigned && !D::kSigned) {
    if (x < 0) return 0;
    if (static_cast<u64>(x) > static_cast<u64>(D::kMax)) return D::kMax;
  } else if constexpr (!S::kSigned) {
    if (static_cast<u64>(x) > static_cast<u64>(D::kMax)) return D::kMax;
  } else {
    if (static_cast<s64>(x) > static_cast<s64>(D::kMax)) return D::kMax;
    if (static_cast<s64>(x) < static_cast<s64>(D::kMin)) return D::kMin;
  }
  return static_cast<T>(x);
}

template <typename D, typename S>
void add_integer_to_integer(LaneTable& table) {
  const Opcode types(Opcode(D::name, "."), S::name);
  using In = typename S::Register;
  using Out = typename D::Register;
  add(table, Opcode("cvt.", types.text).text, kConvert,
      [](In x) -> Out { return static_cast<typename D::Value>(static_cast<typename S::Value>(x)); });
  // .sat only if a value can be out of range.
  constexpr bool kMaxFits = static_cast<u64>(S::kMax) <= static_cast<u64>(D::kMax);
  constexpr bool kMinFits = !S::kSigned || (D::kSigned && sizeof(typename S::Value) <= sizeof(typename D::Value));
  if constexpr (!kMaxFits || !kMinFits) {
    add(table, Opcode("cvt.sat.", types.text).text, kConvert,
        [](In x) -> Out { return clamp_integer<D, S>(static_cast<typename S::Value>(x)); });
  }
}

template <typename D, typename... S>
void add_integers_to(LaneTable& table) {
  (add_integer_to_integer<D, S>(table), ...);
}

// The type in which a conversion from a 16-bit format computes.
inline float value_of(f16 x) { return to_float(x); }
inline float value_of(bf16 x) { return to_float(x); }
inline float value_of(float x) { return x; }
inline double value_of(double x) { return x; }

struct Nearest {
  static constexpr char name[] = "rni";
  static float round(float x) { return __builtin_rintf(x); }
  static double round(double x) { return __builtin_rint(x); }
};
struct Zero {
  static constexpr char name[] = "rzi";
  static float round(float x) { return __builtin_truncf(x); }
  static double round(double x) { return __builtin_trunc(x); }
};
struct Down {
  static constexpr char name[] = "rmi";
  static float round(float x) { return __builtin_floorf(x); }
  static double round(double x) { return __builtin_floor(x); }
};
struct Up {
  static constexpr char name[] = "rpi";
  static float round(float x) { return __builtin_ceilf(x); }
  static double round(double x) { return __builtin_ceil(x); }
};

// Out-of-range values are clamped, with or without .sat. According to the ISA, NaN becomes 0; if a 64-bit type is
// involved, GPUs produce 80…0 (seen on an H200).
template <typename D, bool wide, typename F>
typename D::Value float_to_integer(F x) {
  using T = typename D::Value;
  // The bounds as floats: -min is exact, and max + 1 too.
  constexpr F kLow = static_cast<F>(D::kMin);
  constexpr F kHigh = static_cast<F>(static_cast<double>(D::kMax / 2 + 1) * 2.0);
  if (x != x) return wide ? static_cast<T>(T{1} << (8 * sizeof(T) - 1)) : T{0};
  if (x < kLow) return D::kMin;
  if (x >= kHigh) return D::kMax;
  return static_cast<T>(x);
}

template <typename D, typename F, typename R>
void add_float_to_integer(LaneTable& table) {
  const Opcode before(Opcode("cvt.", R::name), std::is_same_v<F, float> ? "" : "[.sat].");
  const Opcode types(Opcode(D::name, "."), Name<F>::text);
  using Out = typename D::Register;
  constexpr bool kWide = sizeof(typename D::Value) == 8 || sizeof(F) == 8;
  if constexpr (std::is_same_v<F, float>) {
    add(table, Opcode(Opcode(before, "[.sat]."), types.text).text, kConvert,
        [](F x) -> Out { return float_to_integer<D, kWide>(R::round(x)); });
    add(table, Opcode(Opcode(before, ".ftz[.sat]."), types.text).text, kConvert,
        [](F x) -> Out { return float_to_integer<D, kWide>(R::round(flush(x))); });
  } else {
    add(table, Opcode(before, types.text).text, kConvert,
        [](F x) -> Out { return float_to_integer<D, kWide>(R::round(value_of(x))); });
  }
}

template <typename D, typename F>
void add_float_to_integers(LaneTable& table) {
  add_float_to_integer<D, F, Nearest>(table);
  add_float_to_integer<D, F, Zero>(table);
  add_float_to_integer<D, F, Down>(table);
  add_float_to_integer<D, F, Up>(table);
}

template <typename S>
void add_integer_to_floats(LaneTable& table) {
  using In = typename S::Register;
  using Value = typename S::Value;
  add(table, Opcode("cvt.rn.f32.", S::name).text, kConvert,
      [](In x) { return static_cast<float>(static_cast<Value>(x)); });
  add(table, Opcode("cvt.rn.f64.", S::name).text, kConvert,
      [](In x) { return static_cast<double>(static_cast<Value>(x)); });
  // 64-bit integers that do not fit in a double are far beyond the largest half, so their rounding does not matter.
  add(table, Opcode("cvt.rn.f16.", S::name).text, kConvert,
      [](In x) { return to_f16(to_float_round_to_odd(static_cast<double>(static_cast<Value>(x)))); });
}

template <typename R>
void add_round_to_integral(LaneTable& table) {
  const Opcode cvt("cvt.", R::name);
  const auto name = [&](const char* types) { return Opcode(cvt, types); };
  add(table, name(".f32.f32").text, kConvert, [](float x) { return canonical(R::round(x)); });
  add(table, name(".ftz.f32.f32").text, kConvert, [](float x) { return canonical(R::round(flush(x))); });
  add(table, name(".sat.f32.f32").text, kConvert, [](float x) { return saturate(R::round(x)); });
  add(table, name(".ftz.sat.f32.f32").text, kConvert, [](float x) { return saturate(R::round(flush(x))); });
  add(table, name(".f64.f64").text, kConvert, [](double x) { return R::round(x); });
  add(table, name(".f16.f16").text, kConvert, [](f16 x) { return to_f16(R::round(to_float(x))); });
}

// 8-bit floating point, as bits. PTX ISA, "Alternate Floating-Point Data Formats".
template <u32 kMantissaBits_, u32 kBias_, u32 kLargest_>
struct Float8 {
  static constexpr u32 kMantissaBits = kMantissaBits_, kBias = kBias_;
  static constexpr u32 kLargest = kLargest_;  // 448, 57,344: larger values become this one, .satfinite
};
struct e4m3 : Float8<3, 7, 0x7e> {
  static constexpr char pair[] = "e4m3x2";
};
struct e5m2 : Float8<2, 15, 0x7b> {
  static constexpr char pair[] = "e5m2x2";
};
// Two of them; not a u16, because no instruction treats them as a number.
struct Pair8 {
  u16 bits;
};

template <typename To>
u32 to_float8(float x) {
  constexpr u32 kShift = 23 - To::kMantissaBits, kRebias = (127 - To::kBias) << 23;
  // A float whose last bit has the value of the smallest denormal of To: adding it makes the addition round at the
  // right place.
  constexpr u32 kRounder = (127 + 23 + 1 - To::kBias - To::kMantissaBits) << 23;
  const u32 magnitude = bits_of(x) & 0x7fffffff, sign = (bits_of(x) >> 24) & 0x80;
  const u32 normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1)) >> kShift;
  const u32 denormal = bits_of(float_of(magnitude) + float_of(kRounder)) - kRounder;
  u32 bits = magnitude < kRebias + (1u << 23) ? denormal : normal;
  bits = magnitude >= 0x47800000 || bits > To::kLargest ? To::kLargest : bits;  // 2^16 and above exceed both
  return magnitude > 0x7f800000 ? 0x7f : bits | sign;
}
inline float non_negative(float x) { return x < 0 || bits_of(x) == 0x80000000 ? 0 : x; }  // .relu; keeps NaN

// The first source goes into the upper half.
template <typename To>
void add_float_to_float8(LaneTable& table) {
  const auto name = [](const char* before, const char* from) {
    return Opcode(Opcode(Opcode("cvt.rn.satfinite", before), To::pair), from);
  };
  add(table, name(".", ".f32").text, kConvert,
      [](float a, float b) { return Pair8{static_cast<u16>(to_float8<To>(b) | to_float8<To>(a) << 8)}; });
  add(table, name(".relu.", ".f32").text, kConvert, [](float a, float b) {
    return Pair8{static_cast<u16>(to_float8<To>(non_negative(b)) | to_float8<To>(non_negative(a)) << 8)};
  });
}

// The one of two numbers that is in the lowest 8 bits. e4m3 has no infinity, and one NaN of each sign.
template <typename From>
f16 from_float8(u32 bits) {
  const u32 magnitude = bits & 0x7f, sign = (bits & 0x80) << 8;
  if (magnitude > (From::kBias == 15 ? 0x7c : From::kLargest)) return {0x7fff};
  // The bits as a half have the exponent that is too low by the difference of the biases; a product rounds nothing.
  const float value = to_float(f16{static_cast<u16>(magnitude << (10 - From::kMantissaBits))});
  return f16{static_cast<u16>(to_f16(value * static_cast<float>(1 << (15 - From::kBias))).bits | sign)};
}

template <typename From>
void add_float8_to_f16(LaneTable& table) {
  add(table, Opcode("cvt.rn.f16x2.", From::pair).text, kConvert,
      [](Pair8 x) { return f16x2{from_float8<From>(x.bits & 0xff), from_float8<From>(x.bits >> 8)}; });
}

// Truncates a float to 16 bits: .rz.
inline bf16 to_bf16_truncated(float x) { return x != x ? bf16{0x7fff} : bf16{static_cast<u16>(bits_of(x) >> 16)}; }
inline f16 to_f16_truncated(float x) {
  const u32 sign = (bits_of(x) >> 16) & 0x8000;
  const u32 magnitude = bits_of(x) & 0x7fffffff;
  u32 half = (magnitude - 0x38000000) >> 13;
  if (magnitude < 0x38800000) half = static_cast<u32>(float_of(magnitude) * 16777216.0f);  // in units of 2^-24
  if (magnitude >= 0x47800000) half = 0x7bff;
  if (magnitude == 0x7f800000) half = 0x7c00;
  return magnitude > 0x7f800000 ? f16{0x7fff} : f16{static_cast<u16>(half | sign)};
}
// .relu: negative values become +0.
inline f16 relu(f16 x) { return x.bits & 0x8000 ? f16{0} : x; }
inline bf16 relu(bf16 x) { return x.bits & 0x8000 ? bf16{0} : x; }

void add_float_to_float(LaneTable& table) {
  add(table, "cvt[.ftz].f32.f16", kConvert, [](f16 x) { return canonical(to_float(x)); });
  add(table, "cvt.sat.f32.f16", kConvert, [](f16 x) { return saturate(to_float(x)); });
  add(table, "cvt.f32.bf16", kConvert, [](bf16 x) { return to_float(x); });
  add(table, "cvt.f64.f16", kConvert, [](f16 x) { return static_cast<double>(to_float(x)); });
  add(table, "cvt.f64.f32", kConvert, [](float x) { return static_cast<double>(x); });
  add(table, "cvt.ftz.f64.f32", kConvert, [](float x) { return static_cast<double>(flush(x)); });
  add(table, "cvt.rn.f32.f64", kConvert, [](double x) { return static_cast<float>(x); });  // keeps a NaN's sign
  add(table, "cvt.rn.ftz.f32.f64", kConvert, [](double x) { return flush(static_cast<float>(x)); });
  add(table, "cvt.rn.sat.f32.f64", kConvert, [](double x) { return saturate(static_cast<float>(x)); });
  add(table, "cvt.rn.f16.f64", kConvert, [](double x) {
    // A NaN keeps its sign and the upper part of its payload.
    return x != x ? f16{static_cast<u16>((bits_of(x) >> 48 & 0x8000) | 0x7e00 | (bits_of(x) >> 42 & 0x3ff))}
                  : to_f16(to_float_round_to_odd(x));
  });
  add(table, "cvt.sat.f32.f32", kConvert, [](float x) { return saturate(x); });
  add(table, "cvt.ftz.f32.f32", kConvert, [](float x) { return canonical(flush(x)); });
  add(table, "cvt.ftz.sat.f32.f32", kConvert, [](float x) { return saturate(flush(x)); });
  add(table, "cvt.f32.f32", kConvert, [](float x) { return x; });
  add(table, "cvt.sat.f64.f64", kConvert, [](double x) { return saturate(x); });
  add(table, "cvt.sat.f16.f16", kConvert, [](f16 x) { return to_f16(saturate(to_float(x))); });

  add(table, "cvt.rn[.ftz].f16.f32", kConvert, [](float x) { return to_f16(x); });
  add(table, "cvt.rn[.ftz].sat.f16.f32", kConvert, [](float x) { return to_f16(saturate(x)); });
  add(table, "cvt.rn.relu.f16.f32", kConvert, [](float x) { return relu(to_f16(x)); });
  add(table, "cvt.rz[.ftz].f16.f32", kConvert, [](float x) { return to_f16_truncated(x); });
  add(table, "cvt.rz.relu.f16.f32", kConvert, [](float x) { return relu(to_f16_truncated(x)); });
  add(table, "cvt.rn.bf16.f32", kConvert, [](float x) { return to_bf16(x); });
  add(table, "cvt.rn.relu.bf16.f32", kConvert, [](float x) { return relu(to_bf16(x)); });
  add(table, "cvt.rz.bf16.f32", kConvert, [](float x) { return to_bf16_truncated(x); });
  add(table, "cvt.rz.relu.bf16.f32", kConvert, [](float x) { return relu(to_bf16_truncated(x)); });

  // The first source goes into the upper half.
  add(table, "cvt.rn.f16x2.f32", kConvert, [](float a, float b) { return f16x2{to_f16(b), to_f16(a)}; });
  add(table, "cvt.rn.relu.f16x2.f32", kConvert,
      [](float a, float b) { return f16x2{relu(to_f16(b)), relu(to_f16(a))}; });
  add(table, "cvt.rz.f16x2.f32", kConvert,
      [](float a, float b) { return f16x2{to_f16_truncated(b), to_f16_truncated(a)}; });
  add(table, "cvt.rz.relu.f16x2.f32", kConvert,
      [](float a, float b) { return f16x2{relu(to_f16_truncated(b)), relu(to_f16_truncated(a))}; });
  add(table, "cvt.rn.bf16x2.f32", kConvert, [](float a, float b) { return bf16x2{to_bf16(b), to_bf16(a)}; });
  add(table, "cvt.rn.relu.bf16x2.f32", kConvert,
      [](float a, float b) { return bf16x2{relu(to_bf16(b)), relu(to_bf16(a))}; });
  add(table, "cvt.rz.bf16x2.f32", kConvert,
      [](float a, float b) { return bf16x2{to_bf16_truncated(b), to_bf16_truncated(a)}; });
  add(table, "cvt.rz.relu.bf16x2.f32", kConvert,
      [](float a, float b) { return bf16x2{relu(to_bf16_truncated(b)), relu(to_bf16_truncated(a))}; });
  add_float_to_float8<e4m3>(table);
  add_float_to_float8<e5m2>(table);
  add_float8_to_f16<e4m3>(table);
  add_float8_to_f16<e5m2>(table);
  // To nearest, ties away from zero; the 13 low bits of the result are zero.
  add(table, "cvt.rna.tf32.f32", kConvert, [](float x) {
    const bool special = (bits_of(x) & 0x7f800000) == 0x7f800000;
    return (bits_of(x) + (special ? 0 : 0x1000)) & ~u32{0x1fff};
  });
}

}  // namespace

void add_convert_operations(LaneTable& table) {
  add_integers_to<U8, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<S8, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<U16, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<S16, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<U32, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<S32, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<U64, U8, S8, U16, S16, U32, S32, U64, S64>(table);
  add_integers_to<S64, U8, S8, U16, S16, U32, S32, U64, S64>(table);

  add_integer_to_floats<U8>(table);
  add_integer_to_floats<S8>(table);
  add_integer_to_floats<U16>(table);
  add_integer_to_floats<S16>(table);
  add_integer_to_floats<U32>(table);
  add_integer_to_floats<S32>(table);
  add_integer_to_floats<U64>(table);
  add_integer_to_floats<S64>(table);

  add_float_to_integers<U8, float>(table);
  add_float_to_integers<S8, float>(table);
  add_float_to_integers<U16, float>(table);
  add_float_to_integers<S16, float>(table);
  add_float_to_integers<U32, float>(table);
  add_float_to_integers<S32, float>(table);
  add_float_to_integers<U64, float>(table);
  add_float_to_integers<S64, float>(table);
  add_float_to_integers<U32, double>(table);
  add_float_to_integers<S32, double>(table);
  add_float_to_integers<U64, double>(table);
  add_float_to_integers<S64, double>(table);
  add_float_to_integers<U16, f16>(table);
  add_float_to_integers<S16, f16>(table);
  add_float_to_integers<U32, f16>(table);
  add_float_to_integers<S32, f16>(table);
  add_float_to_integers<U64, f16>(table);
  add_float_to_integers<S64, f16>(table);

  add_round_to_integral<Nearest>(table);
  add_round_to_integral<Zero>(table);
  add_round_to_integral<Down>(table);
  add_round_to_integral<Up>(table);
  add_float_to_float(table);
}

}  // namespace flash_ladder::emulator
