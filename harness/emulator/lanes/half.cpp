// f16, bf16 and packed arithmetic. PTX ISA, "Half Precision Floating-Point Instructions". For +, - and ·, an f16 result
// computed in f32 and rounded once more is correctly rounded, because f32 has more than twice as many bits; fma needs f64.

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

constexpr InstructionClass kHalf = InstructionClass::float16;

// .ftz for f16: denormals of f16 become zero.
template <bool ftz>
f16 flushed(f16 x) {
  return ftz && (x.bits & 0x7c00) == 0 ? f16{static_cast<u16>(x.bits & 0x8000)} : x;
}
template <bool ftz>
bf16 flushed(bf16 x) {
  return x;
}

template <typename T>
T fused(T a, T b, T c) {
  const double product = static_cast<double>(to_float(a)) * static_cast<double>(to_float(b));
  return from_float<T>(to_float_round_to_odd(add_round_to_odd(product, static_cast<double>(to_float(c)))));
}

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    return from_float<T>(to_float(a) + to_float(b));
  }
};
struct Sub {
  template <typename T>
  static T apply(T a, T b) {
    return from_float<T>(to_float(a) - to_float(b));
  }
};
struct Mul {
  template <typename T>
  static T apply(T a, T b) {
    return from_float<T>(to_float(a) * to_float(b));
  }
};
struct Fma {
  template <typename T>
  static T apply(T a, T b, T c) {
    return fused(a, b, c);
  }
};
struct FmaRelu {
  template <typename T>
  static T apply(T a, T b, T c) {
    const T d = fused(a, b, c);
    return d.bits & 0x8000 ? T{0} : d;  // the canonical NaN is positive
  }
};
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return from_float<T>(minimum(to_float(a), to_float(b)));
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return from_float<T>(maximum(to_float(a), to_float(b)));
  }
};
struct MinNan {
  template <typename T>
  static T apply(T a, T b) {
    const float x = to_float(a), y = to_float(b);
    return x != x || y != y ? T{0x7fff} : from_float<T>(minimum(x, y));
  }
};
struct MaxNan {
  template <typename T>
  static T apply(T a, T b) {
    const float x = to_float(a), y = to_float(b);
    return x != x || y != y ? T{0x7fff} : from_float<T>(maximum(x, y));
  }
};
struct Neg {
  template <typename T>
  static T apply(T a) {
    const float x = to_float(a);
    return x != x ? T{0x7fff} : T{static_cast<u16>(a.bits ^ 0x8000)};
  }
};
struct Abs {
  template <typename T>
  static T apply(T a) {
    const float x = to_float(a);
    return x != x ? T{0x7fff} : T{static_cast<u16>(a.bits & 0x7fff)};
  }
};

template <bool sat, typename T>
T saturated(T x) {
  if constexpr (sat) return from_float<T>(saturate(to_float(x)));
  return x;
}

template <typename Op, typename T, typename Packed, bool ftz, bool sat>
void add_both(LaneTable& table, const char* mnemonic) {
  const Opcode one(Opcode(mnemonic, "."), Name<T>::text), two(Opcode(mnemonic, "."), Name<Packed>::text);
  if constexpr (requires(T x) { Op::apply(x, x, x); }) {
    add(table, one.text, kHalf, [](T a, T b, T c) {
      return saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a), flushed<ftz>(b), flushed<ftz>(c))));
    });
    add(table, two.text, kHalf, [](Packed a, Packed b, Packed c) {
      return Packed{
          saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a.low), flushed<ftz>(b.low), flushed<ftz>(c.low)))),
          saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a.high), flushed<ftz>(b.high), flushed<ftz>(c.high))))};
    });
  } else if constexpr (requires(T x) { Op::apply(x, x); }) {
    add(table, one.text, kHalf,
        [](T a, T b) { return saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a), flushed<ftz>(b)))); });
    add(table, two.text, kHalf, [](Packed a, Packed b) {
      return Packed{saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a.low), flushed<ftz>(b.low)))),
                    saturated<sat>(flushed<ftz>(Op::apply(flushed<ftz>(a.high), flushed<ftz>(b.high))))};
    });
  } else {
    add(table, one.text, kHalf, [](T a) { return flushed<ftz>(Op::apply(a)); });
    add(table, two.text, kHalf,
        [](Packed a) { return Packed{flushed<ftz>(Op::apply(a.low)), flushed<ftz>(Op::apply(a.high))}; });
  }
}

}  // namespace

void add_half_operations(LaneTable& table) {
  add_both<Add, f16, f16x2, false, false>(table, "add[.rn]");
  add_both<Add, f16, f16x2, false, true>(table, "add[.rn].sat");
  add_both<Add, f16, f16x2, true, false>(table, "add[.rn].ftz");
  add_both<Sub, f16, f16x2, false, false>(table, "sub[.rn]");
  add_both<Sub, f16, f16x2, false, true>(table, "sub[.rn].sat");
  add_both<Sub, f16, f16x2, true, false>(table, "sub[.rn].ftz");
  add_both<Mul, f16, f16x2, false, false>(table, "mul[.rn]");
  add_both<Mul, f16, f16x2, false, true>(table, "mul[.rn].sat");
  add_both<Mul, f16, f16x2, true, false>(table, "mul[.rn].ftz");
  add_both<Fma, f16, f16x2, false, false>(table, "fma.rn");
  add_both<Fma, f16, f16x2, false, true>(table, "fma.rn.sat");
  add_both<Fma, f16, f16x2, true, false>(table, "fma.rn.ftz");
  add_both<FmaRelu, f16, f16x2, false, false>(table, "fma.rn.relu");
  add_both<Min, f16, f16x2, false, false>(table, "min");
  add_both<Min, f16, f16x2, true, false>(table, "min.ftz");
  add_both<Max, f16, f16x2, false, false>(table, "max");
  add_both<Max, f16, f16x2, true, false>(table, "max.ftz");
  add_both<MinNan, f16, f16x2, false, false>(table, "min.NaN");
  add_both<MaxNan, f16, f16x2, false, false>(table, "max.NaN");
  add_both<Neg, f16, f16x2, false, false>(table, "neg");
  add_both<Neg, f16, f16x2, true, false>(table, "neg.ftz");
  add_both<Abs, f16, f16x2, false, false>(table, "abs");
  add_both<Abs, f16, f16x2, true, false>(table, "abs.ftz");

  // sm_80 has only these for bf16; add, sub and mul (sm_90) are included for PTX that was compiled for it.
  add_both<Fma, bf16, bf16x2, false, false>(table, "fma.rn");
  add_both<FmaRelu, bf16, bf16x2, false, false>(table, "fma.rn.relu");
  add_both<Add, bf16, bf16x2, false, false>(table, "add[.rn]");
  add_both<Sub, bf16, bf16x2, false, false>(table, "sub[.rn]");
  add_both<Mul, bf16, bf16x2, false, false>(table, "mul[.rn]");
  add_both<Min, bf16, bf16x2, false, false>(table, "min");
  add_both<Max, bf16, bf16x2, false, false>(table, "max");
  add_both<MinNan, bf16, bf16x2, false, false>(table, "min.NaN");
  add_both<MaxNan, bf16, bf16x2, false, false>(table, "max.NaN");
  add_both<Neg, bf16, bf16x2, false, false>(table, "neg");
  add_both<Abs, bf16, bf16x2, false, false>(table, "abs");
}

}  // namespace flash_ladder::emulator
