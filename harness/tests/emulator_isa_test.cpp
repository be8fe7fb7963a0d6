// Operations, types and modifiers of memory and exchange, compared with results computed here according to the PTX ISA.
// Most are not among the cases that were run on a GPU (emulator_cases.h).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Small integers as 16-bit floats, whose sums need no rounding.
std::uint64_t sixteen_bits(int n, bool bf16) {
  const std::uint32_t f32 = std::bit_cast<std::uint32_t>(static_cast<float>(n));
  if (bf16) return f32 >> 16;
  return n == 0 ? 0 : ((f32 >> 16) & 0x8000) | (((f32 & 0x7fffffff) >> 13) - ((127u - 15u) << 10));
}

struct Operands {
  std::uint64_t old, b, c, expected;
};

// The contents of memory after the operation.
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

// Each thread works on its own words. `order` is the semantics and the scope.
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
  std::string space;        // "shared", "global", "local"; generic addresses refer to global memory
};

// Thread by thread: 16 bytes are loaded, element by element, and stored 16 bytes further on.
void check_move(const Form& form, const std::string& type, int count) {
  const std::string suffix = (count == 1 ? "" : fmt::format(".v{}", count)) + "." + type;
  SCOPED_TRACE(form.load + ", " + form.store + suffix);
  const int bytes = bits_of_type(type) / 8;
  const char* const reg = type == "f32" ? "%r" : "%rd";  // otherwise wider than the elements, which the ISA allows
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

// ---- Sections "wmma.load", "wmma.mma", "wmma.store", "mma": products of small integers, whose sums need no rounding
// in any order

int bits_of_element(std::string_view type) {
  return type == "b1" ? 1 : type == "bf16" ? 16 : type == "tf32" ? 32 : bits_of_type(type);
}

std::uint64_t encoded(int n, std::string_view type) {
  if (type == "f16" || type == "bf16") return sixteen_bits(n, type == "bf16");
  if (type == "f32" || type == "tf32") return std::bit_cast<std::uint32_t>(static_cast<float>(n));
  if (type == "f64") return std::bit_cast<std::uint64_t>(static_cast<double>(n));
  return static_cast<std::uint64_t>(n) & mask_of(bits_of_element(type));
}

// Some value that the type can represent.
int some_value(std::string_view type, std::size_t i) {
  const int n = static_cast<int>(i * 7 % 13 + i / 5 % 3) % 7;
  return type == "b1" ? n % 2 : type[0] == 'u' ? n : n - 3;
}

struct IntegerMatrix {
  int rows, columns;
  std::vector<int> values;

  IntegerMatrix(int r, int c, std::string_view type, std::size_t seed) : rows(r), columns(c) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(r * c); ++i) values.push_back(some_value(type, i + seed));
  }
  int at(int row, int column) const { return values[static_cast<std::size_t>(row * columns + column)]; }
};

int element_of_product(const IntegerMatrix& a, const IntegerMatrix& b, const IntegerMatrix& c, int row, int column,
                       std::string_view operation) {
  int sum = c.at(row, column);
  for (int k = 0; k < a.columns; ++k) {
    const int x = a.at(row, k), y = b.at(k, column);
    sum += operation == "xor" ? x ^ y : x * y;  // bitwise, and plays the role of the product
  }
  return sum;
}

// Stores the elements of a matrix in memory, row by row or column by column, `stride` elements apart.
void put(Words& memory, std::size_t at_byte, const IntegerMatrix& matrix, bool by_row, int stride,
         std::string_view type) {
  const int bits = bits_of_element(type);
  for (int row = 0; row < matrix.rows; ++row) {
    for (int column = 0; column < matrix.columns; ++column) {
      const int place = by_row ? row * stride + column : column * stride + row;
      const std::size_t bit = at_byte * 8 + static_cast<std::size_t>(place) * static_cast<std::size_t>(bits);
      memory.at(bit / 64) |= encoded(matrix.at(row, column), type) << (bit % 64);
    }
  }
}

std::string registers(const char* name, int first, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) list += fmt::format("{}{}{}", i == 0 ? "{" : ", ", name, first + i);
  return list + "}";
}

struct WmmaCase {
  int m, n, k;
  std::string_view type, c_type, d_type;
  bool a_by_row = true, b_by_row = false, c_by_row = true;
  std::string_view space = "global", operation = "";
};

void check_wmma(const WmmaCase& one) {
  const std::string shape = fmt::format("m{}n{}k{}", one.m, one.n, one.k);
  const auto layout = [](bool by_row) { return by_row ? "row" : "col"; };
  const std::string name =
      fmt::format("{} {} {}→{} {} {} {} {} {}", shape, one.type, one.c_type, one.d_type, layout(one.a_by_row),
                  layout(one.b_by_row), layout(one.c_by_row), one.space, one.operation);
  SCOPED_TRACE(name);
  const IntegerMatrix a(one.m, one.k, one.type, 1), b(one.k, one.n, one.type, 5), c(one.m, one.n, "s32", 9);
  const int bits = bits_of_element(one.type), padding = 128 / bits;  // rows begin at multiples of 16 bytes
  const int a_stride = (one.a_by_row ? one.k : one.m) + padding, b_stride = (one.b_by_row ? one.n : one.k) + padding;
  const int c_stride = (one.c_by_row ? one.n : one.m) + 8, d_stride = one.c_by_row ? one.n : one.m;
  // One after another, at multiples of 32 bytes.
  const auto end_of = [](std::size_t begin, int rows, int stride, int bits_each) {
    return begin + (static_cast<std::size_t>(rows * stride * bits_each / 8) + 31) / 32 * 32;
  };
  const std::size_t b_at = end_of(0, one.a_by_row ? one.m : one.k, a_stride, bits);
  const std::size_t c_at = end_of(b_at, one.b_by_row ? one.k : one.n, b_stride, bits);
  constexpr std::size_t kWords = 1024;
  Words input(kWords);
  put(input, 0, a, one.a_by_row, a_stride, one.type);
  put(input, b_at, b, one.b_by_row, b_stride, one.type);
  put(input, c_at, c, one.c_by_row, c_stride, one.c_type);
  const bool wide = one.type == "f64", all_types = one.type != "f16";
  const char* reg = wide ? "%rd" : "%r";
  const auto inputs = [&](int rows) {
    return one.type == "f16" ? 8 : std::max(1, rows * one.k * bits / 32 / (wide ? 64 : 32));
  };
  const auto accumulators = [&](std::string_view type) { return one.m * one.n / 32 / (type == "f16" ? 2 : 1); };
  std::string body;
  std::string from = "%rd90";
  if (one.space == "shared") {
    for (int i = 0; i < 8; ++i) {
      body += fmt::format("mad.wide.u32 %rd1, %r90, 8, %rd90;\nld.global.b64 %rd2, [%rd1+{}];\n", i * 512);
      body += fmt::format("mad.lo.u32 %r1, %r90, 8, %r93;\nst.shared.b64 [%r1+{}], %rd2;\n", i * 512);
    }
    body += "bar.sync 0;\n";
    from = "%r93";
  } else if (one.space.empty()) {
    body += "cvta.global.u64 %rd89, %rd90;\n";
    from = "%rd89";
  }
  const std::string space = one.space.empty() ? "" : fmt::format(".{}", one.space);
  const std::string a_list = registers(reg, 1, inputs(one.m)), b_list = registers(reg, 11, inputs(one.n)),
                    c_list = registers(reg, 21, accumulators(one.c_type)),
                    d_list = registers(reg, 31, accumulators(one.d_type));
  body += fmt::format("mov.u32 %r80, {};\nmov.u32 %r81, {};\n", a_stride, b_stride);
  body += fmt::format("wmma.load.a.sync.aligned.{}.{}{}.{} {}, [{}], %r80;\n", layout(one.a_by_row), shape, space,
                      one.type, a_list, from);
  body += fmt::format("wmma.load.b.sync.aligned.{}.{}{}.{} {}, [{}+{}], %r81;\n", layout(one.b_by_row), shape, space,
                      one.type, b_list, from, b_at);
  body += fmt::format("wmma.load.c.sync.aligned.{}.{}{}.{} {}, [{}+{}], {};\n", layout(one.c_by_row), shape, space,
                      one.c_type, c_list, from, c_at, c_stride);
  const std::string operation = one.operation.empty() ? "" : fmt::format(".{}.popc", one.operation);
  body += fmt::format("wmma.mma{}.sync.aligned.{}.{}.{}.{}{}.{} {}, {}, {}, {};\n", operation, layout(one.a_by_row),
                      layout(one.b_by_row), shape, one.d_type, all_types ? fmt::format(".{0}.{0}", one.type) : "",
                      one.c_type, d_list, a_list, b_list, c_list);
  body += "setp.ne.u32 %p1, %r92, 0;\n@%p1 ret;\n";
  // The default stride is that of a matrix without gaps.
  body += fmt::format("wmma.store.d.sync.aligned.{}.{}.global.{} [%rd91], {};\n", layout(one.c_by_row), shape,
                      one.d_type, d_list);
  const Words output = output_of(body, input, 256);
  Words expected(256);
  IntegerMatrix d(one.m, one.n, "s32", 0);
  for (int row = 0; row < one.m; ++row) {
    for (int column = 0; column < one.n; ++column) {
      d.values[static_cast<std::size_t>(row * one.n + column)] =
          element_of_product(a, b, c, row, column, one.operation);
    }
  }
  put(expected, 0, d, one.c_by_row, d_stride, one.d_type);
  EXPECT_EQ(output, expected);
}

TEST(Isa, WmmaOfAllTypesAndLayouts) {
  for (const auto& [m, n] : {std::pair{16, 16}, std::pair{32, 8}, std::pair{8, 32}}) {
    for (int layouts = 0; layouts < 8; ++layouts) {
      const bool a = (layouts & 1) != 0, b = (layouts & 2) != 0, c = (layouts & 4) != 0;
      for (const std::string_view c_type : {"f16", "f32"}) {
        for (const std::string_view d_type : {"f16", "f32"}) check_wmma({m, n, 16, "f16", c_type, d_type, a, b, c});
      }
      check_wmma({m, n, 16, "bf16", "f32", "f32", a, b, c});
      check_wmma({m, n, 16, "s8", "s32", "s32", a, b, c});
      check_wmma({m, n, 16, "u8", "s32", "s32", a, b, c});
    }
    for (const std::string_view space : {"shared", ""})
      check_wmma({m, n, 16, "f16", "f32", "f32", true, false, true, space});
  }
  for (int layouts = 0; layouts < 8; ++layouts) {
    const bool a = (layouts & 1) != 0, b = (layouts & 2) != 0, c = (layouts & 4) != 0;
    check_wmma({16, 16, 8, "tf32", "f32", "f32", a, b, c});
    check_wmma({8, 8, 4, "f64", "f64", "f64", a, b, c});
  }
  for (const bool c : {false, true}) {
    check_wmma({8, 8, 32, "s4", "s32", "s32", true, false, c});
    check_wmma({8, 8, 32, "u4", "s32", "s32", true, false, c});
    for (const std::string_view operation : {"xor", "and"}) {
      check_wmma({8, 8, 128, "b1", "s32", "s32", true, false, c, "global", operation});
    }
  }
}

// Section "Sparse matrix storage": two units of each chunk of a row are kept. A unit is one element, or two elements of
// 4 bits; for tf32 a chunk is two elements, one of which is kept.
struct SparseMatrix {
  IntegerMatrix dense, kept;
  std::vector<std::vector<std::uint32_t>> indices = {};  // for each row and chunk, four bits

  SparseMatrix(int rows, int columns, std::string_view type)
      : dense(rows, columns, type, 2), kept(rows, columns / 2, type, 0) {
    const int unit = bits_of_element(type) == 4 ? 2 : 1, chunk = type == "tf32" ? 2 : 4 * unit;
    std::mt19937 random(5);
    for (int row = 0; row < rows; ++row) {
      indices.emplace_back();
      for (int first = 0; first < columns; first += chunk) {
        int low = static_cast<int>(random() % 3),
            high = low + 1 + static_cast<int>(random() % (3u - static_cast<unsigned>(low)));
        if (type == "tf32") low = static_cast<int>(random() % 2), high = -1;
        indices.back().push_back(type == "tf32" ? (low == 0 ? 0b0100u : 0b1110u)
                                                : static_cast<std::uint32_t>(low | high << 2));
        for (int i = 0, next = first / 2; i < chunk; ++i) {
          int& element = dense.values[static_cast<std::size_t>(row * columns + first + i)];
          if (i / unit != low && i / unit != high) {
            element = 0;
          } else {
            kept.values[static_cast<std::size_t>(row * (columns / 2) + next++)] = element;
          }
        }
      }
    }
  }
  // Four bits for each of `count` chunks of a row.
  std::uint64_t bits(int row, int first, int count) const {
    std::uint64_t word = 0;
    for (int i = 0; i < count; ++i)
      word |= std::uint64_t{indices[static_cast<std::size_t>(row)][static_cast<std::size_t>(first + i)]} << (4 * i);
    return word;
  }
};

// The metadata of lane 4 g + t, as in the figures "Sparse MMA … metadata layout"; a dummy value in lanes that have none.
std::uint64_t metadata_of(const SparseMatrix& a, int k, int bits, int selector, int g, int t) {
  constexpr std::uint64_t kNone = 0;  // would give a wrong result if it were used
  const bool wide = k * bits == 512;  // 64 bytes of a row of dense A
  if (bits >= 16) {                   // both rows in one register, 16 bits each
    if (wide ? t / 2 != selector : t != selector) return kNone;
    const int first = wide ? 4 * (t % 2) : 0;
    return a.bits(g, first, 4) | a.bits(g + 8, first, 4) << 16;
  }
  if (!wide && t / 2 != selector) return kNone;
  return a.bits(g + 8 * (t % 2), wide ? 8 * (t / 2) : 0, 8);
}

// Figures "MMA … fragment layout": register by register, lane 4 g + t holds elements of row g (of A; column g of B).
// With a selector, A is sparse.
void check_mma(int m, int k, std::string_view a_type, std::string_view b_type, std::string_view c_type,
               std::string_view d_type, std::string_view modifier = "", std::string_view operation = "",
               int selector = -1) {
  const bool sparse = selector >= 0;
  const int bits = bits_of_element(a_type), per_register = bits == 64 ? 1 : 32 / bits, rows = m / 8,
            blocks = k / (4 * per_register), a_blocks = sparse ? blocks / 2 : blocks;
  const std::string opcode = fmt::format("mma{}.sync.aligned.m{}n8k{}.row.col{}.{}.{}.{}.{}{}",
                                         sparse ? ".sp::ordered_metadata" : "", m, k, modifier, d_type, a_type, b_type,
                                         c_type, operation.empty() ? "" : fmt::format(".{}.popc", operation));
  SCOPED_TRACE(fmt::format("{} {}", opcode, selector));
  const SparseMatrix sparse_a(m, k, a_type);
  const IntegerMatrix a = sparse ? sparse_a.dense : IntegerMatrix(m, k, a_type, 2),
                      a_in_registers = sparse ? sparse_a.kept : a, b(k, 8, b_type, 3), c(m, 8, "s32", 4);
  Words input;  // [register][lane]
  const auto add = [&](auto value_of_lane) {
    for (int lane = 0; lane < 32; ++lane) input.push_back(value_of_lane(lane / 4, lane % 4));
  };
  const auto row_of = [&](const IntegerMatrix& matrix, bool transposed, int row, int from, std::string_view type) {
    std::uint64_t word = 0;
    for (int i = 0; i < per_register; ++i) {
      const int value = transposed ? matrix.at(from + i, row) : matrix.at(row, from + i);
      word |= encoded(value, type) << (i * bits);
    }
    return word;
  };
  for (int i = 0; i < rows * a_blocks; ++i) {
    add([&](int g, int t) {
      return row_of(a_in_registers, false, g + 8 * (i % rows), per_register * (t + 4 * (i / rows)), a_type);
    });
  }
  for (int i = 0; i < blocks; ++i) {
    add([&](int g, int t) { return row_of(b, true, g, per_register * (t + 4 * i), b_type); });
  }
  const auto accumulators = [&](std::string_view type, auto element, auto push) {
    for (int row = 0; row < rows; ++row) {
      if (type == "f16") {
        push([&](int g, int t) {
          return encoded(element(g + 8 * row, 2 * t), type) | encoded(element(g + 8 * row, 2 * t + 1), type) << 16;
        });
      } else {
        for (int i = 0; i < 2; ++i) push([&](int g, int t) { return encoded(element(g + 8 * row, 2 * t + i), type); });
      }
    }
  };
  accumulators(c_type, [&](int row, int column) { return c.at(row, column); }, add);
  const int num_c = c_type == "f16" ? rows : 2 * rows, num_d = d_type == "f16" ? rows : 2 * rows;
  const char* reg = bits == 64 ? "%rd" : "%r";
  std::string body = "mad.wide.u32 %rd80, %r91, 8, %rd90;\n";
  if (sparse) add([&](int g, int t) { return metadata_of(sparse_a, k, bits, selector, g, t); });
  const int num_a = rows * a_blocks, total = num_a + blocks + num_c + (sparse ? 1 : 0);
  for (int i = 0; i < total; ++i)
    body += fmt::format("ld.global.b{} {}{}, [%rd80+{}];\n", bits == 64 ? 64 : 32, reg, i + 1, 256 * i);
  body += fmt::format("{} {}, {}, {}, {}{};\n", opcode, registers(reg, 40, num_d), registers(reg, 1, num_a),
                      registers(reg, 1 + num_a, blocks), registers(reg, 1 + num_a + blocks, num_c),
                      sparse ? fmt::format(", {}{}, {}", reg, total, selector) : "");
  body += "mad.wide.u32 %rd81, %r91, 8, %rd91;\nsetp.ne.u32 %p1, %r92, 0;\n@%p1 ret;\n";
  for (int i = 0; i < num_d; ++i)
    body += fmt::format("st.global.b{} [%rd81+{}], {}{};\n", bits == 64 ? 64 : 32, 256 * i, reg, 40 + i);
  const Words output = output_of(body, input, static_cast<std::size_t>(32 * num_d));
  Words expected;
  accumulators(
      d_type, [&](int row, int column) { return element_of_product(a, b, c, row, column, operation); },
      [&](auto value_of_lane) {
        for (int lane = 0; lane < 32; ++lane) expected.push_back(value_of_lane(lane / 4, lane % 4));
      });
  EXPECT_EQ(output, expected);
}

TEST(Isa, MmaOfAllTypes) {
  for (const int k : {8, 16}) {
    for (const std::string_view c : {"f16", "f32"}) {
      for (const std::string_view d : {"f16", "f32"}) check_mma(16, k, "f16", "f16", c, d);
    }
    check_mma(16, k, "bf16", "bf16", "f32", "f32");
  }
  for (const int k : {4, 8}) check_mma(16, k, "tf32", "tf32", "f32", "f32");
  check_mma(8, 4, "f64", "f64", "f64", "f64");
  for (const auto& [m, k] : {std::pair{8, 1}, std::pair{16, 1}, std::pair{16, 2}}) {
    for (const char* a : {"u", "s"}) {
      for (const char* b : {"u", "s"}) {
        for (const int bits : {8, 4}) {
          for (const char* modifier : {"", ".satfinite"}) {
            check_mma(m, k * 128 / bits, fmt::format("{}{}", a, bits), fmt::format("{}{}", b, bits), "s32", "s32",
                      modifier);
          }
        }
      }
    }
    for (const std::string_view operation : {"xor", "and"})
      check_mma(m, 128 * k, "b1", "b1", "s32", "s32", "", operation);
  }
}

TEST(Isa, MmaOfASparseMatrix) {
  for (const std::string_view type : {"f16", "bf16", "tf32"}) {
    const int k = type == "tf32" ? 8 : 16;
    for (int selector = 0; selector < 4; ++selector) {
      check_mma(16, k, type, type, "f32", "f32", "", "", selector);
      if (selector < 2) check_mma(16, 2 * k, type, type, "f32", "f32", "", "", selector);
      if (type == "f16") check_mma(16, k, type, type, "f16", "f16", "", "", selector);
    }
  }
  check_mma(16, 32, "f16", "f16", "f16", "f16", "", "", 1);
  for (const char* a : {"u", "s"}) {
    for (const char* b : {"u", "s"}) {
      for (const int bits : {8, 4}) {
        const std::string a_type = fmt::format("{}{}", a, bits), b_type = fmt::format("{}{}", b, bits);
        for (int selector = 0; selector < 2; ++selector)
          check_mma(16, 256 / bits, a_type, b_type, "s32", "s32", "", "", selector);
        check_mma(16, 512 / bits, a_type, b_type, "s32", "s32", ".satfinite", "", 0);
      }
    }
  }
}

// Section "Matrix Fragments for mma.m8n8k4 with .f16 floating point type": row and column of element i of a fragment.
TEST(Isa, MmaOfFourQuads) {
  struct Place {
    int row, column;
  };
  for (int layouts = 0; layouts < 4; ++layouts) {
    const bool a_by_row = (layouts & 1) != 0, b_by_row = (layouts & 2) != 0;
    for (const auto& [d_type, c_type] : {std::pair{"f16", "f16"}, std::pair{"f32", "f16"}, std::pair{"f32", "f32"}}) {
      const std::string opcode = fmt::format("mma.sync.aligned.m8n8k4.{}.{}.{}.f16.f16.{}", a_by_row ? "row" : "col",
                                             b_by_row ? "row" : "col", d_type, c_type);
      SCOPED_TRACE(opcode);
      const auto place_in_a = [&](int lane, int i) {
        const int high = lane < 16 ? 0 : 4;
        return a_by_row ? Place{lane % 4 + high, i} : Place{i % 4 + high, lane % 4};
      };
      const auto place_in_b = [&](int lane, int i) {
        const int high = lane < 16 ? 0 : 4;
        return b_by_row ? Place{lane % 4, i + high} : Place{i, lane % 4 + high};
      };
      const auto place_in_c = [&](int lane, int i, std::string_view type) {
        const int high = lane < 16 ? 0 : 4;
        if (type == "f16") return Place{lane % 4 + high, i};
        return Place{(lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)};
      };
      std::vector<IntegerMatrix> a, b, c;
      for (std::size_t quad = 0; quad < 4; ++quad) {
        a.emplace_back(8, 4, "s8", quad);
        b.emplace_back(4, 8, "s8", 3 + quad);
        c.emplace_back(8, 8, "s8", 5 + quad);
      }
      Words input, expected;
      const auto add = [&](Words& to, int length, std::string_view type, auto element) {
        const int step = type == "f16" ? 2 : 1;
        for (int i = 0; i < length; i += step) {
          for (int lane = 0; lane < 32; ++lane) {
            std::uint64_t word = encoded(element(lane, i), type);
            if (step == 2) word |= encoded(element(lane, i + 1), type) << 16;
            to.push_back(word);
          }
        }
      };
      const auto quad_of = [](int lane) { return static_cast<std::size_t>(lane % 16 / 4); };
      const auto at = [](const IntegerMatrix& matrix, Place place) { return matrix.at(place.row, place.column); };
      add(input, 4, "f16", [&](int lane, int i) { return at(a[quad_of(lane)], place_in_a(lane, i)); });
      add(input, 4, "f16", [&](int lane, int i) { return at(b[quad_of(lane)], place_in_b(lane, i)); });
      add(input, 8, c_type, [&](int lane, int i) { return at(c[quad_of(lane)], place_in_c(lane, i, c_type)); });
      add(expected, 8, d_type, [&](int lane, int i) {
        const Place place = place_in_c(lane, i, d_type);
        const std::size_t quad = quad_of(lane);
        return element_of_product(a[quad], b[quad], c[quad], place.row, place.column, "");
      });
      const int num_c = std::string_view(c_type) == "f16" ? 4 : 8, num_d = std::string_view(d_type) == "f16" ? 4 : 8;
      std::string body = "mad.wide.u32 %rd80, %r91, 8, %rd90;\n";
      for (int i = 0; i < 4 + num_c; ++i) body += fmt::format("ld.global.b32 %r{}, [%rd80+{}];\n", i + 1, 256 * i);
      // D replaces C.
      body += fmt::format("{} {}, {{%r1, %r2}}, {{%r3, %r4}}, {};\n", opcode, registers("%r", 5, num_d),
                          registers("%r", 5, num_c));
      body += "mad.wide.u32 %rd81, %r91, 8, %rd91;\nsetp.ne.u32 %p1, %r92, 0;\n@%p1 ret;\n";
      for (int i = 0; i < num_d; ++i) body += fmt::format("st.global.b32 [%rd81+{}], %r{};\n", 256 * i, 5 + i);
      EXPECT_EQ(output_of(body, input, expected.size()), expected);
    }
  }
}

// ---- .b128: both halves of a register, in one instruction

TEST(Isa, RegistersOf128Bits) {
  Words input(std::size_t{2} * kThreads);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = ~std::uint64_t{i} * 77;
  const Words output = output_of(
      ".reg .b128 %q<5>;\nmad.wide.u32 %rd1, %r90, 16, %rd90;\nmad.wide.u32 %rd2, %r90, 48, %rd91;\n"
      "ld.global.b128 %q1, [%rd1];\nmov.b128 {%rd3, %rd4}, %q1;\nadd.u64 %rd3, %rd3, 1;\nmov.b128 %q2, {%rd4, %rd3};\n"
      "st.global.b128 [%rd2], %q2;\nmov.b128 {%rd4, %rd3}, %q1;\nmov.b128 %q3, {%rd3, %rd4};\nmov.b128 %q4, %q3;\n"
      // Every other thread finds the value with which it compares.
      "and.b32 %r1, %r90, 1;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 mov.b128 %q4, %q2;\n"
      "atom.global.cas.b128 %q3, [%rd2], %q4, %q1;\natom.global.exch.b128 %q4, [%rd2], %q3;\n"
      "st.global.b128 [%rd2+16], %q3;\nst.global.b128 [%rd2+32], %q4;\n",
      input, std::size_t{6} * kThreads);
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    const std::uint64_t low = input[2 * thread], high = input[2 * thread + 1];
    const Words before = {high, low + 1}, swapped = thread % 2 == 0 ? Words{low, high} : before;
    const auto pair = [&](std::size_t i) { return Words{output[6 * thread + i], output[6 * thread + i + 1]}; };
    EXPECT_EQ(pair(0), before) << thread;  // exchanged back
    EXPECT_EQ(pair(2), before) << thread;
    EXPECT_EQ(pair(4), swapped) << thread;
  }
}

// Rounded once, at the end: 2048 + 16 · 1/8 is 2050, although each single sum would be rounded to 2048.
TEST(Isa, AnF16AccumulatorIsRoundedAtTheEnd) {
  const Words output = output_of(
      "mov.u32 %r1, 0x30003000;\nmov.u32 %r2, 0x3c003c00;\nmov.u32 %r3, 0x68006800;\n"
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r4, %r5}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, {%r3, %r3};\n"
      "mad.wide.u32 %rd1, %r90, 8, %rd91;\nst.global.v2.u32 [%rd1], {%r4, %r5};\n",
      {}, kThreads);
  EXPECT_EQ(output, Words(kThreads, 0x6801680168016801));
}

TEST(Isa, SumsOfIntegersWrapOrSaturate) {
  const auto product = [](const std::string& modifier) {
    return output_of(
        fmt::format("mov.u32 %r1, 0x7f7f7f7f;\nmov.u32 %r2, 0x7fffffff;\n"
                    "mma.sync.aligned.m8n8k16.row.col{}.s32.s8.s8.s32 {{%r3, %r4}}, {{%r1}}, {{%r1}}, {{%r2, %r2}};\n"
                    "mad.wide.u32 %rd1, %r90, 8, %rd91;\nst.global.v2.u32 [%rd1], {{%r3, %r4}};\n",
                    modifier),
        {}, kThreads);
  };
  const std::uint64_t wrapped = 0x7fffffffu + 16u * 127u * 127u;
  EXPECT_EQ(product(""), Words(kThreads, wrapped << 32 | wrapped));
  EXPECT_EQ(product(".satfinite"), Words(kThreads, 0x7fffffff7fffffff));
}

// ---- Rare per-lane instructions: the results of the ISA's pseudocode for some operands

std::uint32_t result_of(const std::string& opcode, const std::vector<std::uint32_t>& operands) {
  std::string body, list;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    body += fmt::format("mov.b32 %r{}, {:#x};\n", i + 1, operands[i]);
    list += fmt::format(", %r{}", i + 1);
  }
  body += fmt::format("{} %r10{};\ncvt.u64.u32 %rd1, %r10;\nst.global.b64 [%rd91], %rd1;\n", opcode, list);
  return static_cast<std::uint32_t>(output_of(body, {}, 1)[0]);
}

TEST(Isa, RareInstructionsOfALane) {
  const struct {
    const char* opcode;
    std::vector<std::uint32_t> operands;
    std::uint32_t expected;
  } cases[] = {
      {"bmsk.clamp.b32", {4, 8}, 0xff0},
      {"bmsk.clamp.b32", {28, 8}, 0xf0000000},
      {"bmsk.clamp.b32", {32, 8}, 0},
      {"bmsk.clamp.b32", {4, 32}, 0xfffffff0},
      {"bmsk.wrap.b32", {36, 40}, 0xff0},
      {"bmsk.wrap.b32", {4, 0}, 0},
      {"fns.b32", {0xf0f0, 4, 0}, 4},
      {"fns.b32", {0xf0f0, 3, 0}, 0xffffffff},
      {"fns.b32", {0xf0f0, 0, 5}, 12},
      {"fns.b32", {0xf0f0, 31, 0xffffffff}, 15},
      {"fns.b32", {0xf0f0, 12, 0xfffffffe}, 7},
      {"fns.b32", {0xf0f0, 0, 9}, 0xffffffff},
      {"szext.clamp.s32",
       {
           0x89,
           8,
       },
       0xffffff89},
      {"szext.clamp.u32", {0xf89, 8}, 0x89},
      {"szext.clamp.s32", {0x80000001, 32}, 0x80000001},
      {"szext.wrap.s32", {0x89, 40}, 0xffffff89},
      {"szext.wrap.s32", {0x89, 0}, 0},
      {"dp2a.lo.s32.s32", {0xffff0002, 0x0403fe05, 100}, 100 + 2 * 5 + 2},
      {"dp2a.hi.u32.u32", {0xffff0002, 0x0403fe05, 100}, 100 + 2 * 3 + 65535 * 4},
      {"dp2a.lo.s32.u32", {0xffff0002, 0x0403fe05, 300}, 300 + 2 * 5 - 254},
      {"dp4a.u32.s32", {0xff010203, 0xff040506, 0}, 0xffffff21},  // 18 + 10 + 4 - 255
      {"dp4a.s32.u32", {0xff010203, 0xff040506, 0}, 0xffffff21},  // 18 + 10 + 4 - 255
      {"cvt.pack.sat.s16.s32", {0x12345678, 0xffffff00}, 0x7fffff00},
      {"cvt.pack.sat.u16.s32", {0x12345678, 0xffffff00}, 0xffff0000},
      {"cvt.pack.sat.u8.s32.b32", {300, 0xffffffff, 0xabcd}, 0xabcdff00},
      {"cvt.pack.sat.s8.s32.b32", {300, 0xffffff00, 0xabcd}, 0xabcd7f80},
      {"cvt.pack.sat.u4.s32.b32", {7, 20, 0x123456}, 0x1234567f},
      {"vadd4.u32.u32.u32", {0x01ff7f80, 0x01017f80, 9}, 0x0200fe00},
      {"vadd4.u32.u32.u32.sat", {0x01ff7f80, 0x01017f80, 9}, 0x02fffeff},
      {"vadd4.s32.s32.s32.sat", {0x01ff7f80, 0x01017f80, 9}, 0x02007f80},
      {"vsub4.u32.u32.u32.sat", {0x01020304, 0x02010401, 9}, 0x00010003},
      {"vabsdiff4.u32.u32.u32", {0x01020304, 0x02010501, 9}, 0x01010203},
      {"vabsdiff4.u32.u32.u32.add", {0x01020304, 0x02010501, 9}, 9 + 1 + 1 + 2 + 3},
      {"vavrg4.u32.u32.u32", {0x01020304, 0x02020408, 9}, 0x02020406},
      {"vmin4.s32.s32.s32", {0x80017f00, 0x0002ff01, 9}, 0x8001ff00},
      {"vmax4.u32.u32.u32", {0x80017f00, 0x0002ff01, 9}, 0x8002ff01},
      {"vset4.u32.u32.ge", {0x01020304, 0x02020203, 9}, 0x00010101},
      {"vset2.s32.s32.lt", {0xffff0001, 0x00000001, 9}, 0x00010000},
      {"vadd2.s32.s32.s32.sat", {0x7fff8000, 0x0001ffff, 9}, 0x7fff8000},
      {"vsub2.u32.u32.u32.sat", {0x00050001, 0x00020004, 9}, 0x00030000},
      {"vabsdiff2.u32.u32.u32", {0x00010204, 0x00020101, 9}, 0x00010103},
      {"vavrg2.u32.u32.u32", {0x00010002, 0x00020004, 9}, 0x00020003},
      {"vmin2.s32.s32.s32", {0x80010001, 0x0002ffff, 9}, 0x8001ffff},
      {"vmax2.u32.u32.u32", {0x80010001, 0x00020007, 9}, 0x80010007},
  };
  for (const auto& one : cases) EXPECT_EQ(result_of(one.opcode, one.operands), one.expected) << one.opcode;
}

TEST(Isa, NumbersOf8BitsBecomeHalves) {
  const auto converted = [](const char* type, std::uint32_t pair) {
    const std::string cvt = fmt::format("cvt.rn.f16x2.{}x2 %r1, %rs1;\n", type);
    const std::string store = "cvt.u64.u32 %rd1, %r1;\nst.global.b64 [%rd91], %rd1;\n";
    return output_of(fmt::format("mov.b16 %rs1, {:#x};\n", pair) + cvt + store, {}, 1)[0];
  };
  EXPECT_EQ(converted("e4m3", 0xb87e), 0xbc005f00);  // -1 and 448
  EXPECT_EQ(converted("e4m3", 0x0107), 0x18002300);  // 2^-9 and 7 · 2^-9
  EXPECT_EQ(converted("e4m3", 0x8087), 0x8000a300);
  EXPECT_EQ(converted("e4m3", 0x7f08), 0x7fff2400);  // NaN and 2^-6
  EXPECT_EQ(converted("e5m2", 0xbc7b), 0xbc007b00);  // -1 and 57,344
  EXPECT_EQ(converted("e5m2", 0x7c01), 0x7c000100);  // infinity and 2^-16
}

// As in CUB, in registers declared without a blank.
TEST(Isa, OtherSpellings) {
  const Words output = output_of(
      "{\n.reg.b16 h;\n.reg.pred q;\nsetp.lt.u32 q, %r91, 4;\nvote.ballot.sync.b32 %r1, q, 0xffffffff;\nvote.any.sync.pred q, q, -1;\n"
      "selp.u32 %r2, 1, 0, q;\ncvt.u16.u32 h, %r1;\ncvt.u32.u16 %r1, h;\n}\ndiscard.global.L2 [%rd90], 128;\n"
      "mad.wide.u32 %rd1, %r90, 8, %rd91;\nst.global.v2.u32 [%rd1], {%r1, %r2};\n",
      {}, kThreads);
  EXPECT_EQ(output, Words(kThreads, 0x10000000f));
}

TEST(Isa, MatchAllOf64Bits) {
  // In warp 0 all agree; in warp 1 the upper half of one lane's value differs; the upper lanes alone agree there too.
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

// ---- "mbarrier.arrive_drop", and arrive with a count: a phase state contains the number of arrivals that were pending
// before

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

// ---- "cp.async": with ignore-src, zeros replace the source

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
