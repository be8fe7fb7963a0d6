// Integer arithmetic, logic, shifts, bit fields. PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift Instructions".

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

constexpr InstructionClass kInteger = InstructionClass::integer;

__extension__ typedef __int128 s128;
__extension__ typedef unsigned __int128 u128;

template <typename T>
struct Wider;
template <>
struct Wider<u16> {
  using Type = u32;
};
template <>
struct Wider<s16> {
  using Type = s32;
};
template <>
struct Wider<u32> {
  using Type = u64;
};
template <>
struct Wider<s32> {
  using Type = s64;
};
template <>
struct Wider<u64> {
  using Type = u128;
};
template <>
struct Wider<s64> {
  using Type = s128;
};

// Arithmetic is modulo 2^n: performed on unsigned numbers, at least 32 bits wide so that nothing is promoted to int.
template <typename T>
using Modular = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <typename T>
T mul_low(T a, T b) {
  return static_cast<T>(static_cast<Modular<T>>(a) * static_cast<Modular<T>>(b));
}
template <typename T>
T add_wrapping(T a, T b) {
  return static_cast<T>(static_cast<Modular<T>>(a) + static_cast<Modular<T>>(b));
}
template <typename T>
T sub_wrapping(T a, T b) {
  return static_cast<T>(static_cast<Modular<T>>(a) - static_cast<Modular<T>>(b));
}
template <typename T>
typename Wider<T>::Type mul_wide(T a, T b) {
  using W = typename Wider<T>::Type;
  return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
}
template <typename T>
T mul_high(T a, T b) {
  return static_cast<T>(mul_wide(a, b) >> (8 * sizeof(T)));
}
// Division by zero: "unspecified, machine-specific"; NVIDIA's GPUs return all ones, also as the remainder.
template <typename T>
T divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return sub_wrapping<T>(0, a);
  return static_cast<T>(a / b);
}
template <typename T>
T remainder(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}
template <typename T>
T absolute(T a) {
  return a < 0 ? sub_wrapping<T>(0, a) : a;
}
template <typename T>
T saturate_add(s64 a, s64 b) {
  const s64 sum = a + b;
  return static_cast<T>(sum > 0x7fffffff ? 0x7fffffff : sum < -s64{0x80000000} ? -s64{0x80000000} : sum);
}

template <typename T>
T shift_left(T a, u32 count) {
  constexpr u32 kBits = 8 * sizeof(T);
  return count >= kBits ? T{0} : static_cast<T>(static_cast<Modular<T>>(a) << (count & (kBits - 1)));
}
template <typename T>
T shift_right(T a, u32 count) {
  constexpr u32 kBits = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (count >= kBits ? kBits - 1 : count));
  return count >= kBits ? T{0} : static_cast<T>(a >> (count & (kBits - 1)));
}

template <typename T>
u32 count_ones(T a) {
  return static_cast<u32>(__builtin_popcountll(a));
}
u32 leading_zeros(u32 a) { return a == 0 ? 32 : static_cast<u32>(__builtin_clz(a)); }
u32 leading_zeros(u64 a) { return a == 0 ? 64 : static_cast<u32>(__builtin_clzll(a)); }
template <typename T>
T reverse_bits(T a) {
  T reversed = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); ++i) {
    reversed = static_cast<T>((reversed << 1) | (a & 1));
    a = static_cast<T>(a >> 1);
  }
  return reversed;
}
// The position of the most significant bit that is not a sign bit, or all ones.
template <typename T>
u32 find_bit(T a) {
  using U = std::make_unsigned_t<T>;
  const U bits = static_cast<U>(std::is_signed_v<T> && a < 0 ? ~a : a);
  return bits == 0 ? 0xffffffffu : 8 * sizeof(T) - 1 - leading_zeros(bits);
}
template <typename T>
u32 find_bit_shift(T a) {
  const u32 position = find_bit(a);
  return position == 0xffffffffu ? position : 8 * sizeof(T) - 1 - position;
}

// "Position and length are restricted to 0 … 255": GPUs ignore the higher bits in 32-bit operations only.
template <typename T>
void keep_low_byte(u32& position, u32& length) {
  if (sizeof(T) == 8) return;
  position &= 0xff;
  length &= 0xff;
}
// PTX ISA, "bfe": a field that extends past the top is filled with the sign bit, which is 0 for an unsigned one.
template <typename T>
T extract_field(T a, u32 position, u32 length) {
  constexpr u32 kBits = 8 * sizeof(T);
  using U = std::make_unsigned_t<T>;
  keep_low_byte<T>(position, length);
  if (length == 0) return 0;
  if (length > kBits) length = kBits;
  const u32 top = position < kBits && position + length <= kBits ? position + length - 1 : kBits - 1;
  const U sign = std::is_signed_v<T> ? static_cast<U>((static_cast<U>(a) >> top) & 1) : U{0};
  U field = position >= kBits ? U{0} : static_cast<U>(static_cast<U>(a) >> position);
  const u32 kept = position >= kBits ? 0 : (length < kBits - position ? length : kBits - position);
  if (kept < kBits) {
    const U mask = static_cast<U>((U{1} << kept) - 1);
    field = static_cast<U>((field & mask) | (sign != 0 ? static_cast<U>(~mask) : U{0}));
  }
  return static_cast<T>(field);
}
template <typename T>
T insert_field(T a, T b, u32 position, u32 length) {
  constexpr u32 kBits = 8 * sizeof(T);
  keep_low_byte<T>(position, length);
  if (position >= kBits || length == 0) return b;
  const T ones = length >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  const T mask = static_cast<T>(ones << position);
  return static_cast<T>((b & ~mask) | (static_cast<T>(a << position) & mask));
}

u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 i = 0; i < 8; ++i) {
    const u32 row = ((i & 4) ? a : ~a) & ((i & 2) ? b : ~b) & ((i & 1) ? c : ~c);
    result |= row & (0u - ((table >> i) & 1));
  }
  return result;
}

u32 prmt_byte(u32 a, u32 b, u32 selector) {
  const u64 both = (u64{b} << 32) | a;
  const u32 byte = static_cast<u32>(both >> (8 * (selector & 7))) & 0xff;
  return (selector & 8) ? ((byte & 0x80) ? 0xffu : 0u) : byte;
}
u32 prmt(u32 a, u32 b, u32 selectors) {
  u32 result = 0;
  for (int i = 0; i < 4; ++i) result |= prmt_byte(a, b, (selectors >> (4 * i)) & 15) << (8 * i);
  return result;
}
// The named modes of prmt: the four bytes that the low two bits of c select.
template <u32 s0, u32 s1, u32 s2, u32 s3>
u32 prmt_mode(u32 a, u32 b, u32 c) {
  const u32 selectors = (c & 3) == 0 ? s0 : (c & 3) == 1 ? s1 : (c & 3) == 2 ? s2 : s3;
  return prmt(a, b, selectors);
}

template <typename T>
u32 dot4(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<u32>(static_cast<s32>(static_cast<T>(a >> (8 * i))) *
                          static_cast<s32>(static_cast<T>(b >> (8 * i))));
  }
  return c;
}

template <typename T>
void add_arithmetic(LaneTable& table) {
  const auto name = [](const char* mnemonic) { return Opcode(mnemonic, Name<T>::text); };
  add(table, name("add.").text, kInteger, [](T a, T b) { return add_wrapping(a, b); });
  add(table, name("sub.").text, kInteger, [](T a, T b) { return sub_wrapping(a, b); });
  add(table, name("mul.lo.").text, kInteger, [](T a, T b) { return mul_low(a, b); });
  add(table, name("mul.hi.").text, kInteger, [](T a, T b) { return mul_high(a, b); });
  add(table, name("mad.lo.").text, kInteger, [](T a, T b, T c) { return add_wrapping(mul_low(a, b), c); });
  add(table, name("mad.hi.").text, kInteger, [](T a, T b, T c) { return add_wrapping(mul_high(a, b), c); });
  add(table, name("div.").text, kInteger, [](T a, T b) { return divide(a, b); });
  add(table, name("rem.").text, kInteger, [](T a, T b) { return remainder(a, b); });
  add(table, name("min.").text, kInteger, [](T a, T b) { return a < b ? a : b; });
  add(table, name("max.").text, kInteger, [](T a, T b) { return a > b ? a : b; });
  add(table, name("sad.").text, kInteger,
      [](T a, T b, T c) { return add_wrapping(c, a < b ? sub_wrapping(b, a) : sub_wrapping(a, b)); });
  add(table, name("shr.").text, kInteger, [](T a, u32 b) { return shift_right(a, b); });
  if constexpr (sizeof(T) < 8) {
    using W = typename Wider<T>::Type;
    add(table, name("mul.wide.").text, kInteger, [](T a, T b) -> W { return mul_wide(a, b); });
    add(table, name("mad.wide.").text, kInteger, [](T a, T b, W c) -> W { return add_wrapping<W>(mul_wide(a, b), c); });
  }
  if constexpr (std::is_signed_v<T>) {
    add(table, name("abs.").text, kInteger, [](T a) { return absolute(a); });
    add(table, name("neg.").text, kInteger, [](T a) { return sub_wrapping(T{0}, a); });
  }
  if constexpr (sizeof(T) > 2) {
    add(table, name("bfe.").text, kInteger, [](T a, u32 b, u32 c) { return extract_field(a, b, c); });
    add(table, name("bfind.").text, kInteger, [](T a) { return find_bit(a); });
    add(table, name("bfind.shiftamt.").text, kInteger, [](T a) { return find_bit_shift(a); });
  }
}

template <typename T>
void add_logic(LaneTable& table, const char* type) {
  const auto name = [type](const char* mnemonic) { return Opcode(mnemonic, type); };
  add(table, name("and.").text, kInteger, [](T a, T b) { return static_cast<T>(a & b); });
  add(table, name("or.").text, kInteger, [](T a, T b) { return static_cast<T>(a | b); });
  add(table, name("xor.").text, kInteger, [](T a, T b) { return static_cast<T>(a ^ b); });
  add(table, name("not.").text, kInteger, [](T a) { return static_cast<T>(~a); });
  add(table, name("cnot.").text, kInteger, [](T a) { return static_cast<T>(a == 0); });
  add(table, name("shl.").text, kInteger, [](T a, u32 b) { return shift_left(a, b); });
  add(table, name("shr.").text, kInteger, [](T a, u32 b) { return shift_right(a, b); });
  if constexpr (sizeof(T) > 2) {
    add(table, name("popc.").text, kInteger, [](T a) { return count_ones(a); });
    add(table, name("clz.").text, kInteger, [](T a) { return leading_zeros(a); });
    add(table, name("brev.").text, kInteger, [](T a) { return reverse_bits(a); });
    add(table, name("bfi.").text, kInteger, [](T a, T b, u32 c, u32 d) { return insert_field(a, b, c, d); });
  }
}

// add.cc and its variants: the carry is a predicate that only they read and write. The function computes the result and
// the carry.
template <typename T, bool reads_carry, bool writes_carry, typename F>
struct WithCarry {
  static void run(std::byte* registers, const std::int32_t* r, u32 mask) {
    const T* a = reinterpret_cast<const T*>(registers + r[2]);
    const T* b = reinterpret_cast<const T*>(registers + r[3]);
    u32& carry = *reinterpret_cast<u32*>(registers + r[1]);
    u32 carry_out = 0;
    alignas(64) T result[kWarpSize];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const bool carry_in = reads_carry && ((carry >> lane) & 1);
      bool out = false;
      result[lane] = F{}(a[lane], b[lane], carry_in, out);
      carry_out |= static_cast<u32>(out) << lane;
    }
    blend(reinterpret_cast<T*>(registers + r[0]), result, mask);
    if (writes_carry) carry = (carry & ~mask) | (carry_out & mask);
  }
};

template <typename T, bool reads_carry, bool writes_carry, typename F>
void add_carrying(LaneTable& table, const char* opcode, F) {
  table.add(opcode, {.function = WithCarry<T, reads_carry, writes_carry, F>::run,
                     .instruction_class = kInteger,
                     .writes = 2,
                     .operands = 4,
                     .slots = {slot_for<T>(), Slot::predicate, slot_for<T>(), slot_for<T>()}});
}

template <typename T>
void add_carry_arithmetic(LaneTable& table, const char* type) {
  const auto name = [type](const char* mnemonic) { return Opcode(mnemonic, type); };
  const auto sum = [](T a, T b, bool in, bool& out) {
    const T total = a + b + in;
    out = in ? total <= a : total < a;
    return total;
  };
  // The flag after a subtraction is the carry of a + ~b + 1, which is set if nothing is borrowed. The ISA calls it the
  // borrow, and does not say what an addc after a subc.cc sees; NVIDIA's 128-bit division contains that case, so the
  // behaviour was measured on an H200.
  const auto difference = [](T a, T b, bool in, bool& out) {
    out = in ? a >= b : a > b;
    return a - b - !in;
  };
  const auto first_difference = [](T a, T b, bool, bool& out) {
    out = a >= b;
    return a - b;
  };
  add_carrying<T, false, true>(table, name("add.cc.").text, sum);
  add_carrying<T, true, true>(table, name("addc.cc.").text, sum);
  add_carrying<T, true, false>(table, name("addc.").text, sum);
  add_carrying<T, false, true>(table, name("sub.cc.").text, first_difference);
  add_carrying<T, true, true>(table, name("subc.cc.").text, difference);
  add_carrying<T, true, false>(table, name("subc.").text, difference);
}

void add_special_arithmetic(LaneTable& table) {
  add(table, "add.sat.s32", kInteger, [](s32 a, s32 b) { return saturate_add<s32>(a, b); });
  add(table, "sub.sat.s32", kInteger, [](s32 a, s32 b) { return saturate_add<s32>(a, -s64{b}); });
  add(table, "mad.hi.sat.s32", kInteger, [](s32 a, s32 b, s32 c) { return saturate_add<s32>(mul_high(a, b), c); });
  add(table, "mul24.lo.u32", kInteger, [](u32 a, u32 b) { return (a & 0xffffff) * (b & 0xffffff); });
  add(table, "mul24.lo.s32", kInteger,
      [](s32 a, s32 b) { return mul_low(shift_right(shift_left(a, 8), 8), shift_right(shift_left(b, 8), 8)); });
  add(table, "mad24.lo.u32", kInteger, [](u32 a, u32 b, u32 c) { return (a & 0xffffff) * (b & 0xffffff) + c; });
  add(table, "mad24.lo.s32", kInteger, [](s32 a, s32 b, s32 c) {
    return add_wrapping(mul_low(shift_right(shift_left(a, 8), 8), shift_right(shift_left(b, 8), 8)), c);
  });
  add(table, "dp4a.u32.u32", kInteger, [](u32 a, u32 b, u32 c) { return dot4<std::uint8_t>(a, b, c); });
  add(table, "dp4a.s32.s32", kInteger, [](u32 a, u32 b, u32 c) { return dot4<std::int8_t>(a, b, c); });
}

void add_predicates(LaneTable& table) {
  add(table, "and.pred", InstructionClass::compare, [](bool a, bool b) { return a && b; });
  add(table, "or.pred", InstructionClass::compare, [](bool a, bool b) { return a || b; });
  add(table, "xor.pred", InstructionClass::compare, [](bool a, bool b) { return a != b; });
  add(table, "not.pred", InstructionClass::compare, [](bool a) { return !a; });
  add(table, "mov.pred", InstructionClass::move, [](bool a) { return a; });
}

void add_bit_operations(LaneTable& table) {
  add(table, "lop3.b32", kInteger, [](u32 a, u32 b, u32 c, u32 d) { return lop3(a, b, c, d); });
  add(table, "shf.l.wrap.b32", kInteger,
      [](u32 a, u32 b, u32 c) { return static_cast<u32>(((u64{b} << 32) | a) << (c & 31) >> 32); });
  add(table, "shf.r.wrap.b32", kInteger,
      [](u32 a, u32 b, u32 c) { return static_cast<u32>(((u64{b} << 32) | a) >> (c & 31)); });
  add(table, "shf.l.clamp.b32", kInteger,
      [](u32 a, u32 b, u32 c) { return c >= 32 ? a : static_cast<u32>(((u64{b} << 32) | a) << (c & 31) >> 32); });
  add(table, "shf.r.clamp.b32", kInteger,
      [](u32 a, u32 b, u32 c) { return c >= 32 ? b : static_cast<u32>(((u64{b} << 32) | a) >> (c & 31)); });
  add(table, "prmt.b32", kInteger, [](u32 a, u32 b, u32 c) { return prmt(a, b, c); });
  add(table, "prmt.b32.f4e", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x3210, 0x4321, 0x5432, 0x6543>(a, b, c); });
  add(table, "prmt.b32.b4e", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x5670, 0x6701, 0x7012, 0x0123>(a, b, c); });
  add(table, "prmt.b32.rc8", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x0000, 0x1111, 0x2222, 0x3333>(a, b, c); });
  add(table, "prmt.b32.ecl", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x3210, 0x3211, 0x3222, 0x3333>(a, b, c); });
  add(table, "prmt.b32.ecr", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x0000, 0x1110, 0x2210, 0x3210>(a, b, c); });
  add(table, "prmt.b32.rc16", kInteger,
      [](u32 a, u32 b, u32 c) { return prmt_mode<0x1010, 0x3232, 0x1010, 0x3232>(a, b, c); });
}

// Moves and selections are the same for every type of a width.
void add_moves(LaneTable& table) {
  for (const char* opcode : {"mov.b32", "mov.u32", "mov.s32", "mov.f32"}) {
    add(table, opcode, InstructionClass::move, [](u32 a) { return a; });
  }
  for (const char* opcode : {"mov.b64", "mov.u64", "mov.s64", "mov.f64"}) {
    add(table, opcode, InstructionClass::move, [](u64 a) { return a; });
  }
  for (const char* opcode : {"mov.b16", "mov.u16", "mov.s16"}) {
    add(table, opcode, InstructionClass::move, [](u16 a) { return a; });
  }
  for (const char* opcode : {"selp.b32", "selp.u32", "selp.s32", "selp.f32"}) {
    add(table, opcode, InstructionClass::compare, [](u32 a, u32 b, bool c) { return c ? a : b; });
  }
  for (const char* opcode : {"selp.b64", "selp.u64", "selp.s64", "selp.f64"}) {
    add(table, opcode, InstructionClass::compare, [](u64 a, u64 b, bool c) { return c ? a : b; });
  }
  for (const char* opcode : {"selp.b16", "selp.u16", "selp.s16"}) {
    add(table, opcode, InstructionClass::compare, [](u16 a, u16 b, bool c) { return c ? a : b; });
  }
  for (const char* opcode : {"slct.b32.s32", "slct.u32.s32", "slct.s32.s32", "slct.f32.s32"}) {
    add(table, opcode, InstructionClass::compare, [](u32 a, u32 b, s32 c) { return c >= 0 ? a : b; });
  }
  for (const char* opcode : {"slct.b64.s32", "slct.u64.s32", "slct.s64.s32", "slct.f64.s32"}) {
    add(table, opcode, InstructionClass::compare, [](u64 a, u64 b, s32 c) { return c >= 0 ? a : b; });
  }
  for (const char* opcode : {"slct.b32.f32", "slct.u32.f32", "slct.s32.f32", "slct.f32.f32"}) {
    add(table, opcode, InstructionClass::compare, [](u32 a, u32 b, float c) { return c >= 0 ? a : b; });
  }
  // A subnormal c becomes a zero with its sign, and -0 is not below 0.
  for (const char* opcode : {"slct.ftz.b32.f32", "slct.ftz.u32.f32", "slct.ftz.s32.f32", "slct.ftz.f32.f32"}) {
    add(table, opcode, InstructionClass::compare,
        [](u32 a, u32 b, float c) { return c >= 0 || (bits_of(c) & 0x7f800000) == 0 ? a : b; });
  }
}

// Between registers of different widths; the decoder inserts these if an instruction's type differs from the register's.
void add_width_changes(LaneTable& table) {
  add(table, "%narrow.64.32", kInteger, [](u64 a) { return static_cast<u32>(a); });
  add(table, "%narrow.64.16", kInteger, [](u64 a) { return static_cast<u16>(a); });
  add(table, "%narrow.32.16", kInteger, [](u32 a) { return static_cast<u16>(a); });
  add(table, "%widen.u.16.32", kInteger, [](u16 a) { return u32{a}; });
  add(table, "%widen.u.16.64", kInteger, [](u16 a) { return u64{a}; });
  add(table, "%widen.u.32.64", kInteger, [](u32 a) { return u64{a}; });
  add(table, "%widen.s.16.32", kInteger, [](s16 a) { return s32{a}; });
  add(table, "%widen.s.16.64", kInteger, [](s16 a) { return s64{a}; });
  add(table, "%widen.s.32.64", kInteger, [](s32 a) { return s64{a}; });
  // mov with a vector on one side.
  add(table, "%pack.16.32", kInteger, [](u16 a, u16 b) { return (u32{b} << 16) | a; });
  add(table, "%pack.32.64", kInteger, [](u32 a, u32 b) { return (u64{b} << 32) | a; });
  add(table, "%pack.16.64", kInteger,
      [](u16 a, u16 b, u16 c, u16 d) { return (u64{d} << 48) | (u64{c} << 32) | (u64{b} << 16) | a; });
  add(table, "%unpack.32.0", kInteger, [](u32 a) { return static_cast<u16>(a); });
  add(table, "%unpack.32.1", kInteger, [](u32 a) { return static_cast<u16>(a >> 16); });
  add(table, "%unpack.64.0", kInteger, [](u64 a) { return static_cast<u32>(a); });
  add(table, "%unpack.64.1", kInteger, [](u64 a) { return static_cast<u32>(a >> 32); });
  add(table, "%unpack4.64.0", kInteger, [](u64 a) { return static_cast<u16>(a); });
  add(table, "%unpack4.64.1", kInteger, [](u64 a) { return static_cast<u16>(a >> 16); });
  add(table, "%unpack4.64.2", kInteger, [](u64 a) { return static_cast<u16>(a >> 32); });
  add(table, "%unpack4.64.3", kInteger, [](u64 a) { return static_cast<u16>(a >> 48); });
}

}  // namespace

void add_integer_operations(LaneTable& table) {
  add_arithmetic<u16>(table);
  add_arithmetic<s16>(table);
  add_arithmetic<u32>(table);
  add_arithmetic<s32>(table);
  add_arithmetic<u64>(table);
  add_arithmetic<s64>(table);
  add_logic<u16>(table, "b16");
  add_logic<u32>(table, "b32");
  add_logic<u64>(table, "b64");
  add_carry_arithmetic<u32>(table, "u32");
  add_carry_arithmetic<u32>(table, "s32");
  add_carry_arithmetic<u64>(table, "u64");
  add_carry_arithmetic<u64>(table, "s64");
  add_special_arithmetic(table);
  add_predicates(table);
  add_bit_operations(table);
  add_moves(table);
  add_width_changes(table);
}

}  // namespace flash_ladder::emulator
