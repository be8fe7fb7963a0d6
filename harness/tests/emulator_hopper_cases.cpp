// Cases of the conformance suite for features of sm_90a only: wgmma, TMA, mbarriers that count bytes, and so on. The
// summands are small integers, so that every order of summation gives the same bits.

#include <fmt/format.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "emulator_cases.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kThreads = 128;

// `body` may use %t = tid, %in, %out, %smem = the address of 40,960 bytes of shared memory at a multiple of 1,024.
std::string text_of(const std::string& body, bool has_map = false, unsigned threads = kThreads, unsigned ctas = 1) {
  return fmt::format(
      ".version 8.1\n.target sm_90a\n.address_size 64\n"
      ".visible .entry test(.param .u64 input, .param .u64 output{})\n.maxntid {}, 1, 1\n.minnctapersm 1\n{}{{\n"
      ".reg .b16 %h<20>;\n.reg .b32 %r<200>;\n.reg .b32 %d<128>;\n.reg .b64 %rd<40>;\n.reg .pred %p<10>;\n"
      ".reg .b32 %t, %smem;\n.reg .b64 %in, %out, %map;\n"
      ".shared .align 1024 .b8 smem[40960];\n"
      "mov.u32 %t, %tid.x;\nmov.u32 %smem, smem;\nld.param.u64 %in, [input];\ncvta.to.global.u64 %in, %in;\n"
      "ld.param.u64 %out, [output];\ncvta.to.global.u64 %out, %out;\n{}{}ret;\n}}\n",
      has_map ? ", .param .align 64 .b8 map[128]" : "", threads,
      ctas > 1 ? fmt::format(".explicitcluster\n.reqnctapercluster {}, 1, 1\n", ctas) : "",
      has_map ? "mov.b64 %rd39, map;\ncvta.param.u64 %map, %rd39;\n" : "", body);
}

// Writes this many bytes at the start of shared memory; `get` loads the values of byte %r190 and the next 15 into %r192
// to %r195.
std::string write_shared(int bytes, const std::string& get) {
  return fmt::format(
      "shl.b32 %r190, %t, 4;\nFILL:\n{}add.u32 %r191, %r190, %smem;\n"
      "st.shared.v4.b32 [%r191], {{%r192, %r193, %r194, %r195}};\n"
      "add.u32 %r190, %r190, {};\nsetp.lt.u32 %p9, %r190, {};\n@%p9 bra FILL;\n",
      get, 16 * kThreads, bytes);
}
// Copies this many bytes of the input to the start of shared memory.
std::string fill(int bytes) {
  return write_shared(bytes,
                      "cvt.u64.u32 %rd30, %r190;\nadd.u64 %rd30, %rd30, %in;\n"
                      "ld.global.v4.b32 {%r192, %r193, %r194, %r195}, [%rd30];\n");
}
// For memory that TMA writes only in part.
std::string zero(int bytes) {
  return write_shared(bytes, "mov.b32 %r192, 0;\nmov.b32 %r193, 0;\nmov.b32 %r194, 0;\nmov.b32 %r195, 0;\n") +
         "fence.proxy.async.shared::cta;\n";
}
// Copies this many bytes at the start of shared memory to the output.
std::string show(int bytes) {
  return fmt::format(
      "shl.b32 %r190, %t, 3;\nsetp.ge.u32 %p9, %r190, {1};\n@%p9 bra SHOWN;\nSHOW:\ncvt.u64.u32 %rd30, %r190;\nadd.u64 %rd30, %rd30, %out;\nadd.u32 %r191, %r190, %smem;\n"
      "ld.shared.b64 %rd31, [%r191];\nst.global.b64 [%rd30], %rd31;\n"
      "add.u32 %r190, %r190, {0};\nsetp.lt.u32 %p9, %r190, {1};\n@%p9 bra SHOW;\nSHOWN:\n",
      8 * kThreads, bytes);
}

// An mbarrier after the other shared memory, for one arrival.
const std::string kBarrier =
    "setp.ne.u32 %p1, %t, 0;\n@%p1 bra READY;\nmbarrier.init.shared::cta.b64 [%smem+40952], 1;\n"
    "fence.mbarrier_init.release.cluster;\nREADY:\nbar.sync 0;\n";
const std::string kWait = "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%smem+40952], 0;\n@!%p2 bra WAIT;\n";

std::uint64_t element(const std::string& type, int value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (type == "tf32") return bits;
  if (type == "bf16") return bits >> 16;
  const std::uint32_t sign = bits >> 31, exponent = (bits >> 23) & 0xff;
  if (value == 0) return 0;
  if (type == "f16") return sign << 15 | (exponent - 127 + 15) << 10 | (bits >> 13 & 0x3ff);
  if (type == "e4m3") return sign << 7 | (exponent - 127 + 7) << 3 | (bits >> 20 & 7);
  return sign << 7 | (exponent - 127 + 15) << 2 | (bits >> 21 & 3);  // e5m2
}

// Small integers of one type, and from byte `second_from` on of another.
std::vector<std::uint64_t> operands(const std::string& first, const std::string& second, int second_from, int bytes) {
  std::mt19937 random(7);
  std::vector<std::uint64_t> words;
  for (int at = 0; at < bytes; at += 8) {
    const std::string& type = at < second_from ? first : second;
    const int bits = type == "tf32" ? 32 : type[0] == 'e' ? 8 : 16;
    std::uint64_t word = 0;
    for (int shift = 0; shift < 64; shift += bits) word |= element(type, static_cast<int>(random() % 7) - 3) << shift;
    words.push_back(word);
  }
  return words;
}

// Numbers of 8 bits of any size, but no NaN and no infinity. Their sums depend on how many bits a tensor core keeps.
std::vector<std::uint64_t> wide_operands(int bytes) {
  std::mt19937 random(11);
  std::vector<std::uint64_t> words;
  for (int at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    for (int shift = 0; shift < 64; shift += 8) {
      const std::uint64_t sign = random() & 0x80;
      word |= (sign | random() % 0x7b) << shift;
    }
    words.push_back(word);
  }
  return words;
}

struct Operand {
  int swizzle;  // bits 62 and 63 of its descriptor
  bool transposed = false;
  int first_row =
      0;  // where it begins, in rows of 128 bytes after a multiple of 1,024; its pattern begins there: base offset
};

constexpr int kSpans[] = {16, 128, 64, 32};  // bytes, by swizzle

std::uint64_t descriptor_bits(const Operand& operand) {
  const int span = kSpans[operand.swizzle];
  // Groups of eight rows follow one another; for transposed operands, the eight k, and after all 16 of them the next
  // columns.
  const int stride = operand.swizzle == 0 ? 256 : 8 * span;
  const int leading = operand.swizzle == 0 ? 128 : operand.transposed ? 16 * span : 16;
  return static_cast<std::uint64_t>(leading >> 4) << 16 | static_cast<std::uint64_t>(stride >> 4) << 32 |
         static_cast<std::uint64_t>(operand.first_row) << 49 | static_cast<std::uint64_t>(operand.swizzle) << 62;
}

struct WgmmaCase {
  int n;
  std::string d = "f32", a = "f16", b = "f16";
  bool a_in_registers = false;
  Operand A{1}, B{1};
  bool accumulates = true;
  int scale_a = 1, scale_b = 1;
  bool wide = false;  // wide_operands()
};

std::string layout_of(const Operand& operand) {
  return std::string(operand.transposed ? "t" : "") +
         (operand.first_row == 0 ? "" : fmt::format(" from row {}", operand.first_row));
}

ConformanceCase wgmma_case(const WgmmaCase& one) {
  const int k = one.a == "tf32" ? 8 : one.a[0] == 'e' ? 32 : 16;
  const bool is_16_bits = k == 16;
  const int registers = one.n / (one.d == "f16" ? 4 : 2);
  constexpr int kB = 8192, kBytes = 40960;
  std::string body = fill(kBytes) + "fence.proxy.async.shared::cta;\nbar.sync 0;\n";
  body += fmt::format(
      "shr.u32 %r1, %smem, 4;\ncvt.u64.u32 %rd1, %r1;\nor.b64 %rd2, %rd1, {};\nadd.u64 %rd1, %rd1, {};\nor.b64 %rd3, %rd1, {};\n"
      "setp.{}.u32 %p1, %t, %t;\nmad.wide.u32 %rd4, %t, 16, %in;\nld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd4];\n",
      descriptor_bits(one.A) + static_cast<std::uint64_t>(one.A.first_row * 128 >> 4),
      (kB + one.B.first_row * 128) >> 4, descriptor_bits(one.B), one.accumulates ? "eq" : "ne");
  std::string names;
  for (int i = 0; i < registers; ++i) {
    names += fmt::format("{}%d{}", i == 0 ? "" : ", ", i);
    body += fmt::format("and.b32 %r6, %t, {};\nadd.u32 %r6, %r6, {};\n", 7, i % 5);
    body += one.d == "f16" ? fmt::format("cvt.rn.f16.u32 %h1, %r6;\nmov.b32 %d{}, {{%h1, %h1}};\n", i)
                           : fmt::format("cvt.rn.f32.u32 %d{}, %r6;\n", i);
  }
  body += fmt::format(
      "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{} {{{}}}, {}, %rd3, %p1, {}, {}", one.n,
      k, one.d, one.a, one.b, names, one.a_in_registers ? "{%r2, %r3, %r4, %r5}" : "%rd2", one.scale_a, one.scale_b);
  if (is_16_bits && !one.a_in_registers) body += one.A.transposed ? ", 1" : ", 0";
  if (is_16_bits) body += one.B.transposed ? ", 1" : ", 0";
  body += ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
  body += "mad.wide.u32 %rd5, %t, 8, %out;\n";
  for (int i = 0; i < registers; ++i) body += fmt::format("st.global.b32 [%rd5+{}], %d{};\n", i * 8 * kThreads, i);

  ConformanceCase result;
  result.name = fmt::format("wgmma m64n{}k{} {}.{}.{} A {}{} B {}{}{}{}{}", one.n, k, one.d, one.a, one.b,
                            one.a_in_registers ? "registers" : std::to_string(one.A.swizzle), layout_of(one.A),
                            one.B.swizzle, layout_of(one.B), one.accumulates ? "" : " anew",
                            one.scale_a * one.scale_b < 0 ? " negated" : "", one.wide ? " wide" : "");
  result.ptx = text_of(body);
  result.threads = kThreads;
  result.outputs = static_cast<unsigned>(registers);
  result.input = one.wide ? wide_operands(kBytes) : operands(one.a, one.b, kB, kBytes);
  result.hopper = true;
  return result;
}

void add_wgmma_cases(std::vector<ConformanceCase>& cases) {
  for (const int n : {8, 16, 24, 64, 128, 192, 256}) cases.push_back(wgmma_case({.n = n}));
  for (const int swizzle : {0, 2, 3}) cases.push_back(wgmma_case({.n = 64, .A = {swizzle}, .B = {swizzle}}));
  for (const int swizzle : {0, 1, 2, 3}) {
    cases.push_back(wgmma_case({.n = 128, .B = {swizzle, true}}));
    cases.push_back(wgmma_case({.n = 64, .A = {swizzle, true}, .B = {1, true}}));
  }
  cases.push_back(wgmma_case({.n = 256, .a_in_registers = true, .B = {1, true}}));
  cases.push_back(wgmma_case({.n = 40, .a = "bf16", .b = "bf16"}));
  cases.push_back(wgmma_case({.n = 128, .a = "bf16", .b = "bf16", .a_in_registers = true, .accumulates = false}));
  cases.push_back(wgmma_case({.n = 64, .accumulates = false, .scale_a = -1}));
  cases.push_back(wgmma_case({.n = 64, .scale_b = -1}));
  cases.push_back(wgmma_case({.n = 128, .d = "f16"}));
  cases.push_back(wgmma_case({.n = 64, .a = "tf32", .b = "tf32"}));
  cases.push_back(wgmma_case({.n = 32, .a = "tf32", .b = "tf32", .a_in_registers = true}));
  for (const char* a : {"e4m3", "e5m2"}) {
    for (const char* b : {"e4m3", "e5m2"}) cases.push_back(wgmma_case({.n = 64, .a = a, .b = b}));
    cases.push_back(wgmma_case({.n = 128, .a = a, .b = "e4m3", .a_in_registers = true}));
  }
  cases.push_back(wgmma_case({.n = 64, .d = "f16", .a = "e4m3", .b = "e4m3"}));
  cases.push_back(wgmma_case({.n = 136, .a = "e4m3", .b = "e4m3", .a_in_registers = true}));
  cases.push_back(wgmma_case({.n = 64, .a = "e4m3", .b = "e4m3", .wide = true}));
  cases.push_back(wgmma_case({.n = 8, .a = "e5m2", .b = "e4m3", .accumulates = false, .wide = true}));
  // Patterns that do not begin at a multiple of their size: base offsets.
  for (const int row : {1, 4, 7}) {
    cases.push_back(wgmma_case({.n = 32, .A = {1, false, row}}));
    cases.push_back(wgmma_case({.n = 64, .B = {1, false, row}}));
  }
  cases.push_back(wgmma_case({.n = 64, .A = {1, false, 3}, .B = {1, true, 5}}));
  cases.push_back(wgmma_case({.n = 64, .A = {2, false, 1}, .B = {2, false, 3}}));
}

// Numbers that are all different, as 64-bit words.
std::vector<std::uint64_t> numbered(int bytes, int element_bytes) {
  std::vector<std::uint64_t> words;
  for (int at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; i += element_bytes) {
      const auto number = static_cast<std::uint64_t>((at + i) / element_bytes + 1);
      word |= (element_bytes == 1 ? number & 0xff : number) << (8 * i);
    }
    words.push_back(word);
  }
  return words;
}

struct Box {
  std::vector<std::uint64_t> sizes, strides;  // strides in bytes, from the second dimension on
  std::vector<std::uint32_t> box;
  std::vector<int> at;  // coordinates
  bool fills_with_nan = false;
};

TensorMap map_of(const Box& box, int element_bytes, Swizzle swizzle) {
  TensorMap map{.dimensions = static_cast<int>(box.sizes.size()),
                .element_bytes = element_bytes,
                .swizzle = swizzle,
                .fills_with_nan = box.fills_with_nan};
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    map.sizes[i] = box.sizes[i];
    map.box[i] = box.box[i];
    map.strides[i] = i == 0 ? static_cast<std::uint64_t>(element_bytes) : box.strides[i - 1];
  }
  return map;
}

std::string coordinates(const Box& box) {
  std::string text;
  for (std::size_t i = 0; i < box.at.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", box.at[i]);
  return text;
}

ConformanceCase tensor_case(const std::string& name, const Box& box, bool loads, int element_bytes, Swizzle swizzle) {
  const TensorMap map = map_of(box, element_bytes, swizzle);
  const int bytes = static_cast<int>(map.box_bytes());
  const int extent = static_cast<int>(map.box_bytes() / map.row_bytes() * map.row_pitch());
  std::uint64_t whole = box.sizes[0] * static_cast<std::uint64_t>(element_bytes);
  for (std::size_t i = 1; i < box.sizes.size(); ++i) whole = std::max(whole, box.sizes[i] * box.strides[i - 1]);
  const int tensor_bytes = static_cast<int>((whole + 1023) / 1024 * 1024);
  ConformanceCase one;
  one.name = fmt::format("cp.async.bulk.tensor {} {}", loads ? "load" : "store", name);
  one.threads = kThreads;
  one.hopper = true;
  one.map = map;
  one.map_is_of_output = !loads;
  const std::string at = fmt::format("[%map, {{{}}}]", coordinates(box));
  if (loads) {
    one.input = numbered(tensor_bytes, element_bytes);
    one.outputs = static_cast<unsigned>((extent / 8 + 127) / 128);
    one.ptx = text_of(
        zero(extent) + kBarrier +
            fmt::format(
                "@%p1 bra WAIT;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem+40952], {};\n"
                "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], {}, [%smem+40952];\n",
                bytes, map.dimensions, at) +
            kWait + show(extent),
        true);
  } else {
    one.input = numbered(std::max(extent, 2048), element_bytes);
    one.outputs = static_cast<unsigned>(tensor_bytes / 1024);
    one.ptx = text_of(
        fill(std::max(extent, 2048)) +
            fmt::format(
                "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p1, %t, 0;\n@%p1 bra END;\n"
                "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group {}, [%smem];\ncp.async.bulk.commit_group;\n"
                "cp.async.bulk.wait_group 0;\nEND:\n",
                map.dimensions, at),
        true);
  }
  return one;
}

void add_tensor_cases(std::vector<ConformanceCase>& cases) {
  const Box of_1{{700}, {}, {256}, {40}};
  const Box of_2{{64, 40}, {144}, {64, 16}, {0, 5}};
  const Box of_3{{64, 6, 5}, {128, 1024}, {32, 4, 3}, {16, 1, 2}};
  const Box of_4{{32, 4, 3, 4}, {64, 256, 1024}, {16, 2, 3, 2}, {16, 1, 0, 2}};
  const Box of_5{{64, 16, 2, 2, 2}, {256, 128, 4096, 8192}, {64, 8, 2, 1, 1}, {0, 4, 0, 1, 1}};
  const std::pair<const char*, Box> boxes[] = {{"1d", of_1}, {"2d", of_2}, {"3d", of_3}, {"4d", of_4}, {"5d", of_5}};
  for (const bool loads : {true, false}) {
    for (const auto& [name, box] : boxes) cases.push_back(tensor_case(name, box, loads, 2, Swizzle::none));
    cases.push_back(tensor_case("2d swizzle 128", of_2, loads, 2, Swizzle::bytes_128));
    cases.push_back(tensor_case("5d swizzle 128", of_5, loads, 2, Swizzle::bytes_128));
    cases.push_back(tensor_case("2d swizzle 64", {{64, 40}, {128}, {32, 32}, {8, 3}}, loads, 2, Swizzle::bytes_64));
    cases.push_back(tensor_case("2d swizzle 32", {{64, 40}, {128}, {16, 64}, {8, 3}}, loads, 2, Swizzle::bytes_32));
    cases.push_back(
        tensor_case("2d swizzle 128, short rows", {{64, 40}, {128}, {32, 32}, {8, 3}}, loads, 2, Swizzle::bytes_128));
    // Extends beyond the edges on both sides.
    cases.push_back(tensor_case("2d outside", {{60, 20}, {128}, {64, 16}, {-8, 10}}, loads, 2, Swizzle::none));
    cases.push_back(
        tensor_case("2d outside, above", {{60, 20}, {128}, {64, 16}, {32, -7}}, loads, 2, Swizzle::bytes_128));
    cases.push_back(tensor_case("2d far outside", {{60, 20}, {128}, {64, 16}, {0, 100}}, loads, 2, Swizzle::none));
    cases.push_back(tensor_case("2d bytes", {{128, 32}, {128}, {128, 16}, {16, 20}}, loads, 1, Swizzle::bytes_128));
    cases.push_back(tensor_case("2d words", {{32, 32}, {128}, {32, 16}, {4, 20}}, loads, 4, Swizzle::bytes_128));
  }
}

// What a store may do at the edges, and what loads return beyond them: one case each. On an H200 a store that begins
// before the tensor, in any dimension, ends with an illegal instruction, so it is a finding.
void add_edge_cases(std::vector<ConformanceCase>& cases) {
  struct Edge {
    const char* name;
    Box box;
    int element_bytes = 2;
    Swizzle swizzle = Swizzle::none;
  };
  const Edge edges[] = {
      {"edge left", {{64, 20}, {128}, {64, 16}, {-8, 2}}},
      {"edge above", {{64, 20}, {128}, {64, 16}, {0, -7}}},
      {"edge below", {{64, 20}, {128}, {64, 16}, {0, 10}}},
      {"edge right, half of the box", {{64, 20}, {128}, {64, 16}, {32, 2}}},
      {"edge right, 16 bytes", {{64, 20}, {128}, {64, 16}, {8, 2}}},
      {"edge right, rows of 96 bytes", {{48, 20}, {128}, {64, 16}, {0, 2}}},
      {"edge right, rows of 112 bytes", {{56, 20}, {128}, {64, 16}, {0, 2}}},
      {"edge right, rows of 120 bytes", {{60, 20}, {128}, {64, 16}, {0, 2}}},
      {"edge right, rows of 120 bytes, 128 swizzle", {{60, 20}, {128}, {64, 16}, {0, 2}}, 2, Swizzle::bytes_128},
      {"edge right and left", {{32, 20}, {64}, {64, 16}, {-8, 2}}},
      {"edge left, words", {{32, 20}, {128}, {32, 16}, {-4, 2}}, 4},
      {"edge left, bytes", {{128, 20}, {128}, {128, 16}, {-16, 2}}, 1},
      {"edge left, 128 swizzle", {{64, 20}, {128}, {64, 16}, {-8, 2}}, 2, Swizzle::bytes_128},
      {"edge above, 128 swizzle", {{64, 20}, {128}, {64, 16}, {0, -7}}, 2, Swizzle::bytes_128},
      {"edge left 1d", {{700}, {}, {256}, {-40}}},
      {"edge right 1d", {{700}, {}, {256}, {600}}},
      {"edge above 3d", {{64, 6, 5}, {128, 1024}, {32, 4, 3}, {16, 1, -1}}},
  };
  for (const bool loads : {true, false}) {
    for (const Edge& edge : edges)
      cases.push_back(tensor_case(edge.name, edge.box, loads, edge.element_bytes, edge.swizzle));
  }
  const Box above{{60, 20}, {128}, {64, 16}, {0, -7}, true}, right{{56, 20}, {128}, {64, 16}, {32, 10}, true};
  cases.push_back(tensor_case("NaN above", above, true, 2, Swizzle::none));
  cases.push_back(tensor_case("NaN right, 128 swizzle", right, true, 2, Swizzle::bytes_128));
  cases.push_back(tensor_case("NaN words", {{32, 32}, {128}, {32, 16}, {-4, 20}, true}, true, 4, Swizzle::bytes_128));
}

ConformanceCase plain_case(const std::string& name, const std::string& body, unsigned outputs,
                           std::vector<std::uint64_t> input = {}) {
  ConformanceCase one;
  one.name = name;
  one.ptx = text_of(body);
  one.threads = kThreads;
  one.outputs = outputs;
  one.input = std::move(input);
  one.hopper = true;
  return one;
}

// Writes each thread's 32-bit results %r`from`… to the output.
std::string give(int from, int count) {
  std::string text = "mad.wide.u32 %rd20, %t, 8, %out;\n";
  for (int i = 0; i < count; ++i) text += fmt::format("st.global.b32 [%rd20+{}], %r{};\n", i * 8 * kThreads, from + i);
  return text;
}

void add_bulk_cases(std::vector<ConformanceCase>& cases) {
  cases.push_back(plain_case(
      "cp.async.bulk load",
      kBarrier +
          "@%p1 bra WAIT;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem+40952], 2048;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%in+16], 1024, [%smem+40952];\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem+1024], [%in+2048], 1024, [%smem+40952];\n" +
          kWait + show(2048),
      2, numbered(4096, 2)));
  cases.push_back(plain_case(
      "cp.async.bulk store",
      fill(2048) +
          "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p1, %t, 0;\n@%p1 bra END;\n"
          "cp.async.bulk.global.shared::cta.bulk_group [%out+16], [%smem+32], 512;\ncp.async.bulk.commit_group;\n"
          "cp.async.bulk.global.shared::cta.bulk_group [%out+1024], [%smem], 16;\ncp.async.bulk.commit_group;\n"
          "cp.async.bulk.wait_group.read 1;\ncp.async.bulk.wait_group 0;\nEND:\n",
      2, numbered(2048, 2)));
}

void add_barrier_cases(std::vector<ConformanceCase>& cases) {
  // Whether the phase has ended, before and after each step, in one thread.
  const std::string test =
      "mbarrier.try_wait.parity.shared::cta.b64 %p3, [%smem], {1}, 0;\nselp.u32 %r{0}, 1, 0, %p3;\n";
  const auto ask = [&](int to, int parity) { return fmt::format(fmt::runtime(test), to, parity); };
  std::string body = "setp.ne.u32 %p1, %t, 0;\n@%p1 bra END;\nmbarrier.init.shared.b64 [%smem], 2;\n" + ask(10, 0);
  body += "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd1, [%smem], 48;\n" + ask(11, 0);
  body += "mbarrier.arrive.shared::cta.b64 _, [%smem];\n" + ask(12, 0);
  body += "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%smem], 32;\n" + ask(13, 0);
  body += "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%smem], 16;\n" + ask(14, 0);
  body += "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%smem], 32;\n" + ask(15, 0) + ask(16, 1);
  body += "mbarrier.try_wait.shared::cta.b64 %p3, [%smem], %rd1;\nselp.u32 %r17, 1, 0, %p3;\n";
  cases.push_back(plain_case("mbarrier transactions", body + give(10, 8) + "END:\n", 8));

  cases.push_back(
      plain_case("elect.sync",
                 "mov.u32 %r11, 9;\nsetp.lt.u32 %p1, %t, 64;\n@!%p1 bra SOME;\n"
                 "elect.sync %r10|%p2, -1;\nselp.u32 %r11, 1, 0, %p2;\nbra END;\n"
                 "SOME:\nand.b32 %r1, %t, 31;\nsetp.gt.u32 %p3, %r1, 4;\nmov.u32 %r10, 77;\n@!%p3 bra END;\n"
                 "elect.sync %r10|%p2, 0xffffffe0;\nselp.u32 %r11, 1, 0, %p2;\nEND:\n" +
                     give(11, 1),
                 1));
  cases.push_back(plain_case(
      "named barriers by register",
      "shr.u32 %r1, %t, 6;\nadd.u32 %r2, %r1, 1;\nxor.b32 %r3, %t, 63;\nmad.lo.u32 %r4, %t, 4, %smem;\nmad.lo.u32 %r5, %r3, 4, %smem;\n"
      "mad.lo.u32 %r6, %t, 3, 1;\nst.shared.b32 [%r4], %r6;\nbar.sync %r2, 64;\nld.shared.b32 %r10, [%r5];\n" +
          give(10, 1),
      1));
  // A cluster of one CTA.
  cases.push_back(plain_case(
      "clusters",
      "mov.u32 %r10, %cluster_ctarank;\nmov.u32 %r11, %cluster_nctarank;\nmov.u32 %r12, %cluster_nctaid.x;\n"
      "mov.u32 %r13, %clusterid.x;\nmov.u32 %r14, %nclusterid.x;\nmad.lo.u32 %r1, %t, 4, %smem;\nst.shared.b32 [%r1], %t;\n"
      "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\nxor.b32 %r2, %r1, 128;\n"
      "mapa.shared::cluster.u32 %r3, %r2, 0;\nld.shared::cluster.b32 %r15, [%r3];\ngetctarank.shared::cluster.u32 %r16, %r3;\n"
      "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" +
          give(10, 7),
      7));
  cases.push_back(plain_case(
      "remote arrivals",
      "setp.ne.u32 %p1, %t, 0;\n@%p1 bra READY;\nmbarrier.init.shared.b64 [%smem], 128;\nREADY:\nbar.sync 0;\n"
      "mapa.shared::cluster.u32 %r1, %smem, 0;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];\n"
      "WAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%smem], 0;\n@!%p2 bra WAIT;\n"
      "mov.u32 %r10, 5;\n" +
          give(10, 1),
      1));
  cases.push_back(plain_case(
      "setmaxnreg",
      "setmaxnreg.dec.sync.aligned.u32 64;\nbar.sync 0;\nsetmaxnreg.inc.sync.aligned.u32 128;\nmov.u32 %r10, %t;\n" +
          give(10, 1),
      1));
}

// Two CTAs of a cluster send each other data that arrive with the phase of an mbarrier; the memory of the first one is
// shown.
ConformanceCase exchange_case(const std::string& name, const std::string& fill, const std::string& send, int sent,
                              int shown) {
  ConformanceCase one = plain_case(name, "", static_cast<unsigned>(shown) / (8 * kThreads), numbered(4096, 2));
  one.ctas = 2;
  one.ptx = text_of(
      fill + kBarrier +
          fmt::format("@%p1 bra MEET;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem+40952], {};\nMEET:\n",
                      sent) +
          "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
          "mov.u32 %r10, %cluster_ctarank;\nxor.b32 %r1, %r10, 1;\nmapa.shared::cluster.u32 %r1, %smem, %r1;\n"
          "add.u32 %r2, %r1, 40952;\n" +
          send +
          "WAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%smem+40952], 0;\n@!%p2 bra WAIT;\n"
          "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nsetp.ne.u32 %p3, %r10, 0;\n@%p3 bra SHOWN;\n" +
          show(shown),
      false, kThreads, one.ctas);
  return one;
}

void add_cluster_cases(std::vector<ConformanceCase>& cases) {
  // 56 bytes of each thread.
  cases.push_back(exchange_case(
      "st.async", "",
      "mad.lo.u32 %r3, %t, 4, %r1;\nmad.lo.u32 %r4, %t, 8, %r1;\nmad.lo.u32 %r5, %t, 16, %r1;\nmul.lo.u32 %r6, %t, 3;\n"
      "mad.lo.u32 %r7, %t, 5, %r10;\ncvt.u64.u32 %rd1, %r6;\nneg.s64 %rd2, %rd1;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3], %t, [%r2];\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%r3+512], %r6, [%r2];\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r4+1024], {%r6, %r7}, [%r2];\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r4+2048], %rd1, [%r2];\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r5+3072], {%t, %r6, %r7, %t}, [%r2];\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.s64 [%r5+5120], {%rd1, %rd2}, [%r2];\n",
      7168, 7168));

  std::string reductions =
      "mad.lo.u32 %r3, %t, 77, 5;\nxor.b32 %r3, %r3, 0x80000010;\nmov.u32 %r4, 100;\ncvt.u64.u32 %rd1, %r3;\n";
  int at = 0;
  const auto reduce = [&](const std::string& op, const std::string& operand) {
    reductions +=
        fmt::format("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{} [%r1+{}], {}, [%r2];\n",
                    op, at, operand);
    at += 16;
  };
  for (const char* op : {"inc.u32", "dec.u32"}) reduce(op, "%r4");  // in any order of the threads
  for (const char* op :
       {"min.u32", "max.u32", "add.u32", "min.s32", "max.s32", "add.s32", "and.b32", "or.b32", "xor.b32"})
    reduce(op, "%r3");
  reduce("add.u64", "%rd1");
  cases.push_back(exchange_case("red.async", fill(1024), reductions, kThreads * (11 * 4 + 8), 1024));

  cases.push_back(exchange_case(
      "cp.async.bulk to another CTA", fill(4096) + "fence.proxy.async.shared::cta;\n",
      "@%p1 bra WAIT;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1+2048], [%smem+32], 1024, [%r2];\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1+4080], [%smem], 16, [%r2];\n",
      1040, 4096));
}

void add_stmatrix_cases(std::vector<ConformanceCase>& cases) {
  for (const int count : {1, 2, 4}) {
    for (const char* trans : {"", ".trans"}) {
      std::string registers;
      for (int i = 0; i < count; ++i) registers += fmt::format("{}%r{}", i == 0 ? "" : ", ", 2 + i);
      // Warp w writes at 512 w; lane i supplies row 5 i + 3 of 32.
      cases.push_back(plain_case(
          fmt::format("stmatrix.x{}{}", count, trans),
          fill(2048) +
              "bar.sync 0;\nmad.wide.u32 %rd4, %t, 16, %in;\nld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd4+2048];\n"
              "and.b32 %r6, %t, 31;\nshr.u32 %r7, %t, 5;\nmad.lo.u32 %r8, %r6, 5, 3;\nand.b32 %r8, %r8, 31;\nshl.b32 %r8, %r8, 4;\n"
              "mad.lo.u32 %r8, %r7, 512, %r8;\nadd.u32 %r8, %r8, %smem;\n" +
              fmt::format("stmatrix.sync.aligned.m8n8.x{}{}.shared.b16 [%r8], {{{}}};\nbar.sync 0;\n", count, trans,
                          registers) +
              show(2048),
          2, numbered(4096, 2)));
    }
  }
}

}  // namespace

std::vector<ConformanceCase> hopper_cases() {
  std::vector<ConformanceCase> cases;
  add_wgmma_cases(cases);
  add_tensor_cases(cases);
  add_edge_cases(cases);
  add_bulk_cases(cases);
  add_barrier_cases(cases);
  add_cluster_cases(cases);
  add_stmatrix_cases(cases);
  return cases;
}

}  // namespace flash_ladder::emulator
