// Floating-point helpers for the lane loops: NaNs, denormals, 16-bit formats. Internal linkage, as in lane_loops.h;
// written so that loops over them vectorise.
#pragma once

#include "emulator/lanes/lane_loops.h"

namespace flash_ladder::emulator {
namespace {  // NOLINT(google-build-namespaces): see lane_loops.h

inline u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
inline u64 bits_of(double x) { return __builtin_bit_cast(u64, x); }
inline float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
inline double double_of(u64 bits) { return __builtin_bit_cast(double, bits); }

constexpr u32 kNan =
    0x7fffffff;  // the result of every single-precision instruction (PTX ISA, "Floating Point Instructions")

// Replaces any NaN by the canonical NaN.
inline float canonical(float x) { return float_of(x != x ? kNan : bits_of(x)); }
inline double canonical(double x) { return x; }

// .ftz: denormals become zero, with their sign.
inline float flush(float x) {
  const u32 bits = bits_of(x);
  return float_of((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}
inline double flush(double x) {
  const u64 bits = bits_of(x);
  return double_of((bits & 0x7ff0000000000000) == 0 ? bits >> 63 << 63 : bits);
}
template <bool ftz>
float flushed(float x) {
  return ftz ? flush(x) : x;
}
template <bool ftz>
double flushed(double x) {
  return x;
}

// .sat: clamped to [0, 1], NaN becomes +0.
inline float saturate(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline double saturate(double x) { return x > 0.0 ? (x < 1.0 ? x : 1.0) : 0.0; }

inline float to_float(f16 x) {
  const u32 magnitude = static_cast<u32>(x.bits & 0x7fff) << 13;
  const u32 sign = static_cast<u32>(x.bits & 0x8000) << 16;
  // Scaling by 2^112 moves the exponent from half's bias to float's, and is exact for denormals too.
  const u32 finite = bits_of(float_of(magnitude) * float_of(0x77800000));
  const u32 special = magnitude | 0x7f800000;  // infinity, NaN
  return float_of((magnitude >= 0x0f800000 ? special : finite) | sign);
}
inline float to_float(bf16 x) { return float_of(static_cast<u32>(x.bits) << 16); }
inline float to_float(float x) { return x; }

// Round to nearest even.
inline f16 to_f16(float x) {
  const u32 bits = bits_of(x);
  const u32 sign = (bits >> 16) & 0x8000;
  const u32 magnitude = bits & 0x7fffffff;
  // Normal halves: rebias the exponent and round off the lowest 13 bits.
  const u32 normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Denormal ones: adding 0.5 makes the addition round at the right place.
  const u32 denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  u32 half = magnitude < 0x38800000 ? denormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7fff : half | sign;
  return {static_cast<u16>(half)};
}
inline bf16 to_bf16(float x) {
  const u32 bits = bits_of(x);
  const u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<u16>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded)};
}

template <typename T>
T from_float(float x);
template <>
inline f16 from_float<f16>(float x) {
  return to_f16(x);
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}
template <>
inline float from_float<float>(float x) {
  return x;
}

// a + b in double precision, rounded to odd: rounding the result again, to fewer bits, then equals a single rounding.
// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.)
inline double add_round_to_odd(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  const double error = (a - (sum - b_part)) + (b - b_part);
  u64 bits = bits_of(sum);
  const bool inexact = error != 0 && (bits & 0x7ff0000000000000) != 0x7ff0000000000000;
  if (inexact && (bits & 1) == 0) bits += ((error > 0) == (sum > 0)) ? 1 : u64(-1);
  return double_of(bits);
}

// float(double) rounded to odd, so that the subsequent rounding to 16 bits equals a single rounding.
inline float to_float_round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  u32 bits = bits_of(nearest);
  const double error = x - static_cast<double>(nearest);
  const bool inexact = error != 0 && (bits & 0x7f800000) != 0x7f800000;
  if (inexact && (bits & 1) == 0) bits += ((error > 0) == (x > 0)) ? 1 : u32(-1);
  return float_of(bits);
}

// Minimum and maximum as PTX defines them: if one operand is NaN the other is chosen, and -0 is less than +0.
template <typename T>
T minimum(T a, T b) {
  const bool a_less = a < b || (a == b && __builtin_signbit(a));
  return b != b ? a : a_less ? a : a != a ? b : b;
}
template <typename T>
T maximum(T a, T b) {
  const bool a_greater = a > b || (a == b && !__builtin_signbit(a));
  return b != b ? a : a_greater ? a : b;
}

}  // namespace
}  // namespace flash_ladder::emulator
