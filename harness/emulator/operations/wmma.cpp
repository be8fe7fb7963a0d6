// wmma: fragments of matrices in memory. Their multiplication is that of mma: matrices.cpp. PTX ISA, "Warp-Level Matrix
// Instructions: wmma.load", "wmma.store", "wmma.mma".
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/matrices.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;

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

}  // namespace

void decode_wmma(KernelDecoder& d) {
  const std::string_view which = d.parts().size() > 1 ? d.parts()[1] : "";
  if (which == "load") return decode_wmma_load(d);
  if (which == "store") return decode_wmma_store(d);
  if (which == "mma") return decode_multiplication(d, true);
  d.fail_unknown();
}

}  // namespace flash_ladder::emulator
