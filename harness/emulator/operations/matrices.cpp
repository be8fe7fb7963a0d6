// The tensor cores: mma, and the multiplication of wmma. PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
//
// All fragments of mma, but those of m8n8k4 with f16, consist of blocks of 8 rows (of A; columns of B) and as many k as
// four registers hold: lane 4 g + t holds the elements of row g in the t-th register, with k ascending from the lowest
// bits. Registers come in order of k, and for each k of rows. Accumulators are blocks of 8 × 8, in which lane 4 g + t holds
// columns 2 t and 2 t + 1 of row g. The ISA does not specify the layout of wmma's fragments. Here it is the same as mma's,
// as on GPUs from sm_80 on; if a fragment has room for more, as A and B have with f16, its contents are stored twice.
//
// Numerics: products are exact, except for f64, and are added to C in order of k, each sum rounded. Tensor cores add
// several at a time in an unspecified order. An accumulator in f16 is rounded at the end of an instruction.
#include "emulator/operations/matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/divergence.h"
#include "emulator/lanes/across_lanes.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;

constexpr int kMostRows = 16;

}  // namespace

int bits_of(Product product) {
  switch (product) {
    case Product::f16:
    case Product::bf16:
      return 16;
    case Product::tf32:
      return 32;
    case Product::f64:
      return 64;
    case Product::u8_u8:
    case Product::u8_s8:
    case Product::s8_u8:
    case Product::s8_s8:
      return 8;
    case Product::xor_:
    case Product::and_:
      return 1;
    default:
      return 4;
  }
}

std::optional<Shape> shape_of(std::string_view part) {
  Shape shape;
  for (const auto& [letter, size] : {std::pair{'m', &shape.m}, std::pair{'n', &shape.n}, std::pair{'k', &shape.k}}) {
    if (!part.starts_with(letter)) return std::nullopt;
    const auto [end, error] = std::from_chars(part.data() + 1, part.data() + part.size(), *size);
    if (error != std::errc()) return std::nullopt;
    part.remove_prefix(end - part.data());
  }
  return part.empty() ? std::optional(shape) : std::nullopt;
}

namespace {

bool is_16_bit(Product product) { return product == Product::f16 || product == Product::bf16; }

template <Product kProduct>
std::int64_t integer_element(std::uint32_t word, int i, bool of_b) {
  constexpr int kBits = kProduct >= Product::u4_u4 ? 4 : 8;
  const auto which = static_cast<int>(kProduct) - static_cast<int>(kBits == 4 ? Product::u4_u4 : Product::u8_u8);
  const bool is_signed = of_b ? (which & 1) != 0 : (which & 2) != 0;
  const std::uint32_t value = (word >> (kBits * i)) & ((1u << kBits) - 1);
  const bool negative = is_signed && (value >> (kBits - 1)) != 0;
  return static_cast<std::int64_t>(value) - (negative ? 1 << kBits : 0);
}

// r: D, A, B, C. `elements` and `bytes` are the numbers of blocks of rows and of k; `has_count` is .satfinite.
template <Product kProduct>
void multiply(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  constexpr bool kDouble = kProduct == Product::f64, kFloat = kProduct == Product::tf32;
  using Word = std::conditional_t<kDouble, double, std::uint32_t>;
  const std::size_t row_blocks = instruction.elements, k_blocks = instruction.bytes;
  const auto lanes = [&](std::size_t operand) {
    return reinterpret_cast<Word*>(warp.registers + instruction.r[operand]);
  };
  const std::size_t a_at = 2 * row_blocks, b_at = a_at + row_blocks * k_blocks, c_at = b_at + k_blocks;
  Word result[kMostRows][kBlock];
  for (std::size_t row = 0; row < kBlock * row_blocks; ++row) {
    for (std::size_t column = 0; column < kBlock; ++column) {
      const Word c = lanes(c_at + 2 * (row / kBlock) + column % 2)[4 * (row % kBlock) + column / 2];
      std::int64_t sum = kDouble || kFloat ? 0 : static_cast<std::int32_t>(c);
      double wide_sum = static_cast<double>(c);
      float float_sum = 0;
      if constexpr (kFloat) float_sum = std::bit_cast<float>(c);
      for (std::size_t block = 0; block < k_blocks; ++block) {
        for (std::size_t t = 0; t < 4; ++t) {
          const Word a = lanes(a_at + block * row_blocks + row / kBlock)[4 * (row % kBlock) + t];
          const Word b = lanes(b_at + block)[4 * column + t];
          if constexpr (kDouble) {
            wide_sum = std::fma(a, b, wide_sum);
          } else if constexpr (kFloat) {
            constexpr std::uint32_t kTf32 = 0xffffe000;  // the other bits are ignored
            float_sum += std::bit_cast<float>(a & kTf32) * std::bit_cast<float>(b & kTf32);
          } else if constexpr (kProduct == Product::xor_ || kProduct == Product::and_) {
            sum += std::popcount(kProduct == Product::xor_ ? a ^ b : a & b);
          } else {
            for (int i = 0; i < 32 / (kProduct >= Product::u4_u4 ? 4 : 8); ++i) {
              sum += integer_element<kProduct>(a, i, false) * integer_element<kProduct>(b, i, true);
            }
          }
        }
      }
      if constexpr (kDouble) {
        result[row][column] = wide_sum;
      } else if constexpr (kFloat) {
        result[row][column] = std::isnan(float_sum) ? 0x7fffffff : std::bit_cast<std::uint32_t>(float_sum);
      } else {
        using Limits = std::numeric_limits<std::int32_t>;
        if (instruction.has_count) sum = std::clamp<std::int64_t>(sum, Limits::min(), Limits::max());
        result[row][column] = static_cast<std::uint32_t>(sum);
      }
    }
  }
  for (std::size_t row = 0; row < kBlock * row_blocks; ++row) {
    for (std::size_t column = 0; column < kBlock; ++column) {
      const std::size_t lane = 4 * (row % kBlock) + column / 2;
      if ((mask >> lane) & 1) lanes(2 * (row / kBlock) + column % 2)[lane] = result[row][column];
    }
  }
}

constexpr Execute kMultiply[] = {nullptr,
                                 nullptr,
                                 multiply<Product::tf32>,
                                 multiply<Product::f64>,
                                 multiply<Product::u8_u8>,
                                 multiply<Product::u8_s8>,
                                 multiply<Product::s8_u8>,
                                 multiply<Product::s8_s8>,
                                 multiply<Product::u4_u4>,
                                 multiply<Product::u4_s4>,
                                 multiply<Product::s4_u4>,
                                 multiply<Product::s4_s4>,
                                 multiply<Product::xor_>,
                                 multiply<Product::and_>};

void multiply_16_bits(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  instruction.function(warp.registers, instruction.r.data(), mask);
}

}  // namespace

std::optional<Product> product_of(std::string_view a, std::string_view b, bool is_and) {
  static const std::map<std::pair<std::string_view, std::string_view>, Product> products = {
      {{"f16", "f16"}, Product::f16}, {{"bf16", "bf16"}, Product::bf16}, {{"tf32", "tf32"}, Product::tf32},
      {{"f64", "f64"}, Product::f64}, {{"u8", "u8"}, Product::u8_u8},    {{"u8", "s8"}, Product::u8_s8},
      {{"s8", "u8"}, Product::s8_u8}, {{"s8", "s8"}, Product::s8_s8},    {{"u4", "u4"}, Product::u4_u4},
      {{"u4", "s4"}, Product::u4_s4}, {{"s4", "u4"}, Product::s4_u4},    {{"s4", "s4"}, Product::s4_s4},
      {{"b1", "b1"}, Product::xor_},
  };
  const auto found = products.find({a, b});
  if (found == products.end()) return std::nullopt;
  return found->second == Product::xor_ && is_and ? Product::and_ : found->second;
}

bool is_known(const Multiplication& m, bool wmma) {
  const auto is = [&](int rows, int columns, int k) { return m.is(rows, columns, k); };
  const bool square = is(16, 16, 16) || is(32, 8, 16) || is(8, 32, 16);
  switch (m.product) {
    case Product::f16:
    case Product::bf16:
      return wmma ? square : is(16, 8, 8) || is(16, 8, 16);
    case Product::tf32:
      return wmma ? is(16, 16, 8) : is(16, 8, 4) || is(16, 8, 8);
    case Product::f64:
      return is(8, 8, 4);
    case Product::u8_u8:
    case Product::u8_s8:
    case Product::s8_u8:
    case Product::s8_s8:
      return wmma ? square : is(8, 8, 16) || is(16, 8, 16) || is(16, 8, 32);
    case Product::xor_:
    case Product::and_:
      return is(8, 8, 128) || (!wmma && (is(16, 8, 128) || is(16, 8, 256)));
    default:
      return is(8, 8, 32) || (!wmma && (is(16, 8, 32) || is(16, 8, 64)));
  }
}

void emit_multiplication(KernelDecoder& d, const Multiplication& m, const std::vector<int>& to,
                         const std::vector<int>& a, const std::vector<int>& b, const std::vector<int>& c) {
  const std::size_t row_blocks = to.size() / 2;
  const auto emit = [&](Execute execute, const std::vector<int>& writes, std::vector<int> reads_a,
                        const std::vector<int>& reads_b, const std::vector<int>& reads_c) -> Instruction& {
    reads_a.insert(reads_a.end(), reads_b.begin(), reads_b.end());
    reads_a.insert(reads_a.end(), reads_c.begin(), reads_c.end());
    return d.emit(execute, InstructionClass::mma, writes, reads_a);
  };
  if (!is_16_bit(m.product)) {
    Instruction& out = emit(kMultiply[static_cast<std::size_t>(m.product)], to, a, b, c);
    out.elements = static_cast<std::uint8_t>(row_blocks);
    out.bytes = static_cast<std::uint8_t>(b.size());
    out.has_count = m.saturates;
    return;
  }
  const bool f16 = m.product == Product::f16;
  const LaneFunction function = b.size() == 1 ? (f16 ? lanes::mma_m16n8k8_f16 : lanes::mma_m16n8k8_bf16)
                                              : (f16 ? lanes::mma_m16n8k16_f16 : lanes::mma_m16n8k16_bf16);
  if (row_blocks == 2) {
    emit(multiply_16_bits, to, a, b, c).function = function;
    return;
  }
  // The lower eight rows do not exist.
  const int zero = d.constant(Slot::b32, 0);
  std::vector<int> with_zeros;
  for (const int reg : a) with_zeros.insert(with_zeros.end(), {reg, zero});
  emit(multiply_16_bits, {to[0], to[1], d.temporary(Slot::b32), d.temporary(Slot::b32)}, with_zeros, b,
       {c[0], c[1], zero, zero})
      .function = function;
}

std::vector<int> widened(KernelDecoder& d, const std::vector<int>& pairs) {
  std::vector<int> values;
  for (const int pair : pairs) {
    for (const char* opcode : {"%unpack.32.0", "%unpack.32.1"}) {
      const int half = d.temporary(Slot::b16), value = d.temporary(Slot::b32);
      d.emit_lane(opcode, {half}, {pair});
      d.emit_lane("cvt.f32.f16", {value}, {half});
      values.push_back(value);
    }
  }
  return values;
}

void narrow(KernelDecoder& d, const std::vector<int>& values, const std::vector<int>& to) {
  for (std::size_t i = 0; i < to.size(); ++i)
    d.emit_lane("cvt.rn.f16x2.f32", {to[i]}, {values[2 * i + 1], values[2 * i]});
}

namespace {

// All of D = A B + C, 8 columns and at most 16 rows at a time. `a` contains the registers of each block of k in turn, and
// within it those of each block of rows; `b` those of each block of columns, and within it those of each block of k.
void emit_all(KernelDecoder& d, const Multiplication& m, const std::vector<int>& to, const std::vector<int>& a,
              const std::vector<int>& b, const std::vector<int>& c) {
  const auto row_blocks = static_cast<std::size_t>(m.row_blocks()), k_blocks = static_cast<std::size_t>(m.k_blocks());
  const std::vector<int> all_c = m.c_in_f16 ? widened(d, c) : c;
  const std::size_t parts = static_cast<std::size_t>(m.shape.n / kBlock) * ((row_blocks + 1) / 2);
  // With several instructions, the registers that one writes may still have to be read by another.
  const bool direct = !m.d_in_f16 && parts == 1;
  std::vector<int> results;
  for (std::size_t i = 0; i < all_c.size(); ++i) results.push_back(direct ? to[i] : d.temporary(m.accumulator_slot()));
  for (std::size_t column = 0; column < static_cast<std::size_t>(m.shape.n / kBlock); ++column) {
    for (std::size_t row = 0; row < row_blocks; row += 2) {
      const std::size_t rows = std::min<std::size_t>(2, row_blocks - row), first = 2 * (column * row_blocks + row);
      const auto part = [&](const std::vector<int>& all, std::size_t from, std::size_t count) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
        return std::vector<int>(begin, begin + static_cast<std::ptrdiff_t>(count));
      };
      std::vector<int> part_a;
      for (std::size_t k = 0; k < k_blocks; ++k) {
        for (std::size_t i = 0; i < rows; ++i) part_a.push_back(a[k * row_blocks + row + i]);
      }
      emit_multiplication(d, m, part(results, first, 2 * rows), part_a, part(b, column * k_blocks, k_blocks),
                          part(all_c, first, 2 * rows));
    }
  }
  if (m.d_in_f16) {
    narrow(d, results, to);
  } else if (!direct) {
    const char* move = m.accumulator_slot() == Slot::b64 ? "mov.b64" : "mov.b32";
    for (std::size_t i = 0; i < to.size(); ++i) d.emit_lane(move, {to[i]}, {results[i]});
  }
}

}  // namespace

std::vector<int> read_fragment(KernelDecoder& d, std::size_t operand, std::size_t length, Slot slot) {
  const std::vector<Operand> fragment = d.elements(d.operand(operand));
  if (fragment.size() != length) d.fail("a fragment of the wrong length");
  std::vector<int> registers;
  for (const Operand& element : fragment) registers.push_back(d.read(element, slot));
  return registers;
}

std::vector<int> write_fragment(KernelDecoder& d, std::size_t operand, std::size_t length, Slot slot) {
  const std::vector<Operand> fragment = d.elements(d.operand(operand));
  if (fragment.size() != length) d.fail("a fragment of the wrong length");
  std::vector<int> registers;
  for (const Operand& element : fragment) registers.push_back(d.write(element, slot));
  return registers;
}

// …aligned.shape.alayout.blayout[.satfinite].dtype.atype.btype.ctype[.op.popc]; wmma with f16 names only the types of D
// and C.
MultiplicationOpcode multiplication_opcode(KernelDecoder& d, std::size_t first_part) {
  MultiplicationOpcode opcode;
  Multiplication& m = opcode.multiplication;
  std::optional<Shape> shape;
  std::vector<std::string_view> types, layouts;
  bool is_and = false, bitwise = false;
  for (std::size_t i = first_part; i < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (part == "sync" || part == "aligned" || part == "popc" || part == "rn") continue;
    if (part == "row" || part == "col") {
      layouts.push_back(part);
    } else if (part == "satfinite") {
      m.saturates = true;
    } else if (part == "and" || part == "xor") {
      is_and = part == "and";
      bitwise = true;
    } else if (const auto named = shape_of(part); named && !shape) {
      shape = named;
    } else {
      types.push_back(part);
    }
  }
  if (types.size() == 2 && d.parts()[0] == "wmma") types = {types[0], "f16", "f16", types[1]};
  if (!d.has("sync") || !d.has("aligned") || !shape || layouts.size() != 2 || types.size() != 4) d.fail_unknown();
  const auto product = product_of(types[1], types[2], is_and);
  if (!product) d.fail_unknown();
  m.shape = *shape;
  m.product = *product;
  m.d_in_f16 = types[0] == "f16";
  m.c_in_f16 = types[3] == "f16";
  opcode.a_by_row = layouts[0] == "row";
  opcode.b_by_row = layouts[1] == "row";
  const std::string_view accumulator = m.product == Product::f64 ? "f64" : m.product <= Product::tf32 ? "f32" : "s32";
  const auto fits = [&](std::string_view type) {
    return type == accumulator || (m.product == Product::f16 && type == "f16");
  };
  const bool one_bit = m.product == Product::xor_ || m.product == Product::and_;
  if (!fits(types[0]) || !fits(types[3]) || bitwise != one_bit) d.fail_unknown();
  return opcode;
}

std::size_t input_registers(const Multiplication& m, bool of_b) {
  if (m.product == Product::f16) return 8;
  return static_cast<std::size_t>(m.k_blocks() * (of_b ? m.shape.n : m.shape.m) / kBlock);
}

std::size_t accumulators(const Multiplication& m, bool in_f16) {
  return static_cast<std::size_t>(m.shape.m * m.shape.n / kWarpSize / (in_f16 ? 2 : 1));
}

void decode_multiplication(KernelDecoder& d, bool wmma) {
  const MultiplicationOpcode opcode = multiplication_opcode(d, wmma ? 2 : 1);
  const Multiplication& m = opcode.multiplication;
  if (!wmma && m.product == Product::f16 && m.is(8, 8, 4)) return decode_quad_multiplication(d);
  if (!is_known(m, wmma) || (!wmma && (!opcode.a_by_row || opcode.b_by_row))) d.fail_unknown();
  d.expect_operands(4);
  const Slot slot = m.accumulator_slot();
  const auto of_rows = static_cast<std::size_t>(m.k_blocks() * m.row_blocks()),
             of_columns = static_cast<std::size_t>(m.k_blocks() * m.shape.n / kBlock);
  const std::vector<int> a = read_fragment(d, 1, wmma ? input_registers(m, false) : of_rows, slot);
  const std::vector<int> b = read_fragment(d, 2, wmma ? input_registers(m, true) : of_columns, slot);
  const std::vector<int> c = read_fragment(d, 3, accumulators(m, m.c_in_f16), slot);
  emit_all(d, m, write_fragment(d, 0, accumulators(m, m.d_in_f16), slot), a, b, c);
  // It counts as one tensor-core instruction, whatever else it consists of.
  d.first_emitted().instruction_class = InstructionClass::mma;
}

namespace {

void decode_mma(KernelDecoder& d) {
  const std::string_view which = d.parts().size() > 1 ? d.parts()[1] : "";
  if (which == "sp" || which == "sp::ordered_metadata") return decode_sparse_multiplication(d);
  decode_multiplication(d, false);
}

}  // namespace

void add_matrix_operations(OperationTable& table) {
  table.add("mma", decode_mma);
  table.add("wmma", decode_wmma);
}

}  // namespace flash_ladder::emulator
