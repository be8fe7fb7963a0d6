// Rare instructions that act on each lane separately. The instructions that programs mostly consist of are loops over
// 32 lanes, in lanes/; these here are not worth a loop for each instruction set. PTX ISA, "bmsk", "fns", "szext",
// "dp2a", "cvt.pack", "SIMD Video Instructions" …
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

/// The properties of an instruction, besides its operands of 32 bits.
struct Form {
  bool clamp = false;  // otherwise wrap
  bool signed_a = false, signed_b = false, signed_d = false;
  bool high = false;                     // dp2a.hi
  bool saturates = false, adds = false;  // .sat, .add
  int bits = 32;                         // bits of an element
  std::uint8_t compare = 0;              // 1 lt, 2 eq, 4 gt: those for which vset gives 1

  std::uint32_t packed() const {
    return static_cast<std::uint32_t>(clamp) | static_cast<std::uint32_t>(signed_a) << 1 |
           static_cast<std::uint32_t>(signed_b) << 2 | static_cast<std::uint32_t>(signed_d) << 3 |
           static_cast<std::uint32_t>(high) << 4 | static_cast<std::uint32_t>(saturates) << 5 |
           static_cast<std::uint32_t>(adds) << 6 | static_cast<std::uint32_t>(bits) << 8 |
           static_cast<std::uint32_t>(compare) << 16;
  }
  static Form of(std::uint32_t word) {
    const auto bit = [&](int i) { return ((word >> i) & 1) != 0; };
    return {.clamp = bit(0),
            .signed_a = bit(1),
            .signed_b = bit(2),
            .signed_d = bit(3),
            .high = bit(4),
            .saturates = bit(5),
            .adds = bit(6),
            .bits = static_cast<int>((word >> 8) & 0xff),
            .compare = static_cast<std::uint8_t>(word >> 16)};
  }
};

using Function = std::uint32_t (*)(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t c);

template <Function kFunction>
void each_lane(CtaExecutor&, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const Form form = Form::of(instruction.count);
  const auto source = [&](std::size_t i) {
    return reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[i + 1]);
  };
  auto* to = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    to[lane] = kFunction(form, source(0)[lane], source(1)[lane], source(2)[lane]);
  }
}

// The result and the sources are 32 bits each; a missing third source is 0.
void emit_each_lane(KernelDecoder& d, Execute execute, InstructionClass instruction_class, std::size_t sources,
                    const Form& form) {
  d.expect_operands(sources + 1);
  std::vector<int> reads;
  for (std::size_t i = 1; i <= 3; ++i) {
    reads.push_back(i <= sources ? d.read(d.operand(i), Slot::b32) : d.constant(Slot::b32, 0));
  }
  d.emit(execute, instruction_class, {d.write(d.operand(0), Slot::b32)}, reads).count = form.packed();
}

std::uint32_t bit_mask(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t) {
  const std::uint64_t from = a & 31, end = from + (b & 31);
  if (form.clamp && a >= 32) return 0;
  const bool to_the_top = end >= 32 || (form.clamp && b >= 32);
  const std::uint64_t below_end = to_the_top ? 0xffffffff : (std::uint64_t{1} << end) - 1;
  return static_cast<std::uint32_t>(below_end & ~((std::uint64_t{1} << from) - 1));
}

std::uint32_t nth_set_bit(const Form&, std::uint32_t mask, std::uint32_t base, std::uint32_t n) {
  constexpr std::uint32_t kNone = 0xffffffff;
  const auto offset = static_cast<std::int32_t>(n);
  if (base >= 32) return kNone;
  if (offset == 0) return (mask >> base) & 1 ? base : kNone;
  std::int64_t left = std::abs(static_cast<std::int64_t>(offset));
  for (int at = static_cast<int>(base); at >= 0 && at < 32; at += offset > 0 ? 1 : -1) {
    if (((mask >> at) & 1) && --left == 0) return static_cast<std::uint32_t>(at);
  }
  return kNone;
}

std::uint32_t extend(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t) {
  if (form.clamp && b >= 32) return a;
  const std::uint32_t bits = b & 31, above = 0xffffffffu << bits;
  const bool negative = form.signed_d && bits != 0 && ((a >> (bits - 1)) & 1) != 0;
  return (a & ~above) | (negative ? above : 0);
}

// The i-th element with this many bits.
std::int64_t element(std::uint32_t word, int i, int bits, bool is_signed) {
  const std::uint64_t value = (std::uint64_t{word} >> (i * bits)) & ((std::uint64_t{1} << bits) - 1);
  const bool negative = is_signed && (value >> (bits - 1)) != 0;
  return static_cast<std::int64_t>(value) - (negative ? std::int64_t{1} << bits : 0);
}

std::int64_t saturated(std::int64_t value, int bits, bool is_signed) {
  const std::int64_t most = (std::int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  return std::clamp<std::int64_t>(value, is_signed ? -most - 1 : 0, most);
}

std::uint32_t dot2(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const int first = form.high ? 2 : 0;
  std::int64_t sum = c;
  for (int i = 0; i < 2; ++i) sum += element(a, i, 16, form.signed_a) * element(b, first + i, 8, form.signed_b);
  return static_cast<std::uint32_t>(sum);
}

std::uint32_t dot4(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::int64_t sum = c;
  for (int i = 0; i < 4; ++i) sum += element(a, i, 8, form.signed_a) * element(b, i, 8, form.signed_b);
  return static_cast<std::uint32_t>(sum);
}

// cvt.pack: from the top, a, b, and the lowest bits of c.
std::uint32_t pack(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto part = [&](std::uint32_t x) {
    const std::int64_t value = saturated(static_cast<std::int32_t>(x), form.bits, form.signed_d);
    return static_cast<std::uint64_t>(value) & ((std::uint64_t{1} << form.bits) - 1);
  };
  return static_cast<std::uint32_t>(std::uint64_t{c} << (2 * form.bits) | part(a) << form.bits | part(b));
}

enum class Video : std::uint8_t { add, sub, average, difference, min, max, set };

// Elements of a and b, two or four; with .add, the sum of the results and c.
template <Video kVideo>
std::uint32_t video(const Form& form, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint64_t packed = 0;
  std::int64_t sum = c;
  for (int i = 0; i < 32 / form.bits; ++i) {
    const std::int64_t x = element(a, i, form.bits, form.signed_a), y = element(b, i, form.bits, form.signed_b);
    std::int64_t value = 0;
    switch (kVideo) {
      case Video::add:
        value = x + y;
        break;
      case Video::sub:
        value = x - y;
        break;
      case Video::average:  // rounded up
        value = (x + y + 1) >> 1;
        break;
      case Video::difference:
        value = std::abs(x - y);
        break;
      case Video::min:
        value = std::min(x, y);
        break;
      case Video::max:
        value = std::max(x, y);
        break;
      case Video::set:
        value = (form.compare & (x < y ? 1 : x == y ? 2 : 4)) != 0;
        break;
    }
    if (form.saturates) value = saturated(value, form.bits, form.signed_d);
    sum += value;
    packed |= (static_cast<std::uint64_t>(value) & ((std::uint64_t{1} << form.bits) - 1)) << (i * form.bits);
  }
  return static_cast<std::uint32_t>(form.adds ? static_cast<std::uint64_t>(sum) : packed);
}

// "s8" or "u32": whether it is signed.
bool is_signed(KernelDecoder& d, std::string_view type, int bits) {
  const ptx::Type known = ptx::type_of(type);
  if ((known.kind != 's' && known.kind != 'u') || known.bits != bits) d.fail_unknown();
  return known.kind == 's';
}

bool is_clamp(KernelDecoder& d) {
  if (d.parts().size() != 3 || (d.parts()[1] != "clamp" && d.parts()[1] != "wrap")) d.fail_unknown();
  return d.parts()[1] == "clamp";
}

void decode_bmsk(KernelDecoder& d) {
  const bool clamp = is_clamp(d);
  if (d.parts()[2] != "b32") d.fail_unknown();
  emit_each_lane(d, each_lane<bit_mask>, InstructionClass::integer, 2, {.clamp = clamp});
}

void decode_fns(KernelDecoder& d) {
  if (d.instruction().opcode != "fns.b32") d.fail_unknown();
  emit_each_lane(d, each_lane<nth_set_bit>, InstructionClass::integer, 3, {});
}

void decode_szext(KernelDecoder& d) {
  const bool clamp = is_clamp(d);
  emit_each_lane(d, each_lane<extend>, InstructionClass::integer, 2,
                 {.clamp = clamp, .signed_d = is_signed(d, d.parts()[2], 32)});
}

void decode_dp2a(KernelDecoder& d) {
  if (d.parts().size() != 4 || (d.parts()[1] != "lo" && d.parts()[1] != "hi")) d.fail_unknown();
  emit_each_lane(d, each_lane<dot2>, InstructionClass::integer, 3,
                 {.signed_a = is_signed(d, d.parts()[2], 32),
                  .signed_b = is_signed(d, d.parts()[3], 32),
                  .high = d.parts()[1] == "hi"});
}

// dp4a with two equal types is in lanes/.
void decode_dp4a(KernelDecoder& d) {
  if (d.decode_lane()) return;
  if (d.parts().size() != 3) d.fail_unknown();
  emit_each_lane(d, each_lane<dot4>, InstructionClass::integer, 3,
                 {.signed_a = is_signed(d, d.parts()[1], 32), .signed_b = is_signed(d, d.parts()[2], 32)});
}

// cvt.pack.sat.u8.s32.b32; all others are in lanes/.
void decode_cvt(KernelDecoder& d) {
  if (d.parts().size() < 2 || d.parts()[1] != "pack") {
    if (!d.decode_lane()) d.fail_unknown();
    return;
  }
  const std::vector<std::string_view>& parts = d.parts();
  if (parts.size() < 5 || parts[2] != "sat" || parts[3].size() < 2 || parts[4] != "s32") d.fail_unknown();
  const std::string_view type = parts[3];
  const bool takes_c = parts.size() == 6 && parts[5] == "b32";
  Form form{.signed_d = type[0] == 's'};
  form.bits = 0;
  for (const int bits : {2, 4, 8, 16}) {
    if (type.substr(1) == std::to_string(bits)) form.bits = bits;
  }
  const bool known = (type[0] == 's' || type[0] == 'u') && form.bits != 0 && takes_c == (form.bits != 16);
  if (!known || (parts.size() != 5 && !takes_c)) d.fail_unknown();
  emit_each_lane(d, each_lane<pack>, InstructionClass::convert, takes_c ? 3 : 2, form);
}

// vadd4.dtype.atype.btype[.sat|.add] d, a, b, c; vset4.atype.btype.compare[.add]. Without selectors of elements.
template <Video kVideo, int kElements>
void decode_video(KernelDecoder& d) {
  constexpr bool kSets = kVideo == Video::set;
  const std::vector<std::string_view>& parts = d.parts();
  std::size_t end = parts.size();
  Form form{.bits = 32 / kElements};
  if (parts.back() == "sat" || parts.back() == "add") {
    form.saturates = parts.back() == "sat";
    form.adds = parts.back() == "add";
    --end;
  }
  if (end != 4 || (kSets && form.saturates)) d.fail_unknown();
  form.signed_a = is_signed(d, parts[kSets ? 1 : 2], 32);
  form.signed_b = is_signed(d, parts[kSets ? 2 : 3], 32);
  if (kSets) {
    static const std::unordered_map<std::string_view, std::uint8_t> compares = {{"lt", 1}, {"eq", 2}, {"le", 3},
                                                                                {"gt", 4}, {"ne", 5}, {"ge", 6}};
    const auto found = compares.find(parts[3]);
    if (found == compares.end()) d.fail_unknown();
    form.compare = found->second;
  } else {
    form.signed_d = is_signed(d, parts[1], 32);
  }
  emit_each_lane(d, each_lane<video<kVideo>>, InstructionClass::integer, 3, form);
}

}  // namespace

void add_scalar_operations(OperationTable& table) {
  table.add("bmsk", decode_bmsk);
  table.add("fns", decode_fns);
  table.add("szext", decode_szext);
  table.add("dp2a", decode_dp2a);
  table.add("dp4a", decode_dp4a);
  table.add("cvt", decode_cvt);
  table.add("vadd2", decode_video<Video::add, 2>);
  table.add("vadd4", decode_video<Video::add, 4>);
  table.add("vsub2", decode_video<Video::sub, 2>);
  table.add("vsub4", decode_video<Video::sub, 4>);
  table.add("vavrg2", decode_video<Video::average, 2>);
  table.add("vavrg4", decode_video<Video::average, 4>);
  table.add("vabsdiff2", decode_video<Video::difference, 2>);
  table.add("vabsdiff4", decode_video<Video::difference, 4>);
  table.add("vmin2", decode_video<Video::min, 2>);
  table.add("vmin4", decode_video<Video::min, 4>);
  table.add("vmax2", decode_video<Video::max, 2>);
  table.add("vmax4", decode_video<Video::max, 4>);
  table.add("vset2", decode_video<Video::set, 2>);
  table.add("vset4", decode_video<Video::set, 4>);
}

}  // namespace flash_ladder::emulator
