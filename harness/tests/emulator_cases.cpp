#include "emulator_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {
namespace {

using Words = std::vector<std::uint64_t>;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t dot = text.find('.');
    parts.emplace_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

std::uint64_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

// Edge values of a type, followed by random ones.
Words values_of(const std::string& type, std::mt19937_64& random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Words values;
  if (type == "f32") {
    for (const float x : {0.0f,          -0.0f,          1.0f,          -1.0f,          1.5f,        -2.5f,
                          0.5f,          3.5f,           100.25f,       -127.5f,        16777216.0f, -16777217.0f,
                          2147483648.0f, -2147483648.0f, 4294967296.0f, 9.3e18f,        1e-38f,      -1e-39f,
                          65504.0f,      65519.9f,       65520.0f,      6e-8f,          -2.9e-8f,    3.0e-8f,
                          1.00048828f,   1.00146484f,    3.4028235e38f, -3.4028235e38f, kInf,        -kInf}) {
      values.push_back(bits(x));
    }
    for (const std::uint64_t x :
         {0x00000001u, 0x807fffffu, 0x00800000u, 0x7fc00000u, 0xffc00001u, 0x7f800001u, 0x3f800001u, 0x3f7fffffu,
          0x38ffffffu, 0x477fefffu, 0x42fe0000u, 0xc2fc0000u, 0xc3150000u}) {
      values.push_back(x);
    }
    std::uniform_real_distribution<float> wide(-30, 30);
    for (int i = 0; i < 12; ++i) values.push_back(bits(wide(random)));
    for (int i = 0; i < 8; ++i) values.push_back(random() & 0xffffffff);
  } else if (type == "f64") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double x : {0.0,
                           -0.0,
                           1.0,
                           -1.5,
                           2.5,
                           -3.5,
                           1e300,
                           -1e-300,
                           1e-310,
                           4.9e-324,
                           3.4028235677973366e38,
                           1e39,
                           1e-46,
                           65520.0,
                           2147483647.5,
                           -2147483648.5,
                           9.3e18,
                           1.8446744073709552e19,
                           kInfinity,
                           -kInfinity}) {
      values.push_back(bits(x));
    }
    for (const std::uint64_t x : {0x7ff8000000000000u, 0xfff0000000000001u, 0x3ff0000010000000u, 0x3ff0000030000000u}) {
      values.push_back(x);
    }
    std::uniform_real_distribution<double> wide(-1e5, 1e5);
    for (int i = 0; i < 16; ++i) values.push_back(bits(wide(random)));
    for (int i = 0; i < 8; ++i) values.push_back(random());
  } else if (type == "f16" || type == "bf16") {
    for (const std::uint64_t x :
         {0x0000u, 0x8000u, 0x0001u, 0x83ffu, 0x0400u, 0x3c00u, 0xbc00u, 0x3c01u, 0x7bffu, 0xfbffu, 0x7c00u,
          0xfc00u, 0x7e00u, 0xfc01u, 0x3f80u, 0xbf80u, 0x7f7fu, 0x7f80u, 0xff80u, 0x7fc0u, 0x0080u, 0x4248u}) {
      values.push_back(x);
    }
    for (int i = 0; i < 26; ++i) values.push_back(random() & 0xffff);
  } else if (type == "f16x2" || type == "bf16x2") {
    const Words halves = values_of(type.substr(0, type.size() - 2), random);
    for (std::size_t i = 0; i < halves.size(); ++i)
      values.push_back(halves[i] | halves[(i * 7 + 3) % halves.size()] << 16);
  } else if (type == "shift") {
    for (const std::uint64_t x : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 31u, 32u, 33u, 63u, 64u, 65u, 255u, 256u, 0xffffffffu})
      values.push_back(x);
  } else if (type == "pred") {
    values = {0, 1};
  } else {  // integers: u, s or b, and the number of bits
    const int width = std::stoi(type.substr(1));
    const std::uint64_t ones = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
    for (const std::uint64_t x :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{7}, ones, ones - 1, ones / 2,
          ones / 2 + 1, std::uint64_t{0x80}, std::uint64_t{0x7f}, std::uint64_t{0xff80}, std::uint64_t{0x12345678},
          std::uint64_t{0xdeadbeef}, std::uint64_t{0x8000000080000000}, std::uint64_t{0xffffffff}}) {
      values.push_back(x & ones);
    }
    for (int i = 0; i < 17; ++i) values.push_back(random() & ones);
  }
  return values;
}

// Operands for `threads` threads: each combination of edge values for two operands, random combinations for more.
Words operands_for(const std::vector<std::string>& types, unsigned threads, std::mt19937_64& random) {
  Words input(types.size() * threads);
  for (std::size_t k = 0; k < types.size(); ++k) {
    const Words values = values_of(types[k], random);
    for (unsigned i = 0; i < threads; ++i) {
      // The first operand steps through its values, the second through its own at a different pace, …
      const std::size_t index = k == 0 ? i : k == 1 ? i / 3 + i * 5 : random();
      input[k * threads + i] = values[index % values.size()];
    }
  }
  return input;
}

struct Types {
  std::string result;
  std::vector<std::string> sources;
};

bool contains(const std::vector<std::string>& parts, std::string_view word) {
  return std::find(parts.begin(), parts.end(), word) != parts.end();
}
bool is_float8_pair(const std::string& type) { return type == "e4m3x2" || type == "e5m2x2"; }
std::string wider(const std::string& type) { return type.substr(0, 1) + std::to_string(2 * std::stoi(type.substr(1))); }

// The types of the operands, which each opcode encodes in its own way.
Types types_of(const std::string& opcode, int num_sources) {
  const std::vector<std::string> parts = split(opcode);
  const std::string& last = parts.back();
  const std::string& op = parts[0];
  if (op == "cvt")
    return {parts[parts.size() - 2], std::vector<std::string>(num_sources, is_float8_pair(last) ? "b16" : last)};
  if (op == "setp" || op == "testp")
    return {"pred", std::vector<std::string>(static_cast<std::size_t>(num_sources), last)};
  if (op == "set") return {parts[parts.size() - 2], {last, last}};
  if (op == "selp") return {last, {last, last, "pred"}};
  if (op == "slct") return {parts[parts.size() - 2], {parts[parts.size() - 2], parts[parts.size() - 2], last}};
  if (op == "shl" || op == "shr") return {last, {last, "shift"}};
  if (op == "shf") return {"b32", {"b32", "b32", "shift"}};
  if (op == "bfe") return {last, {last, "shift", "shift"}};
  if (op == "bfi") return {last, {last, last, "shift", "shift"}};
  if (op == "popc" || op == "clz" || op == "bfind") return {"u32", {last}};
  if (op == "prmt") return {"b32", {"b32", "b32", "b32"}};
  if (op == "dp4a") return {"s32", {"b32", "b32", "b32"}};
  if (op == "mul" && contains(parts, "wide")) return {wider(last), {last, last}};
  if (op == "mad" && contains(parts, "wide")) return {wider(last), {last, last, wider(last)}};
  return {last, std::vector<std::string>(static_cast<std::size_t>(num_sources), last)};
}

// Registers are declared without a type, so that every instruction of their width accepts them.
int width_of(const std::string& type) {
  if (type == "pred") return 1;
  if (type == "shift" || type == "f16x2" || type == "bf16x2" || type == "tf32") return 32;
  if (type == "bf16" || is_float8_pair(type)) return 16;
  return std::max(16, std::stoi(type.substr(1)));
}

std::string header(const std::string& target) {
  return fmt::format(".version 7.8\n.target {}\n.address_size 64\n\n", target);
}

// A kernel with what all cases need: %tid in %t, the number of threads in %n, the addresses of input and output in %in
// and %out.
std::string kernel(const std::string& target, const std::string& declarations, const std::string& body) {
  return header(target) +
         ".visible .entry test(.param .u64 input, .param .u64 output)\n{\n"
         "\t.reg .b32 %t, %n;\n\t.reg .b64 %in, %out, %at, %step;\n" +
         declarations +
         "\tmov.u32 %t, %tid.x;\n\tmov.u32 %n, %ntid.x;\n\tld.param.u64 %in, [input];\n\tld.param.u64 %out, [output];\n"
         "\tcvta.to.global.u64 %in, %in;\n\tcvta.to.global.u64 %out, %out;\n"
         "\tmul.wide.u32 %at, %t, 8;\n\tadd.s64 %in, %in, %at;\n\tadd.s64 %out, %out, %at;\n\tmul.wide.u32 %step, %n, 8;\n" +
         body + "\tret;\n}\n";
}

// Loads the next operand of a thread into %x<i>.
std::string load_operand(std::size_t i, int width) {
  std::string text;
  if (width == 64) {
    text = fmt::format("\tld.global.b64 %x{}, [%in];\n", i);
  } else if (width == 1) {
    text = fmt::format("\tld.global.b64 %wide, [%in];\n\tsetp.ne.s64 %x{}, %wide, 0;\n", i);
  } else {
    text = fmt::format("\tld.global.b64 %wide, [%in];\n\tcvt.u{}.u64 %x{}, %wide;\n", width, i);
  }
  return text + "\tadd.s64 %in, %in, %step;\n";
}

std::string store_result(const std::string& reg, int width) {
  std::string text;
  if (width == 64) {
    text = fmt::format("\tst.global.b64 [%out], {};\n", reg);
  } else if (width == 1) {
    text = fmt::format("\tselp.b64 %wide, 1, 0, {};\n\tst.global.b64 [%out], %wide;\n", reg);
  } else {
    text = fmt::format("\tcvt.u64.u{} %wide, {};\n\tst.global.b64 [%out], %wide;\n", width, reg);
  }
  return text + "\tadd.s64 %out, %out, %step;\n";
}

std::string declare(const std::string& name, int width) {
  return width == 1 ? fmt::format("\t.reg .pred {};\n", name) : fmt::format("\t.reg .b{} {};\n", width, name);
}

// The target for instructions that sm_80 does not have.
std::string target_of(const std::string& opcode) {
  const std::vector<std::string> parts = split(opcode);
  const std::string& last = parts.back();
  const bool bf16 = last == "bf16" || last == "bf16x2";
  const bool arithmetic =
      parts[0] == "add" || parts[0] == "sub" || parts[0] == "mul" || parts[0] == "setp" || parts[0] == "set";
  if (bf16 && (arithmetic || opcode == "cvt.f32.bf16")) return "sm_90";
  if (contains(parts, "e4m3x2") || contains(parts, "e5m2x2")) return "sm_90";
  return contains(parts, "xorsign") ? "sm_86" : "sm_80";
}

void set_closeness(ConformanceCase& one, const std::string& opcode, const std::string& result) {
  const std::vector<std::string> parts = split(opcode);
  const std::string& op = parts[0];
  const bool approximate = contains(parts, "approx") || contains(parts, "full");
  if (approximate && result == "f32") {
    one.closeness = Closeness::float_ulps;
    one.bound = op == "rcp" ? 1 : op == "tanh" ? 8192 : 2;
    if (op == "lg2") one.closeness = Closeness::float_either;
    if (op == "sin" || op == "cos") one.closeness = Closeness::sine;
  } else if (approximate && result == "f64") {
    one.closeness = Closeness::double_ulps;
    one.bound = std::ldexp(1.0, 34);  // 20 bits of the mantissa
  } else if (approximate) {
    one.closeness = Closeness::half_ulps;
    one.bound = 2;
  } else if (result == "f64" || op == "neg" || op == "abs" || op == "copysign" || op == "mov" || op == "selp" ||
             op == "slct") {
    one.closeness = Closeness::bits_or_nan;
  }
}

ConformanceCase lane_case(const std::string& opcode, const LaneOperation& operation) {
  std::mt19937_64 random(1);
  const bool carries = operation.writes == 2;
  const int num_sources = operation.operands - operation.writes;
  Types types = types_of(opcode, num_sources);
  ConformanceCase one{.name = opcode, .ptx = {}, .input = {}};
  one.threads = types.sources.size() == 1 ? 64 : 96;
  one.late = is_float8_pair(split(opcode).back());
  std::string declarations = "\t.reg .b64 %wide;\n" + declare("%d", width_of(types.result));
  std::string body, list;
  for (std::size_t i = 0; i < types.sources.size(); ++i) {
    declarations += declare(fmt::format("%x{}", i), width_of(types.sources[i]));
    body += load_operand(i, width_of(types.sources[i]));
    list += fmt::format(", %x{}", i);
  }
  if (carries) {
    // A carry to read, and the resulting carry.
    declarations += declare("%carry", width_of(types.result));
    const std::string type = types.sources[0];
    const bool subtracts = opcode.substr(0, 3) == "sub";
    body += fmt::format("\t{}.cc.{} %carry, %x0, %x1;\n", subtracts ? "sub" : "add", type);
    body += fmt::format("\t{} %d{};\n", opcode, list);
    body += fmt::format("\t{}c.{} %carry, 0, 0;\n", subtracts ? "sub" : "add", type);
    body += store_result("%d", width_of(types.result)) + store_result("%carry", width_of(types.result));
    one.outputs = 2;
  } else {
    body += fmt::format("\t{} %d{};\n", opcode, list);
    body += store_result("%d", width_of(types.result));
  }
  one.ptx = kernel(target_of(opcode), declarations, body);
  one.input = operands_for(types.sources, one.threads, random);
  set_closeness(one, opcode, types.result);
  return one;
}

// Values that values_of("f32") contains few of: numbers near and between the 8-bit ones, from below the smallest
// denormal to above the largest.
ConformanceCase float8_case(const std::string& opcode) {
  ConformanceCase one = lane_case(opcode, *lane_table().find(opcode));
  one.name += " around its numbers";
  for (std::size_t i = 0; i < one.input.size(); ++i) {
    const int exponent = static_cast<int>(i / 5) - 18;  // to 20
    const float fraction = 1 + 0.0625f * static_cast<float>(i * 7 % 16) + (i % 3 == 0 ? 0x1p-20f : 0);
    one.input[i] = std::bit_cast<std::uint32_t>(std::ldexp(i % 2 == 0 ? fraction : -fraction, exponent));
  }
  return one;
}

// A case written in full: `body` uses what kernel() declares, and %r<>, %rd<>, %rs<>, %f<>, %p<>, and shared memory `smem`.
ConformanceCase text_case(const std::string& name, const std::string& body, const std::vector<std::string>& sources,
                          const std::vector<int>& result_widths, unsigned threads = 32, const std::string& before = {},
                          const std::string& target = "sm_80") {
  std::mt19937_64 random(1);
  ConformanceCase one;
  one.name = name;
  one.threads = threads;
  one.outputs = static_cast<unsigned>(result_widths.size());
  std::string declarations =
      "\t.reg .b64 %wide;\n\t.reg .b16 %rs<20>;\n\t.reg .b32 %r<40>;\n\t.reg .b64 %rd<20>;\n\t.reg .pred %p<20>;\n"
      "\t.shared .align 16 .b8 smem[8192];\n" +
      before;
  std::string text;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    declarations += declare(fmt::format("%x{}", i), width_of(sources[i]));
    text += load_operand(i, width_of(sources[i]));
  }
  for (std::size_t i = 0; i < result_widths.size(); ++i)
    declarations += declare(fmt::format("%y{}", i), result_widths[i]);
  text += body;
  for (std::size_t i = 0; i < result_widths.size(); ++i) text += store_result(fmt::format("%y{}", i), result_widths[i]);
  one.ptx = kernel(target, declarations, text);
  one.input = operands_for(sources, threads, random);
  return one;
}

// How an addition interprets the flag of a subtraction, and vice versa.
void add_carry_cases(std::vector<ConformanceCase>& cases) {
  for (const int width : {32, 64}) {
    const std::string type = fmt::format("u{}", width);
    const std::string body = fmt::format(
        "\tsub.cc.{0} %y0, %x0, %x1;\n\taddc.{0} %y1, 0, 0;\n"
        "\tsub.cc.{0} %y0, %x0, %x1;\n\tsubc.cc.{0} %y2, %x2, %x3;\n\taddc.{0} %y3, 0, 0;\n"
        "\tadd.cc.{0} %y0, %x0, %x1;\n\tsubc.cc.{0} %y4, %x2, %x3;\n\taddc.cc.{0} %y5, %x0, %x3;\n"
        "\tsubc.{0} %y6, 0, 0;\n",
        type);
    cases.push_back(
        text_case("carry and borrow " + type, body, std::vector<std::string>(4, type), std::vector<int>(7, width), 96));
  }
}

void add_logic_cases(std::vector<ConformanceCase>& cases) {
  for (const int table : {0x00, 0x96, 0xe8, 0x80, 0xfe, 0x1b, 0xff, 0xca}) {
    cases.push_back(text_case(fmt::format("lop3.b32 {:#04x}", table),
                              fmt::format("\tlop3.b32 %y0, %x0, %x1, %x2, {};\n", table), {"b32", "b32", "b32"}, {32}));
  }
  for (const char* boolean : {"and", "or", "xor"}) {
    cases.push_back(
        text_case(fmt::format("setp.lt.{}.s32 p|q", boolean),
                  fmt::format("\tsetp.lt.{}.s32 %y0|%y1, %x0, %x1, %x2;\n\tsetp.ge.{}.u32 %y2, %x0, %x1, !%x2;\n",
                              boolean, boolean),
                  {"s32", "s32", "pred"}, {1, 1, 1}, 96));
    cases.push_back(text_case(fmt::format("setp.gtu.{}.ftz.f32 p|q", boolean),
                              fmt::format("\tsetp.gtu.{}.ftz.f32 %y0|%y1, %x0, %x1, %x2;\n", boolean),
                              {"f32", "f32", "pred"}, {1, 1}, 96));
    cases.push_back(text_case(fmt::format("{}.pred", boolean), fmt::format("\t{}.pred %y0, %x0, %x1;\n", boolean),
                              {"pred", "pred"}, {1}));
  }
  cases.push_back(text_case("setp p|q", "\tsetp.le.u64 %y0|%y1, %x0, %x1;\n", {"u64", "u64"}, {1, 1}, 96));
  cases.push_back(text_case("not.pred", "\tnot.pred %y0, %x0;\n", {"pred"}, {1}));
  cases.push_back(text_case("mov.pred immediate", "\tmov.pred %y0, 0;\n\tmov.pred %y1, 1;\n\tmov.pred %y2, %x0;\n",
                            {"pred"}, {1, 1, 1}));
  cases.push_back(text_case("guards",
                            "\tmov.u32 %y0, 1;\n\tmov.b64 %y1, 2;\n\tmov.pred %y2, %x0;\n\t@%x0 add.s32 %y0, %y0, 10;\n"
                            "\t@!%x0 add.s64 %y1, %y1, 20;\n\t@%x0 setp.eq.s32 %y2, 0, 1;\n",
                            {"pred"}, {32, 64, 1}));
}

void add_move_cases(std::vector<ConformanceCase>& cases) {
  cases.push_back(text_case("mov.b32 pack", "\tmov.b32 %y0, {%x0, %x1};\n", {"b16", "b16"}, {32}));
  cases.push_back(text_case("mov.b32 unpack", "\tmov.b32 {%y0, %y1}, %x0;\n", {"b32"}, {16, 16}));
  cases.push_back(text_case("mov.b64 pack", "\tmov.b64 %y0, {%x0, %x1};\n", {"b32", "b32"}, {64}));
  cases.push_back(text_case("mov.b64 unpack", "\tmov.b64 {%y0, %y1}, %x0;\n", {"b64"}, {32, 32}));
  cases.push_back(text_case("mov.b64 pack 4", "\tmov.b64 %y0, {%x0, %x1, %x0, %x1};\n", {"b16", "b16"}, {64}));
  cases.push_back(text_case("mov.b64 unpack 4", "\tmov.b64 {%y0, %y1, %y2, %y3}, %x0;\n", {"b64"}, {16, 16, 16, 16}));
  cases.push_back(text_case("mov.b32 unpack sink", "\tmov.b64 {_, %y0}, %x0;\n", {"b64"}, {32}));
  cases.push_back(text_case(
      "mov immediates",
      "\tmov.f32 %y0, 0f7FC00001;\n\tmov.f64 %y1, 0d3FF8000000000000;\n\tmov.u32 %y2, -5;\n"
      "\tmov.u64 %y3, 0xFFFFFFFFFFFFFFFF;\n\tmov.b16 %y4, 0x1234;\n\tmov.f32 %y5, 1.5;\n\tmov.u32 %y6, WARP_SZ;\n"
      "\tmov.u32 %y7, 0b101;\n\tmov.u32 %y8, 017;\n",
      {}, {32, 64, 32, 64, 16, 32, 32, 32, 32}));
  cases.push_back(text_case(
      "mov special registers",
      "\tmov.u32 %y0, %tid.x;\n\tmov.u32 %y1, %laneid;\n\tmov.u32 %y2, %ntid.x;\n\tmov.u32 %y3, %ctaid.x;\n"
      "\tmov.u32 %y4, %nctaid.x;\n\tmov.u32 %y5, %lanemask_lt;\n\tmov.u32 %y6, %lanemask_ge;\n\tmov.u32 %y7, %tid.y;\n"
      "\tmov.u32 %y8, %lanemask_eq;\n\tmov.u32 %y9, %lanemask_le;\n\tmov.u32 %y10, %lanemask_gt;\n\tmov.u32 %y11, %ntid.z;\n",
      {}, {32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}, 64));
  // The register may be wider than the type: only its low part is read, and all of it is written.
  cases.push_back(text_case(
      "cvt wide source",
      "\tcvt.s64.s32 %y0, %x0;\n\tcvt.u64.u32 %y1, %x0;\n\tcvt.s32.s16 %y2, %x0;\n\tcvt.u32.u8 %y3, %x0;\n\tcvt.s32.s8 %y4, %x0;\n",
      {"b64"}, {64, 64, 32, 32, 32}, 64));
  cases.push_back(text_case(
      "cvt wide result",
      "\tcvt.s8.s32 %y0, %x0;\n\tcvt.u8.s32 %y1, %x0;\n\tcvt.s16.s32 %y2, %x0;\n\tcvt.u16.s32 %y3, %x0;\n\tcvt.s32.s64 %y4, %x1;\n",
      {"b32", "b64"}, {32, 32, 32, 32, 64}, 64));
  cases.push_back(text_case(
      "16 bits in 32",
      "\tmov.u32 %r1, -1;\n\tcvt.u16.u32 %rs1, %r1;\n\tadd.u16 %rs2, %rs1, 1;\n\tcvt.u32.u16 %y0, %rs2;\n\tmov.b32 {%rs3, %rs4}, %x0;\n"
      "\tadd.s16 %rs3, %rs3, %rs4;\n\tmov.b32 %y1, {%rs3, %rs4};\n",
      {"b32"}, {32, 32}));
  cases.push_back(text_case(
      "scopes",
      "\tmov.u32 %y0, 0;\n\t{\n\t.reg .b16 lo, hi;\n\t.reg .pred p;\n\tmov.b32 {lo, hi}, %x0;\n\tsetp.eq.s16 p, lo, hi;\n"
      "\t@p bra DONE;\n\tmov.b32 %y0, {hi, lo};\n\tDONE:\n\t}\n\t{\n\t.reg .b16 lo;\n\tbra DONE;\n\tmov.u32 %y0, 0;\n\tDONE:\n\t}\n",
      {"b32"}, {32}));
}

void add_memory_cases(std::vector<ConformanceCase>& cases) {
  const std::string address = "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r30, %t, 32, %r30;\n";
  for (const char* type : {"u8", "s8", "u16", "s16", "b32", "b64", "f32", "f64"}) {
    const int width = std::max(16, std::stoi(std::string(type).substr(1)));
    cases.push_back(text_case(fmt::format("st, ld.shared.{}", type),
                              address + "\tst.shared.v2.b64 [%r30], {%x0, %x0};\n" +
                                  fmt::format("\tld.shared.{} %y0, [%r30+{}];\n", type, width == 64 ? 8 : 4),
                              {"b64"}, {width}));
    // Into a register of 64 bits.
    if (width < 64 && type[0] != 'f') {
      cases.push_back(text_case(
          fmt::format("ld.shared.{} wide", type),
          address + fmt::format("\tst.shared.v2.b64 [%r30], {{%x0, %x0}};\n\tld.shared.{} %y0, [%r30+4];\n", type),
          {"b64"}, {64}));
    }
    cases.push_back(text_case(fmt::format("st.shared.{}", type),
                              address + "\tmov.b64 %rd1, -1;\n\tst.shared.b64 [%r30], %rd1;\n" +
                                  fmt::format("\tst.shared.{} [%r30], %x0;\n\tld.shared.b64 %y0, [%r30];\n", type),
                              {width == 64      ? "b64"
                               : type[0] == 'f' ? "f32"
                                                : "b64"},
                              {64}));
  }
  for (const char* vector : {"v2.b32", "v4.b32", "v2.b64", "v4.b16", "v2.f32", "v4.f32", "v2.u16", "v4.u8"}) {
    const std::vector<std::string> parts = split(vector);
    const int count = parts[0][1] - '0', width = std::max(16, std::stoi(parts[1].substr(1)));
    std::string results, registers;
    std::vector<int> widths;
    for (int i = 0; i < count; ++i) {
      results += fmt::format("{}%y{}", i == 0 ? "" : ", ", i);
      widths.push_back(width);
    }
    std::string reload = address;
    for (const int at : {0, 16}) reload += fmt::format("\tst.shared.v2.b64 [%r30+{}], {{%x0, %x1}};\n", at);
    reload += fmt::format(
        "\tld.shared.{} {{{}}}, [%r30];\n\tst.shared.{} [%r30+16], {{{}}};\n\tld.shared.{} {{{}}}, [%r30+16];\n",
        vector, results, vector, results, vector, results);
    cases.push_back(text_case(fmt::format("ld, st.shared.{}", vector), reload, {"b64", "b64"}, widths));
  }
  // Each thread uses its output words as its own global memory.
  cases.push_back(text_case(
      "ld, st.global",
      "\tst.global.b32 [%out], %x0;\n\tst.global.u16 [%out+4], %x0;\n\tst.global.u8 [%out+6], %x0;\n\tst.global.u8 [%out+7], 9;\n"
      "\tld.global.b64 %y0, [%out];\n\tld.volatile.global.s8 %y1, [%out+6];\n\tld.relaxed.gpu.global.u16 %y2, [%out+4];\n",
      {"b64"}, {64, 32, 32}));
  cases.push_back(text_case(
      "ld.global.nc",
      "\tsub.s64 %rd1, %in, %step;\n\tld.global.nc.u32 %y0, [%rd1];\n\tld.global.nc.L1::no_allocate.L2::128B.b64 %y1, [%rd1];\n\tld.global.cg.b32 %y2, [%rd1+4];\n",
      {"b64"}, {32, 64, 32}));
  cases.push_back(text_case(
      "generic addresses",
      address +
          "\tcvt.u64.u32 %rd1, %r30;\n\tcvta.shared.u64 %rd2, %rd1;\n\tst.b64 [%rd2], %x0;\n\tld.b32 %y0, [%rd2+4];\n"
          "\tcvta.to.shared.u64 %rd3, %rd2;\n\tld.shared.b64 %y1, [%rd3];\n\tisspacep.shared %y2, %rd2;\n\tisspacep.global %y3, %rd2;\n"
          "\tcvta.global.u64 %rd4, %out;\n\tisspacep.global %y4, %rd4;\n\tisspacep.shared %y5, %rd4;\n\tst.b64 [%rd4], %x0;\n\tld.global.b64 %y6, [%out];\n",
      {"b64"}, {32, 64, 1, 1, 1, 1, 64}));
  cases.push_back(text_case(
      "local memory",
      "\tmov.u64 %rd1, local;\n\tst.local.b64 [local], %x0;\n\tst.local.b32 [%rd1+12], %t;\n\tld.local.u32 %y0, [local+12];\n\tld.local.u8 %y1, [%rd1+3];\n"
      "\tcvta.local.u64 %rd2, %rd1;\n\tld.b64 %y2, [%rd2];\n\tisspacep.local %y3, %rd2;\n",
      {"b64"}, {32, 32, 64, 1}, 64, "\t.local .align 8 .b8 local[16];\n"));
  cases.push_back(text_case(
      "constant and global variables",
      "\tand.b32 %r1, %t, 3;\n\tmul.wide.u32 %rd1, %r1, 4;\n\tmov.u64 %rd2, table;\n\tadd.s64 %rd2, %rd2, %rd1;\n"
      "\tld.const.u32 %y0, [%rd2];\n\tld.const.f32 %y1, [table+4];\n\tld.global.u16 %y2, [words+2];\n",
      {}, {32, 32, 32}));
  cases.back().ptx.insert(
      header("sm_80").size(),
      ".const .align 4 .b32 table[4] = {1, 0x3fc00000, -3, 4};\n.global .align 8 .b8 words[8] = {1, 2, 3, 4, 5};\n");
  cases.push_back(text_case(
      "a 64-bit shared address",
      "\tmov.u64 %rd1, smem;\n\tmad.wide.u32 %rd1, %t, 8, %rd1;\n\tst.shared.b64 [%rd1], %x0;\n\tld.shared.u32 %y0, [%rd1+4];\n",
      {"b64"}, {32}));
}

void add_atomic_cases(std::vector<ConformanceCase>& cases) {
  struct Atomic {
    const char* operation;
    const char* type;
  };
  for (const Atomic& one : {Atomic{"add", "u32"},
                            {"add", "s32"},
                            {"add", "u64"},
                            {"add", "f32"},
                            {"add", "f64"},
                            {"add.noftz", "f16x2"},
                            {"add.noftz", "f16"},
                            {"min", "s32"},
                            {"min", "u32"},
                            {"max", "s32"},
                            {"max", "u64"},
                            {"min", "s64"},
                            {"and", "b32"},
                            {"or", "b32"},
                            {"xor", "b64"},
                            {"exch", "b32"},
                            {"exch", "b64"},
                            {"inc", "u32"},
                            {"dec", "u32"}}) {
    const std::string type = one.type;
    const int width = width_of(type);
    const int bytes = width / 8;
    const std::string stored = fmt::format("b{}", width);
    // Each thread works on its own word, so that the order does not matter.
    const std::string text = fmt::format(
        "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r30, %t, {}, %r30;\n\tst.shared.{} [%r30], %x0;\n\tatom.shared.{}.{} %y0, [%r30], %x1;\n\tld.shared.{} %y1, [%r30];\n"
        "\tst.global.{} [%out], %x0;\n\tred.global.{}.{} [%out], %x1;\n\tld.global.{} %y2, [%out];\n",
        bytes, stored, one.operation, type, stored, stored, one.operation, type, stored);
    const bool exchange = std::string_view(one.operation) == "exch";
    std::string body = text;
    if (exchange)
      body.replace(body.find("\tred.global"), body.find("\tld.global") - body.find("\tred.global"),
                   fmt::format("\tatom.global.exch.{} %y2, [%out], %x1;\n", type));
    cases.push_back(
        text_case(fmt::format("atom.{}.{}", one.operation, type), body, {type, type}, {width, width, width}, 64));
    if (type[0] == 'f') cases.back().closeness = Closeness::bits_or_nan;
    // In shared memory, the recorded GPU's driver (13.0) adds only the lower halves.
    if (type == "f16x2") cases.back().unlike = 1;
  }
  for (const char* type : {"b32", "b64", "b16"}) {
    const int width = width_of(type);
    cases.push_back(text_case(
        fmt::format("atom.cas.{}", type),
        fmt::format(
            "\tst.global.{0} [%out], %x0;\n\tatom.global.cas.{0} %y0, [%out], %x1, %x2;\n\tld.global.{0} %y1, [%out];\n\tatom.global.acq_rel.gpu.cas.{0} %y2, [%out], %y1, %x1;\n\tld.global.{0} %y3, [%out];\n",
            type),
        {type, type, type}, {width, width, width, width}, 96));
  }
  for (const auto& [count, type] :
       {std::pair{2, "f32"}, {4, "f32"}, {2, "noftz.f16"}, {4, "noftz.bf16"}, {2, "noftz.f16x2"}}) {
    const std::string element = std::string_view(type).starts_with("noftz.") ? std::string(type).substr(6) : type;
    const int width = width_of(element);
    const std::string opcode = fmt::format("add{}.v{}.{}", element == type ? "" : ".noftz", count, element);
    const bool four = count == 4;
    const std::string olds = four ? "{%y0, %y1, %y2, %y3}" : "{%y0, %y1}",
                      added = four ? "{%x1, %x0, %x0, %x1}" : "{%x1, %x1}";
    cases.push_back(text_case(
        "atom." + opcode,
        fmt::format(
            "\tmul.wide.u32 %rd1, %t, 8;\n\tadd.s64 %rd1, %rd1, %out;\n"  // 16 bytes for each thread
            "\tst.global.v{0}.b{1} [%rd1], {2};\n\tatom.global.{3} {4}, [%rd1], {5};\n\tred.global.{3} [%rd1], {5};\n"
            "\tld.global.v2.b{1} {{%y4, %y5}}, [%rd1+{6}];\n\tbar.sync 0;\n",
            count, width, four ? "{%x0, %x1, %x0, %x1}" : "{%x0, %x1}", opcode, olds, added, four ? 2 * width / 8 : 0) +
            (four ? "" : fmt::format("\tmov.b{0} %y2, %y0;\n\tmov.b{0} %y3, %y1;\n", width)),
        {element, element}, std::vector<int>(6, width), 96, {}, "sm_90"));
    cases.back().ptx.replace(cases.back().ptx.find("7.8"), 3, "8.1");
    cases.back().closeness = Closeness::bits_or_nan;
  }
  cases.push_back(text_case(
      "atom.add of a warp",
      "\tmov.u32 %r1, 0;\n\tst.shared.b32 [smem], %r1;\n\tbar.sync 0;\n\tred.shared.add.u32 [smem], %x0;\n\tbar.sync 0;\n\tld.shared.b32 %y0, [smem];\n",
      {"u32"}, {32}, 96));
}

void add_exchange_cases(std::vector<ConformanceCase>& cases) {
  for (const char* mode : {"up", "down", "bfly", "idx"}) {
    for (const int control : {0x1f, 0x0, 0x181f, 0x1c03, 0x100f, 0x1807, 0x1e1f}) {
      cases.push_back(text_case(
          fmt::format("shfl.sync.{} {:#x}", mode, control),
          fmt::format("\tshfl.sync.{0}.b32 %y0|%y1, %x0, %x1, {1}, -1;\n\tshfl.sync.{0}.b32 %y2, %x0, 3, {1}, -1;\n",
                      mode, control),
          {"b32", "shift"}, {32, 1, 32}));
    }
  }
  cases.push_back(
      text_case("shfl.sync of half a warp",
                "\tsetp.lt.u32 %p1, %t, 16;\n\tmov.u32 %y0, 0;\n\t@%p1 shfl.sync.bfly.b32 %y0, %x0, 1, 31, 0xffff;\n",
                {"b32"}, {32}));
  cases.push_back(text_case(
      "vote.sync",
      "\tvote.sync.all.pred %y0, %x0, -1;\n\tvote.sync.any.pred %y1, %x0, -1;\n\tvote.sync.uni.pred %y2, %x0, -1;\n\tvote.sync.ballot.b32 %y3, %x0, -1;\n"
      "\tvote.sync.all.pred %y4, !%x0, -1;\n\tsetp.lt.u32 %p1, %t, 99;\n\tvote.sync.uni.pred %y5, %p1, -1;\n\tvote.sync.all.pred %y6, %p1, -1;\n",
      {"pred"}, {1, 1, 1, 32, 1, 1, 1}));
  cases.push_back(text_case(
      "match.any.sync",
      "\tand.b32 %r1, %x0, 3;\n\tmatch.any.sync.b32 %y0, %r1, -1;\n\tand.b64 %rd1, %x1, 1;\n\tmatch.any.sync.b64 %y1, %rd1, -1;\n",
      {"b32", "b64"}, {32, 32}));
  cases.push_back(
      text_case("match.all.sync",
                "\tmatch.all.sync.b32 %y0|%y1, %x0, -1;\n\tmov.u32 %r1, 5;\n\tmatch.all.sync.b32 %y2|%y3, %r1, -1;\n",
                {"b32"}, {32, 1, 32, 1}));
  for (const char* operation :
       {"add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32"}) {
    cases.push_back(text_case(fmt::format("redux.sync.{}", operation),
                              fmt::format("\tredux.sync.{} %y0, %x0, -1;\n", operation), {"b32"}, {32}));
  }
  cases.push_back(text_case(
      "activemask.b32",
      "\tactivemask.b32 %y0;\n\tsetp.gt.u32 %p1, %t, 11;\n\tmov.u32 %y1, 0;\n\t@%p1 bra L;\n\tactivemask.b32 %y1;\n\tL:\n\tbar.warp.sync -1;\n",
      {}, {32, 32}));
}

void add_control_cases(std::vector<ConformanceCase>& cases) {
  cases.push_back(text_case(
      "a loop with a different count in each lane",
      "\tmov.u32 %y0, 0;\n\tand.b32 %r1, %t, 7;\n\tL1:\n\tadd.u32 %y0, %y0, %r1;\n\tsub.u32 %r1, %r1, 1;\n\tsetp.gt.s32 %p1, %r1, 0;\n\t@%p1 bra L1;\n\tadd.u32 %y0, %y0, 100;\n",
      {}, {32}, 64));
  cases.push_back(text_case(
      "nested branches",
      "\tmov.u32 %y0, 1;\n\tand.b32 %r1, %t, 1;\n\tand.b32 %r2, %t, 2;\n\tsetp.eq.u32 %p1, %r1, 0;\n\tsetp.eq.u32 %p2, %r2, 0;\n\t@%p1 bra A;\n\t@%p2 bra B;\n"
      "\tadd.u32 %y0, %y0, 2;\n\tbra.uni C;\n\tB:\n\tadd.u32 %y0, %y0, 4;\n\tC:\n\tmul.lo.u32 %y0, %y0, 3;\n\tbra.uni D;\n\tA:\n\t@!%p2 bra D;\n\tadd.u32 %y0, %y0, 50;\n\tD:\n\tadd.u32 %y0, %y0, 1000;\n",
      {}, {32}));
  cases.push_back(text_case(
      "brx.idx",
      "\tand.b32 %r1, %t, 3;\n\tmov.u32 %y0, 7;\n\tts: .branchtargets A, B, C, B;\n\tbrx.idx %r1, ts;\n\tA:\n\tadd.u32 %y0, %y0, 1;\n\tB:\n\tadd.u32 %y0, %y0, 10;\n\tC:\n\tadd.u32 %y0, %y0, 100;\n",
      {}, {32}));
  cases.push_back(text_case(
      "lanes that end early",
      "\tmov.u64 %rd1, 77;\n\tst.global.b64 [%out], %rd1;\n\tsetp.lt.u32 %p1, %t, 9;\n\t@%p1 exit;\n\tactivemask.b32 %y0;\n",
      {}, {32}));
  cases.push_back(text_case(
      "bar.red",
      "\tbar.red.popc.u32 %y0, 0, %x0;\n\tbar.red.and.pred %y1, 0, %x0;\n\tbar.red.or.pred %y2, 0, !%x0;\n\tsetp.lt.u32 %p1, %t, 999;\n\tbar.red.and.pred %y3, 1, %n, %p1;\n",
      {"pred"}, {32, 1, 1, 1}, 96));
  cases.push_back(text_case(
      "named barriers",
      "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r31, %t, 4, %r30;\n\tst.shared.b32 [%r31], %x0;\n\tsetp.lt.u32 %p1, %t, 32;\n\tmov.u32 %y0, 5;\n\t@%p1 bra P;\n"
      "\tbar.sync 1, 96;\n\txor.b32 %r1, %t, 33;\n\tld.shared.b32 %y0, [smem];\n\tbra.uni E;\n\tP:\n\tbar.arrive 1, 96;\n\tE:\n\tbarrier.sync.aligned 2;\n",
      {"b32"}, {32}, 96));
}

// One tile: A [16][K], B [K][8] in fragments, C and D.
ConformanceCase mma_case(const std::string& type, int k, bool edges) {
  const int a_registers = k / 4, b_registers = k / 8;
  std::string body = "\tmma.sync.aligned.m16n8k" + std::to_string(k) + ".row.col.f32." + type + "." + type +
                     ".f32 {%y0, %y1, %y2, %y3}, {";
  for (int i = 0; i < a_registers; ++i) body += fmt::format("{}%x{}", i == 0 ? "" : ", ", i);
  body += "}, {";
  for (int i = 0; i < b_registers; ++i) body += fmt::format("{}%x{}", i == 0 ? "" : ", ", a_registers + i);
  body += "}, {";
  for (int i = 0; i < 4; ++i) body += fmt::format("{}%x{}", i == 0 ? "" : ", ", a_registers + b_registers + i);
  body += "};\n";
  std::vector<std::string> sources(static_cast<std::size_t>(a_registers + b_registers), type + "x2");
  sources.insert(sources.end(), 4, "f32");
  ConformanceCase one =
      text_case(fmt::format("mma.m16n8k{}.{}{}", k, type, edges ? " edges" : ""), body, sources, {32, 32, 32, 32});
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < one.input.size(); ++i) {
    const bool accumulator = i >= static_cast<std::size_t>(a_registers + b_registers) * 32;
    if (accumulator) {
      one.input[i] = bits(normal(random));
    } else {
      // Random numbers near 1; in the edge case small integers, whose sums are exact, together with a NaN and infinities.
      const auto element = [&]() -> std::uint64_t {
        if (!edges) {
          const float x = normal(random);
          return type == "bf16"
                     ? bits(x) >> 16
                     : static_cast<std::uint64_t>((bits(x) >> 16 & 0x8000) |
                                                  (((bits(std::abs(x) + 0.0625f) >> 13) - (112u << 10)) & 0x7fff));
        }
        const int n = static_cast<int>(random() % 7) - 3;
        const float x = static_cast<float>(n);
        if (i == 37 && type == "f16") return 0x7e00;
        if (i == 70) return type == "f16" ? 0x7c00 : 0x7f80;
        return type == "bf16" ? bits(x) >> 16
                              : (n == 0 ? 0 : (bits(x) >> 16 & 0x8000) | ((bits(std::abs(x)) >> 13) - (112u << 10)));
      };
      one.input[i] = element() | element() << 16;
    }
    if (edges && accumulator) one.input[i] = bits(static_cast<float>(static_cast<int>(random() % 100)));
  }
  one.closeness = edges ? Closeness::bits_or_nan : Closeness::float_absolute;
  one.bound = 4e-6;
  return one;
}

// A small integer as an element of a matrix.
std::uint64_t element_of(const std::string& type, int n) {
  const std::uint64_t f32 = bits(static_cast<float>(n));
  if (type == "tf32") return f32;
  if (type == "bf16") return f32 >> 16;
  if (type == "f16") return n == 0 ? 0 : (f32 >> 16 & 0x8000) | (((f32 & 0x7fffffff) >> 13) - (112u << 10));
  return static_cast<std::uint64_t>(n) & ((std::uint64_t{1} << (type[1] - '0')) - 1);  // s8, u8, s4, u4
}

// Operands of a tensor-core instruction: `inputs` registers of small integers of a type, then accumulators, and then
// metadata that select two elements of each chunk, the lower one first.
Words small_integers(const std::string& type, std::size_t inputs, const std::string& c_type, std::size_t accumulators,
                     bool metadata) {
  std::mt19937_64 random(7);
  const int width = type == "tf32" ? 32 : type.ends_with("16") ? 16 : type[1] - '0';
  const bool is_signed = type[0] != 'u';
  Words words;
  for (std::size_t i = 0; i < inputs * 32; ++i) {
    std::uint64_t word = 0;
    for (int at = 0; at < 32; at += width)
      word |= element_of(type, static_cast<int>(random() % 7) - (is_signed ? 3 : 0)) << at;
    words.push_back(word);
  }
  for (std::size_t i = 0; i < accumulators * 32; ++i) {
    const int n = static_cast<int>(random() % 100);
    words.push_back(c_type == "f16"   ? element_of("f16", n) | element_of("f16", n / 2) << 16
                    : c_type == "f32" ? bits(static_cast<float>(n))
                                      : static_cast<std::uint64_t>(n));
  }
  for (int lane = 0; metadata && lane < 32; ++lane) {
    constexpr std::uint64_t kPairs[] = {0b0100, 0b1110, 0b1000, 0b1100, 0b1001, 0b1101};
    std::uint64_t word = 0;
    for (int at = 0; at < 32; at += 4) word |= kPairs[random() % (type == "tf32" ? 2 : 6)] << at;
    words.push_back(word);
  }
  return words;
}

std::string list_of(const char* name, std::size_t first, std::size_t count) {
  std::string list;
  for (std::size_t i = 0; i < count; ++i) list += fmt::format("{}{}{}", i == 0 ? "{" : ", ", name, first + i);
  return list + "}";
}

ConformanceCase sparse_case(const std::string& type, int k, int selector, const std::string& accumulator) {
  const auto inputs = static_cast<std::size_t>(type == "tf32"         ? k / 4
                                               : type.ends_with("16") ? k / 8
                                               : type[1] == '8'       ? k / 16
                                                                      : k / 32);
  const std::size_t accumulators = accumulator == "f16" ? 2 : 4;
  const std::string name = fmt::format("mma.sp.m16n8k{}.{}.{} {}", k, accumulator, type, selector);
  const std::vector<std::string> sources(2 * inputs + accumulators + 1, "b32");
  ConformanceCase one =
      text_case(name,
                fmt::format("\tmma.sp.sync.aligned.m16n8k{}.row.col.{}.{}.{}.{} {}, {}, {}, {}, %x{}, {};\n", k,
                            accumulator, type, type, accumulator, list_of("%y", 0, accumulators),
                            list_of("%x", 0, inputs), list_of("%x", inputs, inputs),
                            list_of("%x", 2 * inputs, accumulators), 2 * inputs + accumulators, selector),
                sources, std::vector<int>(accumulators, 32));
  one.input = small_integers(type, 2 * inputs, accumulator, accumulators, true);
  one.late = true;
  return one;
}

ConformanceCase quad_case(const std::string& layouts, const std::string& d_type, const std::string& c_type) {
  const std::size_t results = d_type == "f16" ? 4 : 8, accumulators = c_type == "f16" ? 4 : 8;
  ConformanceCase one =
      text_case(fmt::format("mma.m8n8k4.{}.{}.{}", layouts, d_type, c_type),
                fmt::format("\tmma.sync.aligned.m8n8k4.{}.{}.f16.f16.{} {}, {{%x0, %x1}}, {{%x2, %x3}}, {};\n", layouts,
                            d_type, c_type, list_of("%y", 0, results), list_of("%x", 4, accumulators)),
                std::vector<std::string>(4 + accumulators, "b32"), std::vector<int>(results, 32));
  one.input = small_integers("f16", 4, c_type, accumulators, false);
  one.late = true;
  return one;
}

void add_late_matrix_cases(std::vector<ConformanceCase>& cases) {
  for (const char* type : {"f16", "bf16", "tf32"}) {
    const int k = type[0] == 't' ? 8 : 16;
    for (int selector = 0; selector < 4; ++selector) cases.push_back(sparse_case(type, k, selector, "f32"));
    for (int selector = 0; selector < 2; ++selector) cases.push_back(sparse_case(type, 2 * k, selector, "f32"));
  }
  for (const int k : {16, 32}) cases.push_back(sparse_case("f16", k, 1, "f16"));
  for (const char* type : {"s8", "u8", "s4", "u4"}) {
    const int k = type[1] == '8' ? 32 : 64;
    for (int selector = 0; selector < 2; ++selector) cases.push_back(sparse_case(type, k, selector, "s32"));
    cases.push_back(sparse_case(type, 2 * k, 0, "s32"));
  }
  for (const char* layouts : {"row.row", "row.col", "col.row", "col.col"}) {
    cases.push_back(quad_case(layouts, "f16", "f16"));
    cases.push_back(quad_case(layouts, "f32", "f16"));
    cases.push_back(quad_case(layouts, "f32", "f32"));
  }
}

void add_wide_cases(std::vector<ConformanceCase>& cases) {
  const std::string registers = "\t.reg .b128 %q<9>;\n";
  const std::string address = "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r31, %t, 16, %r30;\n";
  const auto add = [&](const std::string& name, const std::string& body, const std::string& target) {
    ConformanceCase one = text_case(name, body, {"b64", "b64"}, {64, 64, 64, 64}, 32, registers, target);
    const std::string version = ".version 7.8";
    one.ptx.replace(one.ptx.find(version), version.size(), ".version 8.4");
    one.late = true;
    cases.push_back(one);
  };
  add("ld.b128, st.b128, mov.b128",
      address +
          "\tmov.b128 %q1, {%x0, %x1};\n\tst.shared.b128 [%r31], %q1;\n\tld.shared.v2.b64 {%y0, %y1}, [%r31];\n"
          "\tst.shared.v2.b64 [%r31], {%x1, %x0};\n\tld.shared.b128 %q2, [%r31];\n\tmov.b128 %q3, %q2;\n"
          "\tmov.b128 {%y2, %y3}, %q3;\n",
      "sm_80");
  // The even lanes find the value with which they compare, the odd ones do not.
  add("atom.b128",
      address +
          "\tst.shared.v2.b64 [%r31], {%x0, %x1};\n\tand.b32 %r1, %t, 1;\n\tcvt.u64.u32 %rd1, %r1;\n"
          "\txor.b64 %rd1, %rd1, %x1;\n\tmov.b128 %q1, {%x0, %rd1};\n\tmov.b128 %q2, {%x1, %x0};\n"
          "\tatom.shared.cas.b128 %q3, [%r31], %q1, %q2;\n\tmov.b128 {%y0, %rd2}, %q3;\n"
          "\tatom.shared.exch.b128 %q4, [%r31], %q1;\n\tmov.b128 {%y1, %y2}, %q4;\n"
          "\tld.shared.b64 %y3, [%r31+8];\n\txor.b64 %y0, %y0, %rd2;\n",
      "sm_90");
}

void add_matrix_cases(std::vector<ConformanceCase>& cases) {
  for (const int k : {16, 8}) {
    for (const char* type : {"f16", "bf16"}) {
      cases.push_back(mma_case(type, k, false));
      cases.push_back(mma_case(type, k, true));
    }
  }
  // 32 rows of 16 bytes; lane i points to row 5 i + 3 of them.
  const std::string fill =
      "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r31, %t, 16, %r30;\n\tst.shared.v2.b64 [%r31], {%x0, %x1};\n\tbar.sync 0;\n"
      "\tmad.lo.u32 %r1, %t, 5, 3;\n\tand.b32 %r1, %r1, 31;\n\tmad.lo.u32 %r1, %r1, 16, %r30;\n";
  for (const char* trans : {"", ".trans"}) {
    cases.push_back(
        text_case(fmt::format("ldmatrix.x1{}", trans),
                  fill + fmt::format("\tldmatrix.sync.aligned.m8n8.x1{}.shared.b16 {{%y0}}, [%r1];\n", trans),
                  {"b64", "b64"}, {32}));
    cases.push_back(
        text_case(fmt::format("ldmatrix.x2{}", trans),
                  fill + fmt::format("\tldmatrix.sync.aligned.m8n8.x2{}.shared.b16 {{%y0, %y1}}, [%r1];\n", trans),
                  {"b64", "b64"}, {32, 32}));
    cases.push_back(text_case(
        fmt::format("ldmatrix.x4{}", trans),
        fill + fmt::format("\tldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{%y0, %y1, %y2, %y3}}, [%r1+0];\n", trans),
        {"b64", "b64"}, {32, 32, 32, 32}));
  }
}

void add_copy_cases(std::vector<ConformanceCase>& cases) {
  // From the input, 16 bytes apart, to shared memory and back to the results.
  const std::string start =
      "\tmov.u32 %r30, smem;\n\tmad.lo.u32 %r31, %t, 32, %r30;\n\tmov.b64 %rd9, -1;\n\tst.shared.v2.b64 [%r31], {%rd9, %rd9};\n\tst.shared.v2.b64 [%r31+16], {%rd9, %rd9};\n"
      "\tld.param.u64 %rd1, [input];\n\tcvta.to.global.u64 %rd1, %rd1;\n\tmad.wide.u32 %rd1, %t, 16, %rd1;\n";
  const std::string end = "\tld.shared.v2.b64 {%y0, %y1}, [%r31];\n\tld.shared.b64 %y2, [%r31+16];\n";
  const std::vector<std::string> sources = {"b64", "b64"};
  for (const int bytes : {4, 8, 16}) {
    cases.push_back(text_case(
        fmt::format("cp.async.ca {}", bytes),
        start +
            fmt::format(
                "\tcp.async.ca.shared.global [%r31], [%rd1], {};\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;\n",
                bytes) +
            end,
        sources, {64, 64, 64}));
    cases.push_back(text_case(
        fmt::format("cp.async.ca {} source size", bytes),
        start +
            fmt::format(
                "\tand.b32 %r2, %t, {};\n\tcp.async.ca.shared.global [%r31], [%rd1], {}, %r2;\n\tcp.async.wait_all;\n",
                bytes - 1, bytes) +
            end,
        sources, {64, 64, 64}));
  }
  cases.push_back(
      text_case("cp.async.cg 16",
                start + "\tcp.async.cg.shared.global.L2::128B [%r31+16], [%rd1], 16;\n\tcp.async.wait_all;\n" + end,
                sources, {64, 64, 64}));
  cases.push_back(text_case(
      "cp.async groups",
      start +
          "\tcp.async.cg.shared.global [%r31], [%rd1], 16;\n\tcp.async.commit_group;\n\tcp.async.commit_group;\n\tcp.async.cg.shared.global [%r31+16], [%rd1], 16;\n"
          "\tcp.async.commit_group;\n\tcp.async.wait_group 1;\n\tld.shared.v2.b64 {%y0, %y1}, [%r31];\n\tcp.async.wait_group 0;\n\tld.shared.b64 %y2, [%r31+16];\n",
      sources, {64, 64, 64}));
  cases.push_back(text_case(
      "cp.async.mbarrier.arrive.noinc",
      start +
          "\tsetp.ne.u32 %p1, %t, 0;\n\t@%p1 bra S;\n\tmbarrier.init.shared.b64 [smem+4096], 64;\n\tS:\n\tbar.sync 0;\n\tcp.async.cg.shared.global [%r31], [%rd1], 16;\n"
          "\tcp.async.mbarrier.arrive.noinc.shared.b64 [smem+4096];\n\tmbarrier.arrive.shared.b64 %rd5, [smem+4096];\n\tW:\n\tmbarrier.test_wait.shared.b64 %p2, [smem+4096], %rd5;\n\t@!%p2 bra W;\n" +
          end,
      sources, {64, 64, 64}));
  cases.push_back(text_case(
      "cp.async.mbarrier.arrive",
      start +
          "\tsetp.ne.u32 %p1, %t, 0;\n\t@%p1 bra S;\n\tmbarrier.init.shared.b64 [smem+4096], 32;\n\tS:\n\tbar.sync 0;\n\tcp.async.ca.shared.global [%r31], [%rd1], 8;\n"
          "\tcp.async.mbarrier.arrive.shared.b64 [smem+4096];\n\tmbarrier.arrive.shared.b64 %rd5, [smem+4096];\n\tW:\n\tmbarrier.test_wait.parity.shared.b64 %p2, [smem+4096], 0;\n\t@!%p2 bra W;\n" +
          end,
      sources, {64, 64, 64}));
  cases.push_back(text_case(
      "mbarrier phases",
      "\tsetp.ne.u32 %p1, %t, 0;\n\t@%p1 bra S;\n\tmbarrier.init.shared.b64 [smem], 96;\n\tS:\n\tbar.sync 0;\n\tmov.u32 %y0, 0;\n\tmov.u32 %r1, 0;\n"
      "\tL:\n\tmbarrier.arrive.shared.b64 %rd5, [smem];\n\tW:\n\tmbarrier.test_wait.shared.b64 %p2, [smem], %rd5;\n\t@!%p2 bra W;\n\tmbarrier.test_wait.parity.shared.b64 %p3, [smem], %r1;\n"
      "\tselp.u32 %r2, 1, 0, %p3;\n\tadd.u32 %y0, %y0, %r2;\n\tadd.u32 %r1, %r1, 1;\n\tbar.sync 0;\n\tsetp.lt.u32 %p4, %r1, 5;\n\t@%p4 bra L;\n\tmov.u32 %y1, %r1;\n"
      "\tsetp.eq.u32 %p1, %t, 0;\n\t@!%p1 bra E;\n\tmbarrier.arrive.noComplete.shared.b64 %rd6, [smem], 3;\n\tmbarrier.pending_count.b64 %y2, %rd6;\n\tmbarrier.inval.shared.b64 [smem];\n\tE:\n\tmov.u32 %y2, 4;\n",
      {}, {32, 32, 32}, 96));
  cases.push_back(text_case(
      "mbarrier.pending_count",
      "\tsetp.ne.u32 %p1, %t, 0;\n\t@%p1 bra S;\n\tmbarrier.init.shared.b64 [smem], 40;\n\tmbarrier.arrive.noComplete.shared.b64 %rd5, [smem], 7;\n\tmbarrier.pending_count.b64 %r1, %rd5;\n\tst.shared.b32 [smem+16], %r1;\n"
      "\tmbarrier.arrive.shared.b64 %rd5, [smem];\n\tmbarrier.pending_count.b64 %r1, %rd5;\n\tst.shared.b32 [smem+20], %r1;\n\tS:\n\tbar.sync 0;\n\tld.shared.v2.b32 {%y0, %y1}, [smem+16];\n",
      {}, {32, 32}, 64));
}

}  // namespace

bool is_internal(const std::string& opcode) { return opcode[0] == '%' || opcode == "mov.pred" || opcode == "lop3.b32"; }

std::vector<ConformanceCase> conformance_cases() {
  std::vector<ConformanceCase> cases;
  for (const std::string& opcode : lane_table().opcodes()) {
    const bool predicates = opcode.size() > 5 && opcode.substr(opcode.size() - 5) == ".pred";
    if (!is_internal(opcode) && !predicates) cases.push_back(lane_case(opcode, *lane_table().find(opcode)));
  }
  for (const char* opcode : {"cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32"})
    cases.push_back(float8_case(opcode));
  add_logic_cases(cases);
  add_carry_cases(cases);
  add_move_cases(cases);
  add_memory_cases(cases);
  add_atomic_cases(cases);
  add_exchange_cases(cases);
  add_control_cases(cases);
  add_matrix_cases(cases);
  add_late_matrix_cases(cases);
  add_wide_cases(cases);
  add_copy_cases(cases);
  for (ConformanceCase& one : hopper_cases()) cases.push_back(std::move(one));
  return cases;
}

}  // namespace flash_ladder::emulator
