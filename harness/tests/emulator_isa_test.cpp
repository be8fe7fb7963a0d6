// Operations, types and modifiers of memory and exchange, against what the PTX ISA says of them, computed here. Most are not among
// the cases that a GPU has answered (emulator_cases.h).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

using Words = std::vector<std::uint64_t>;

constexpr unsigned kThreads = 64;  // two warps

// Output [result][thread] of a body that must run without a finding.
Words output_of(const std::string& body, const Words& input, std::size_t words) {
  const RunResult result = run_test_kernel(program(body), kThreads, input, words);
  EXPECT_EQ(result.report.outcome, Outcome::completed);
  for (const Finding& finding : result.report.findings) ADD_FAILURE() << format(finding);
  return result.output;
}

int bits_of_type(std::string_view type) {
  if (type.ends_with("16x2")) return 32;
  return std::stoi(std::string(type.substr(type.find_first_of("0123456789"))));
}

std::uint64_t mask_of(int bits) { return bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1; }

// ---- Atomics: section "Parallel Synchronization and Communication Instructions: atom", "red"

std::int64_t sign_extended(std::uint64_t x, int bits) {
  return static_cast<std::int64_t>(x << (64 - bits)) >> (64 - bits);
}

// Small integers as floats of 16 bits, which add without rounding.
std::uint64_t sixteen_bits(int n, bool bf16) {
  const std::uint32_t f32 = std::bit_cast<std::uint32_t>(static_cast<float>(n));
  if (bf16) return f32 >> 16;
  return n == 0 ? 0 : ((f32 >> 16) & 0x8000) | (((f32 & 0x7fffffff) >> 13) - ((127u - 15u) << 10));
}

struct Operands {
  std::uint64_t old, b, c, expected;
};

// What memory holds after the operation.
std::uint64_t after(std::string_view operation, std::string_view type, std::uint64_t old, std::uint64_t b,
                    std::uint64_t c) {
  const int bits = bits_of_type(type);
  const bool is_signed = type[0] == 's';
  const bool less = is_signed ? sign_extended(old, bits) < sign_extended(b, bits) : old < b;
  if (operation == "add") return (old + b) & mask_of(bits);
  if (operation == "min") return less ? old : b;
  if (operation == "max") return less ? b : old;
  if (operation == "and") return old & b;
  if (operation == "or") return old | b;
  if (operation == "xor") return old ^ b;
  if (operation == "exch") return b;
  if (operation == "cas") return old == b ? c : old;
  if (operation == "inc") return old >= b ? 0 : old + 1;
  if (operation == "dec") return old == 0 || old > b ? b : old - 1;
  ADD_FAILURE() << operation;
  return 0;
}

Operands integers(std::string_view operation, std::string_view type, unsigned thread, std::mt19937_64& random) {
  const std::uint64_t mask = mask_of(bits_of_type(type));
  const std::uint64_t edges[] = {0, 1, 2, mask, mask - 1, mask / 2, mask / 2 + 1, random() & mask};
  const std::uint64_t old = edges[thread % 8], b = edges[thread / 8], c = random() & mask;
  return {old, b, c, after(operation, type, old, b, c)};
}

Operands floats(std::string_view type, std::mt19937_64& random) {
  const auto number = [&] { return static_cast<int>(random() % 101) - 50; };
  const int x = number(), y = number(), x2 = number(), y2 = number();
  if (type == "f32") {
    const auto bits = [](int n) { return std::bit_cast<std::uint32_t>(static_cast<float>(n) / 4); };
    return {bits(x), bits(y), 0, bits(x + y)};
  }
  if (type == "f64") {
    const auto bits = [](int n) { return std::bit_cast<std::uint64_t>(static_cast<double>(n) / 4); };
    return {bits(x), bits(y), 0, bits(x + y)};
  }
  const bool bf16 = type.starts_with("bf16");
  const auto bits = [&](int low, int high) {
    return sixteen_bits(low, bf16) | (type.ends_with("x2") ? sixteen_bits(high, bf16) << 16 : 0);
  };
  return {bits(x, x2), bits(y, y2), 0, bits(x + y, x2 + y2)};
}

// Each thread on words of its own. `order` is the semantics and the scope.
void check_atomic(const std::string& operation, const std::string& type, const std::string& order = {}) {
  SCOPED_TRACE(fmt::format("atom{}.{}.{}", order, operation, type));
  const bool is_float = type.find('f') != std::string::npos;
  const int bits = bits_of_type(type);
  const char* const reg = bits == 64 ? "%rd" : bits == 32 ? "%r" : "%rs";
  const bool cas = operation == "cas", has_red = !cas && operation != "exch";
  const std::string opcode = (is_float && bits != 64 && type != "f32" ? operation + ".noftz." : operation + ".") + type;
  std::string body =
      "mad.wide.u32 %rd1, %r90, 8, %rd90;\nmad.wide.u32 %rd2, %r90, 8, %rd91;\nmad.lo.u32 %r10, %r90, 8, %r93;\n"
      "add.u64 %rd3, %rd2, 2048;\ncvta.global.u64 %rd3, %rd3;\n";
  for (int i = 0; i < 3; ++i) body += fmt::format("ld.global.b{} {}2{}, [%rd1+{}];\n", bits, reg, i, i * 512);
  const std::string sources = fmt::format("{0}21{1}", reg, cas ? fmt::format(", {}22", reg) : "");
  const auto apply = [&](const std::string& store_to, const std::string& space, const std::string& at, int result) {
    body += fmt::format("st.{}.b{} [{}], {}20;\n", store_to, bits, at, reg);
    body += fmt::format("atom{}{}.{} {}23, [{}], {};\n", order, space, opcode, reg, at, sources);
    body += fmt::format("st.global.b{} [%rd2+{}], {}23;\n", bits, result * 512, reg);
  };
  apply("shared", ".shared", "%r10", 0);
  body += fmt::format("ld.shared.b{0} {1}24, [%r10];\nst.global.b{0} [%rd2+512], {1}24;\n", bits, reg);
  apply("global", ".global", "%rd2+1024", 3);
  body += fmt::format("st.b{} [%rd3], {}20;\natom{}.{} {}23, [%rd3], {};\n", bits, reg, order, opcode, reg, sources);
  if (has_red) {
    body += fmt::format("st.global.b{} [%rd2+2560], {}20;\nred{}.global.{} [%rd2+2560], {};\n", bits, reg, order,
                        opcode, sources);
    body += fmt::format(
        "st.shared.b{0} [%r10], {1}20;\nred{2}.shared.{3} [%r10], {4};\nld.shared.b{0} {1}24, [%r10];\n"
        "st.global.b{0} [%rd2+3072], {1}24;\n",
        bits, reg, order, opcode, sources);
  }

  std::mt19937_64 random(1);
  std::vector<Operands> operands;
  Words input(std::size_t{3} * kThreads);
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    operands.push_back(is_float ? floats(type, random) : integers(operation, type, thread, random));
    input[thread] = operands[thread].old;
    input[thread + kThreads] = operands[thread].b;
    input[thread + 2 * kThreads] = operands[thread].c;
  }
  const Words output = output_of(body, input, std::size_t{7} * kThreads);
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    const Operands& one = operands[thread];
    SCOPED_TRACE(fmt::format("{:#x}, {:#x}, {:#x}", one.old, one.b, one.c));
    for (const int old : {0, 3}) ASSERT_EQ(output[thread + old * kThreads], one.old);
    for (const int result : {1, 2, 4, 5, 6}) {
      if (result >= 5 && !has_red) break;
      ASSERT_EQ(output[thread + result * kThreads], one.expected) << "result " << result;
    }
  }
}

TEST(Isa, EveryAtomicOperationAndType) {
  const std::pair<const char*, std::vector<const char*>> forms[] = {
      {"add", {"u32", "s32", "u64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"}},
      {"min", {"u32", "s32", "u64", "s64"}},
      {"max", {"u32", "s32", "u64", "s64"}},
      {"and", {"b32", "b64"}},
      {"or", {"b32", "b64"}},
      {"xor", {"b32", "b64"}},
      {"exch", {"b32", "b64"}},
      {"cas", {"b16", "b32", "b64"}},
      {"inc", {"u32"}},
      {"dec", {"u32"}},
  };
  for (const auto& [operation, types] : forms)
    for (const char* type : types) check_atomic(operation, type);
}

TEST(Isa, OrdersAndScopesOfAtomicsDoNotChangeTheirValues) {
  for (const char* order : {".relaxed", ".acquire", ".release", ".acq_rel"}) {
    for (const char* scope : {".cta", ".gpu", ".sys"}) check_atomic("max", "s64", std::string(order) + scope);
  }
}

// ---- Loads and stores: "Data Movement and Conversion Instructions: ld", "st"

struct Form {
  std::string load, store;  // without the vector and the type: "ld.acquire.gpu.global"
  std::string space;        // "shared", "global", "local"; generic addresses are of global memory
};

// Thread by thread: 16 bytes are loaded, element by element, and stored 16 bytes further on.
void check_move(const Form& form, const std::string& type, int count) {
  const std::string suffix = (count == 1 ? "" : fmt::format(".v{}", count)) + "." + type;
  SCOPED_TRACE(form.load + ", " + form.store + suffix);
  const int bytes = bits_of_type(type) / 8;
  const char* const reg = type == "f32" ? "%r" : "%rd";  // else wider than the elements, which the ISA allows
  std::string body = "mad.wide.u32 %rd1, %r90, 8, %rd90;\nmad.wide.u32 %rd2, %r90, 8, %rd91;\n";
  if (form.space == "shared") {
    body += "mad.lo.u32 %r10, %r90, 32, %r93;\ncvt.u64.u32 %rd3, %r10;\n";
  } else if (form.space == "local") {
    body += "mov.u64 %rd3, local;\n";
  } else {
    body += "mad.wide.u32 %rd3, %r90, 32, %rd91;\nadd.u64 %rd3, %rd3, 3072;\n";
  }
  body += "ld.global.b64 %rd4, [%rd1];\nld.global.b64 %rd5, [%rd1+512];\nmov.u64 %rd6, -1;\n";
  body += fmt::format("st.{0}.b64 [%rd3], %rd4;\nst.{0}.b64 [%rd3+8], %rd5;\n", form.space);
  body += fmt::format("st.{0}.b64 [%rd3+16], %rd6;\nst.{0}.b64 [%rd3+24], %rd6;\nmov.u64 %rd7, %rd3;\n", form.space);
  const bool generic = form.load == "ld";
  if (generic) body += fmt::format("cvta.{}.u64 %rd7, %rd3;\n", form.space);
  std::string registers;
  for (int i = 0; i < count; ++i) registers += fmt::format("{}{}2{}", i == 0 ? "" : ", ", reg, i);
  if (count > 1) registers = "{" + registers + "}";
  body += fmt::format("{0}{1} {2}, [%rd7];\n{3}{1} [%rd7+16], {2};\n", form.load, suffix, registers, form.store);
  for (int i = 0; i < count; ++i)
    body += fmt::format("st.global.{} [%rd2+{}], {}2{};\n", type == "f32" ? "b32" : "b64", i * 512, reg, i);
  body += fmt::format("ld.{}.b64 %rd8, [%rd3+16];\nst.global.b64 [%rd2+2048], %rd8;\n", form.space);
  body += fmt::format("ld.{}.b64 %rd8, [%rd3+24];\nst.global.b64 [%rd2+2560], %rd8;\n", form.space);

  std::mt19937_64 random(2);
  Words input(std::size_t{2} * kThreads);
  for (std::uint64_t& word : input) word = random();
  const Words output = output_of(body, input, std::size_t{10} * kThreads);
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    const std::uint64_t words[] = {input[thread], input[thread + kThreads]};
    for (int i = 0; i < count; ++i) {
      std::uint64_t element = 0;
      std::memcpy(&element, reinterpret_cast<const char*>(words) + i * bytes, static_cast<std::size_t>(bytes));
      if (type[0] == 's') element = static_cast<std::uint64_t>(sign_extended(element, bytes * 8));
      ASSERT_EQ(output[thread + i * kThreads], element) << "element " << i;
    }
    std::uint64_t stored[] = {~std::uint64_t{0}, ~std::uint64_t{0}};
    std::memcpy(stored, words, static_cast<std::size_t>(bytes * count));
    ASSERT_EQ(output[thread + 4 * kThreads], stored[0]);
    ASSERT_EQ(output[thread + 5 * kThreads], stored[1]);
  }
}

TEST(Isa, VectorsInEverySpace) {
  for (const char* space : {"shared", "local", "global"}) {
    for (const char* type :
         {"b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
      for (const int count : {1, 2, 4}) {
        if (bits_of_type(type) * count > 128) continue;
        check_move({fmt::format("ld.{}", space), fmt::format("st.{}", space), space}, type, count);
        check_move({"ld", "st", space}, type, count);
      }
    }
  }
}

TEST(Isa, OrdersScopesAndCachesOfLoadsAndStoresDoNotChangeTheirValues) {
  for (const char* space : {"shared", "global"}) {
    std::vector<std::pair<std::string, std::string>> forms = {{".weak", ".weak"}, {".volatile", ".volatile"}};
    for (const char* scope : {".cta", ".gpu", ".sys"}) {
      forms.emplace_back(std::string(".relaxed") + scope, std::string(".relaxed") + scope);
      forms.emplace_back(std::string(".acquire") + scope, std::string(".release") + scope);
    }
    for (const auto& [load, store] : forms) {
      check_move({fmt::format("ld{}.{}", load, space), fmt::format("st{}.{}", store, space), space}, "u32", 1);
      check_move({fmt::format("ld{}.{}", load, space), fmt::format("st{}.{}", store, space), space}, "b64", 2);
    }
  }
  const std::pair<const char*, const char*> caches[] = {
      {"ca", "wb"}, {"cg", "cg"}, {"cs", "cs"}, {"lu", "wt"}, {"cv", "wt"}};
  for (const auto& [load, store] : caches)
    check_move({fmt::format("ld.global.{}", load), fmt::format("st.global.{}", store), "global"}, "b32", 4);
}

// ---- "match.sync": the members if all have the same value, else 0

// Section "Warp-level matrix transpose instruction: movmatrix". Element c of row r is 8r + c, in half c % 2 of lane 4r + c / 2.
TEST(Isa, MovmatrixTransposes) {
  const Words output = output_of(
      "shl.b32 %r1, %r91, 1;\nadd.u32 %r2, %r1, 1;\nshl.b32 %r2, %r2, 16;\nor.b32 %r1, %r1, %r2;\n"
      "movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;\nmovmatrix.sync.aligned.m8n8.trans.b16 %r4, %r3;\n"
      "mad.wide.u32 %rd1, %r90, 8, %rd91;\nst.global.u32 [%rd1], %r3;\nsub.u32 %r4, %r4, %r1;\nst.global.u32 [%rd1+4], %r4;\n",
      {}, kThreads);
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    const unsigned lane = thread % 32, row = lane / 4, column = lane % 4 * 2;
    const std::uint64_t low = 8 * column + row, high = 8 * (column + 1) + row;
    EXPECT_EQ(output[thread], low | high << 16) << "and twice is not at all; thread " << thread;
  }
}

TEST(Isa, MatchAllOf64Bits) {
  // Warp 0 agrees; in warp 1 the upper half of one lane's value differs; the upper lanes alone agree there too.
  Words input(kThreads, 0x1234567800000007);
  input[32 + 5] = 0x1234567900000007;
  const Words output = output_of(
      "mad.wide.u32 %rd1, %r90, 8, %rd90;\nmad.wide.u32 %rd2, %r90, 8, %rd91;\nld.global.b64 %rd3, [%rd1];\n"
      "match.all.sync.b64 %r1|%p1, %rd3, -1;\nselp.u32 %r2, 1, 0, %p1;\nst.global.v2.u32 [%rd2], {%r1, %r2};\n"
      "setp.lt.u32 %p2, %r91, 16;\n@%p2 bra LOW;\nmatch.all.sync.b64 %r1|%p1, %rd3, 0xffff0000;\nbra.uni JOIN;\nLOW:\n"
      "match.all.sync.b64 %r1|%p1, %rd3, 0xffff;\nJOIN:\nselp.u32 %r2, 1, 0, %p1;\nst.global.v2.u32 [%rd2+512], {%r1, %r2};\n",
      input, std::size_t{2} * kThreads);
  constexpr std::uint64_t kTrue = std::uint64_t{1} << 32;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    const bool first_warp = thread < 32, low = thread % 32 < 16;
    EXPECT_EQ(output[thread], first_warp ? kTrue | 0xffffffff : 0) << thread;
    EXPECT_EQ(output[thread + kThreads], low ? (first_warp ? kTrue | 0xffff : 0) : kTrue | 0xffff0000) << thread;
  }
}

// ---- "mbarrier.arrive_drop", and arrive with a count: a phase state tells how many were pending before the arrival

TEST(Isa, ArriveDropTakesFromAllLaterPhases) {
  std::string body = "setp.ne.u32 %p1, %r90, 0;\n@%p1 bra END;\nmbarrier.init.shared.b64 [smem], 8;\n";
  int results = 0;
  const auto store = [&](const std::string& reg) {
    body += fmt::format("st.global.u32 [%rd91+{}], {};\n", 8 * results++, reg);
  };
  const auto arrive = [&](const std::string& operation, const std::string& count = {}) {
    body += fmt::format("mbarrier.{}.shared.b64 %rd1, [smem]{};\nmbarrier.pending_count.b64 %r1, %rd1;\n", operation,
                        count);
    store("%r1");
  };
  const auto is_complete = [&] {
    body += "mbarrier.test_wait.shared.b64 %p2, [smem], %rd1;\nselp.u32 %r1, 1, 0, %p2;\n";
    store("%r1");
  };
  arrive("arrive_drop");                    // 8 pending; 7 expected from the next phase on
  arrive("arrive_drop.noComplete", ", 2");  // 7; 5 expected
  arrive("arrive", ", 4");                  // 5
  is_complete();
  arrive("arrive_drop");  // 1, the last; 4 expected
  is_complete();
  arrive("arrive");              // 4
  arrive("arrive_drop", ", 3");  // 3, the last; 1 expected
  is_complete();
  arrive("arrive");  // 1, the last
  is_complete();
  const Words output = output_of(body + "END:\n", {}, static_cast<std::size_t>(results));
  EXPECT_EQ(output, (Words{8, 7, 5, 0, 1, 1, 4, 3, 1, 1, 1}));
}

// ---- "cp.async": with ignore-src, zeros come instead of the source

TEST(Isa, CopiesThatIgnoreTheirSource) {
  Words input(std::size_t{2} * kThreads);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = ~std::uint64_t{i};
  for (const auto& [kind, bytes] :
       std::vector<std::pair<const char*, int>>{{"ca", 4}, {"ca", 8}, {"ca", 16}, {"cg", 16}}) {
    SCOPED_TRACE(fmt::format("cp.async.{} of {} bytes", kind, bytes));
    const Words output = output_of(
        fmt::format(
            "mad.wide.u32 %rd1, %r90, 16, %rd90;\nmad.wide.u32 %rd2, %r90, 8, %rd91;\nmad.lo.u32 %r10, %r90, 16, %r93;\n"
            "mov.u64 %rd3, 7;\nst.shared.v2.b64 [%r10], {{%rd3, %rd3}};\nand.b32 %r1, %r90, 1;\nsetp.eq.u32 %p1, %r1, 1;\n"
            "cp.async.{}.shared.global [%r10], [%rd1], {}, %p1;\ncp.async.wait_all;\n"
            "ld.shared.v2.b64 {{%rd4, %rd5}}, [%r10];\nst.global.b64 [%rd2], %rd4;\nst.global.b64 [%rd2+512], %rd5;\n",
            kind, bytes),
        input, std::size_t{2} * kThreads);
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      std::uint64_t expected[] = {7, 7};
      const std::uint64_t zeros[] = {0, 0};
      std::memcpy(expected, thread % 2 == 1 ? zeros : &input[std::size_t{2} * thread], static_cast<std::size_t>(bytes));
      ASSERT_EQ(output[thread], expected[0]) << thread;
      ASSERT_EQ(output[thread + kThreads], expected[1]) << thread;
    }
  }
}

}  // namespace
}  // namespace flash_ladder::emulator
