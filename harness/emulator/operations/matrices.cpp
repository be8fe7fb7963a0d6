// The tensor cores: mma and wmma. PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
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
#include "emulator/lanes/warp.h"
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

namespace {

bool is_16_bit(Product product) { return product == Product::f16 || product == Product::bf16; }

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

}  // namespace

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

namespace {

// The number of registers of a fragment of A or B in wmma: those of f16 store everything twice or more.
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

void decode_mma(KernelDecoder& d) {
  const std::string_view which = d.parts().size() > 1 ? d.parts()[1] : "";
  if (which == "sp" || which == "sp::ordered_metadata") return decode_sparse_multiplication(d);
  decode_multiplication(d, false);
}

// A piece of a fragment in memory: one lane's part of it is `major` rows of memory and `minor` elements further on.
struct Piece {
  int major, minor;
};

// Addresses of a matrix in memory.
class Matrix {
 public:
  Matrix(KernelDecoder& d, std::size_t operand, Space space, int bits, bool has_stride, int default_stride,
         int lane_major, int lane_minor)
      : d_(d), space_(space) {
    const int base = d.address_operand(d.operand(operand), space, offset_, wide_);
    slot_ = wide_ ? Slot::b64 : Slot::b32;
    int stride;
    if (has_stride) {
      stride = d.read(d.operand(d.num_operands() - 1), Slot::b32);
      if (wide_) stride = computed("%widen.u.32.64", {stride});
      stride_ = bits >= 8 ? computed(times(), {stride, d.constant(slot_, static_cast<std::uint64_t>(bits / 8))})
                          : computed(wide_ ? "shr.u64" : "shr.u32", {stride, d.constant(Slot::b32, bits == 4 ? 1 : 3)});
    } else {
      stride_ = d.constant(slot_, static_cast<std::uint64_t>(default_stride * bits / 8));
    }
    // Lane 4 g + t: `lane_major` and `lane_minor` are 0 for the one that depends on g, and otherwise the number of
    // elements per t.
    const Operand lane{.kind = Operand::Kind::special, .index = static_cast<int>(ptx::SpecialRegister::laneid)};
    const int lane_id = d.read(lane, Slot::b32);
    const auto coordinate = [&](int worth) {
      int value = d.temporary(Slot::b32);
      if (worth == 0) {
        d.emit_lane("shr.u32", {value}, {lane_id, d.constant(Slot::b32, 2)});
      } else {
        d.emit_lane("and.b32", {value}, {lane_id, d.constant(Slot::b32, 3)});
        const int scaled = d.temporary(Slot::b32);
        d.emit_lane("mul.lo.u32", {scaled}, {value, d.constant(Slot::b32, static_cast<std::uint64_t>(worth))});
        value = scaled;
      }
      return wide_ ? computed("%widen.u.32.64", {value}) : value;
    };
    const int major = computed(times(), {coordinate(lane_major), stride_});
    const int minor_elements = coordinate(lane_minor);
    const int minor =
        bits >= 8 ? computed(times(), {minor_elements, d.constant(slot_, static_cast<std::uint64_t>(bits / 8))})
                  : computed(wide_ ? "shr.u64" : "shr.u32", {minor_elements, d.constant(Slot::b32, bits == 4 ? 1 : 3)});
    rows_[0] = computed(plus(), {base, computed(plus(), {major, minor})});
    bits_ = bits;
  }

  void load(const std::vector<int>& to, Piece piece, int bytes) {
    emit_load(d_, space_, to, row(piece.major), wide_, offset_ + piece.minor * bits_ / 8, bytes);
  }
  void store(const std::vector<int>& values, Piece piece, int bytes) {
    emit_store(d_, space_, values, row(piece.major), wide_, offset_ + piece.minor * bits_ / 8, bytes);
  }

 private:
  const char* times() const { return wide_ ? "mul.lo.u64" : "mul.lo.u32"; }
  const char* plus() const { return wide_ ? "add.u64" : "add.u32"; }
  int computed(const char* opcode, const std::vector<int>& from) {
    const int result = d_.temporary(slot_);
    d_.emit_lane(opcode, {result}, from);
    return result;
  }
  int row(int major) {
    const auto [found, is_new] = rows_.try_emplace(major, 0);
    if (is_new) {
      const int further = computed(times(), {stride_, d_.constant(slot_, static_cast<std::uint64_t>(major))});
      found->second = computed(plus(), {rows_.at(0), further});
    }
    return found->second;
  }

  KernelDecoder& d_;
  Space space_;
  Slot slot_ = Slot::b64;
  int bits_ = 0;
  bool wide_ = true;
  std::int64_t offset_ = 0;
  int stride_ = 0;
  std::map<int, int> rows_;  // register with the address of the lane's part of each row
};

struct Transfer {
  Shape shape;
  char matrix;  // a, b, c or d
  bool row;     // the layout in memory
  Space space = Space::generic;
  std::string_view type;
  int bits;
};

// wmma.load.a.sync.aligned.layout.shape[.space].type r, [p][, stride]; wmma.store.d.….
Transfer transfer_of(KernelDecoder& d) {
  Transfer transfer{};
  if (d.parts().size() < 8 || d.parts()[2].size() != 1) d.fail_unknown();
  transfer.matrix = d.parts()[2][0];
  transfer.type = d.parts().back();
  std::optional<Shape> shape;
  bool layout = false;
  for (std::size_t i = 3; i + 1 < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (part == "sync" || part == "aligned") continue;
    if (part == "row" || part == "col") {
      transfer.row = part == "row";
      layout = true;
    } else if (const auto named = shape_of(part)) {
      shape = named;
    } else if (const auto space = named_space(part); space == Space::global || space == Space::shared) {
      transfer.space = *space;
    } else {
      d.fail_unknown();
    }
  }
  if (!shape || !layout || !d.has("sync") || !d.has("aligned")) d.fail_unknown();
  transfer.shape = *shape;
  static const std::map<std::string_view, int> bits = {{"f16", 16}, {"bf16", 16}, {"tf32", 32}, {"f32", 32},
                                                       {"f64", 64}, {"u8", 8},    {"s8", 8},    {"u4", 4},
                                                       {"s4", 4},   {"b1", 1},    {"s32", 32}};
  const auto found = bits.find(transfer.type);
  if (found == bits.end()) d.fail_unknown();
  transfer.bits = found->second;
  return transfer;
}

// The multiplication that the fragment is for; for A and B only its input type matters.
Multiplication multiplication_of(KernelDecoder& d, const Transfer& transfer) {
  Multiplication m;
  m.shape = transfer.shape;
  if (transfer.matrix == 'a' || transfer.matrix == 'b') {
    const auto product = product_of(transfer.type, transfer.type, false);
    if (!product) d.fail_unknown();
    m.product = *product;
    if (!is_known(m, true)) d.fail_unknown();
  } else {
    m.product = transfer.type == "f64" ? Product::f64 : Product::f16;
    m.d_in_f16 = m.c_in_f16 = transfer.type == "f16";
    const bool fits =
        transfer.type == "f16" || transfer.type == "f32" || transfer.type == "f64" || transfer.type == "s32";
    const bool shaped = (m.shape.m == 8 || m.shape.m == 16 || m.shape.m == 32) && m.shape.n % kBlock == 0 &&
                        m.shape.n <= 32 && m.shape.m * m.shape.n <= 256;
    if (!fits || !shaped) d.fail_unknown();
  }
  return m;
}

// A register of A or B: `count` elements, which are either adjacent in memory or in consecutive rows.
void load_register(KernelDecoder& d, Matrix& matrix, int to, Piece piece, int bits, bool side_by_side) {
  if (side_by_side || bits >= 32) {
    matrix.load({to}, piece, bits == 64 ? 8 : 4);
    return;
  }
  if (bits < 8) d.fail_unknown();  // the ISA allows only row-major layouts for these
  int packed = -1;
  for (int i = 0; i < 32 / bits; ++i) {
    const int narrow = d.temporary(Slot::b16);
    matrix.load({narrow}, {piece.major + i, piece.minor}, bits / 8);
    int part = d.temporary(Slot::b32);
    d.emit_lane("%widen.u.16.32", {part}, {narrow});
    if (i > 0) {
      const int shifted = d.temporary(Slot::b32), both = d.temporary(Slot::b32);
      d.emit_lane("shl.b32", {shifted}, {part, d.constant(Slot::b32, static_cast<std::uint64_t>(bits * i))});
      d.emit_lane("or.b32", {both}, {packed, shifted});
      part = both;
    }
    packed = part;
  }
  d.emit_lane("mov.b32", {to}, {packed});
}

void load_input(KernelDecoder& d, const Transfer& transfer, const Multiplication& m) {
  const bool of_b = transfer.matrix == 'b';
  // Whether consecutive k are in the same row of memory.
  const bool k_is_minor = of_b ? !transfer.row : transfer.row;
  const int rows = of_b ? m.shape.n : m.shape.m;
  const int worth = transfer.bits == 64 ? 1 : std::max(1, 32 / transfer.bits);  // elements per register
  Matrix matrix(d, 1, transfer.space, transfer.bits, d.num_operands() == 3, k_is_minor ? m.shape.k : rows,
                k_is_minor ? 0 : worth, k_is_minor ? worth : 0);
  const std::vector<int> to = write_fragment(d, 0, input_registers(m, of_b), m.accumulator_slot());
  const int row_blocks = rows / kBlock, k_blocks = m.k_blocks();
  const auto count = static_cast<std::size_t>(row_blocks * k_blocks);
  for (std::size_t i = 0; i < count; ++i) {
    const int block = static_cast<int>(i);
    const int row = kBlock * (of_b ? block / k_blocks : block % row_blocks);
    const int k = Shape::block_k(transfer.bits) * (of_b ? block % k_blocks : block / row_blocks);
    load_register(d, matrix, to[i], k_is_minor ? Piece{row, k} : Piece{k, row}, transfer.bits, k_is_minor);
  }
  for (std::size_t i = count; i < to.size(); ++i) d.emit_lane("mov.b32", {to[i]}, {to[i % count]});
}

// Calls f(registers, piece, bytes) for each access to C or D; `registers` are those of the fragment, or halves of them
// for f16.
template <typename F>
void for_each_accumulator(const Multiplication& m, const Transfer& transfer, const std::vector<int>& values, F f) {
  const int row_blocks = m.row_blocks(), bytes = transfer.bits / 8;
  const bool halves = transfer.bits == 16;
  for (int column = 0; column < m.shape.n / kBlock; ++column) {
    for (int row = 0; row < row_blocks; ++row) {
      const auto first = static_cast<std::size_t>(2 * (column * row_blocks + row));
      if (transfer.row) {
        const Piece piece{kBlock * row, kBlock * column};
        if (halves) {
          f(std::vector<int>{values[first / 2]}, piece, 4, -1);
        } else {
          f(std::vector<int>{values[first], values[first + 1]}, piece, bytes, -1);
        }
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        const Piece piece{kBlock * column + i, kBlock * row};
        f(std::vector<int>{values[halves ? first / 2 : first + static_cast<std::size_t>(i)]}, piece, bytes,
          halves ? i : -1);
      }
    }
  }
}

void decode_wmma_load(KernelDecoder& d) {
  const Transfer transfer = transfer_of(d);
  const Multiplication m = multiplication_of(d, transfer);
  d.expect_operands(2, 3);
  if (transfer.matrix == 'a' || transfer.matrix == 'b') {
    load_input(d, transfer, m);
  } else if (transfer.matrix == 'c') {
    Matrix matrix(d, 1, transfer.space, transfer.bits, d.num_operands() == 3, transfer.row ? m.shape.n : m.shape.m,
                  transfer.row ? 0 : 2, transfer.row ? 2 : 0);
    const std::vector<int> to = write_fragment(d, 0, accumulators(m, m.c_in_f16), m.accumulator_slot());
    int low = -1;
    for_each_accumulator(m, transfer, to, [&](const std::vector<int>& registers, Piece piece, int bytes, int half) {
      if (half < 0) {
        matrix.load(registers, piece, bytes);
        return;
      }
      const int value = d.temporary(Slot::b16);
      matrix.load({value}, piece, 2);
      if (half == 0) {
        low = value;
      } else {
        d.emit_lane("%pack.16.32", registers, {low, value});
      }
    });
  } else {
    d.fail_unknown();
  }
  d.first_emitted().instruction_class =
      transfer.space == Space::shared ? InstructionClass::shared_load : InstructionClass::global_load;
}

void decode_wmma_store(KernelDecoder& d) {
  const Transfer transfer = transfer_of(d);
  if (transfer.matrix != 'd') d.fail_unknown();
  const Multiplication m = multiplication_of(d, transfer);
  d.expect_operands(2, 3);
  Matrix matrix(d, 0, transfer.space, transfer.bits, d.num_operands() == 3, transfer.row ? m.shape.n : m.shape.m,
                transfer.row ? 0 : 2, transfer.row ? 2 : 0);
  const std::vector<int> values = read_fragment(d, 1, accumulators(m, m.d_in_f16), m.accumulator_slot());
  for_each_accumulator(m, transfer, values, [&](const std::vector<int>& registers, Piece piece, int bytes, int half) {
    if (half < 0) {
      matrix.store(registers, piece, bytes);
      return;
    }
    const int value = d.temporary(Slot::b16);
    d.emit_lane(half == 0 ? "%unpack.32.0" : "%unpack.32.1", {value}, registers);
    matrix.store({value}, piece, 2);
  });
  d.first_emitted().instruction_class =
      transfer.space == Space::shared ? InstructionClass::shared_store : InstructionClass::global_store;
}

void decode_wmma(KernelDecoder& d) {
  const std::string_view which = d.parts().size() > 1 ? d.parts()[1] : "";
  if (which == "load") return decode_wmma_load(d);
  if (which == "store") return decode_wmma_store(d);
  if (which == "mma") return decode_multiplication(d, true);
  d.fail_unknown();
}

}  // namespace

void add_matrix_operations(OperationTable& table) {
  table.add("mma", decode_mma);
  table.add("wmma", decode_wmma);
}

}  // namespace flash_ladder::emulator
