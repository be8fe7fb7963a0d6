// lg2, sin, cos, tanh and similar: computed in double by the host's library and rounded once, which is more accurate
// than the GPU's own approximations. PTX ISA, "Floating Point Instructions".

#include <cmath>

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_operations.h"

namespace flash_ladder::emulator {
namespace {

constexpr InstructionClass kSpecial = InstructionClass::special;

template <bool ftz>
void add_functions(LaneTable& table) {
  const char* suffix = ftz ? ".approx.ftz.f32" : ".approx.f32";
  const auto name = [&](const char* mnemonic) { return Opcode(mnemonic, suffix); };
  add(table, name("lg2").text, kSpecial,
      [](float a) { return canonical(flushed<ftz>(static_cast<float>(std::log2(double{flushed<ftz>(a)})))); });
  add(table, name("sin").text, kSpecial,
      [](float a) { return canonical(flushed<ftz>(static_cast<float>(std::sin(double{flushed<ftz>(a)})))); });
  add(table, name("cos").text, kSpecial,
      [](float a) { return canonical(flushed<ftz>(static_cast<float>(std::cos(double{flushed<ftz>(a)})))); });
}

f16 exp2_half(f16 x) { return to_f16(static_cast<float>(std::exp2(double{to_float(x)}))); }
template <typename T>
T tanh_half(T x) {
  return from_float<T>(static_cast<float>(std::tanh(double{to_float(x)})));
}

}  // namespace

void add_math_operations(LaneTable& table) {
  add_functions<false>(table);
  add_functions<true>(table);
  add(table, "tanh.approx.f32", kSpecial, [](float a) { return canonical(static_cast<float>(std::tanh(double{a}))); });
  add(table, "ex2.approx.f16", kSpecial, [](f16 a) { return exp2_half(a); });
  add(table, "ex2.approx.f16x2", kSpecial, [](f16x2 a) { return f16x2{exp2_half(a.low), exp2_half(a.high)}; });
  add(table, "tanh.approx.f16", kSpecial, [](f16 a) { return tanh_half(a); });
  add(table, "tanh.approx.f16x2", kSpecial, [](f16x2 a) { return f16x2{tanh_half(a.low), tanh_half(a.high)}; });
}

}  // namespace flash_ladder::emulator
