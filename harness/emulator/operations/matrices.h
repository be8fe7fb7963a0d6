// Shared by the tensor-core instructions: matrices.cpp, wmma.cpp, sparse_matrices.cpp, quad_matrices.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {

constexpr int kBlock = 8;  // rows of A, columns of B

/// The types of A and B.
enum class Product : std::uint8_t {
  f16,
  bf16,
  tf32,
  f64,
  u8_u8,
  u8_s8,
  s8_u8,
  s8_s8,
  u4_u4,
  u4_s4,
  s4_u4,
  s4_s4,
  xor_,
  and_
};

/// Bits of an element of A or B.
int bits_of(Product product);

/// The product of the types that an opcode names; nullopt if there is none. `is_and`: of single bits, which .and.popc
/// multiplies instead of .xor.popc.
std::optional<Product> product_of(std::string_view a, std::string_view b, bool is_and);

struct Shape {
  int m = 0, n = 0, k = 0;
  /// The number of k in a block: as many as four registers hold.
  static int block_k(int bits) { return bits == 64 ? 4 : 4 * 32 / bits; }
};

/// "m16n8k16" → Shape.
std::optional<Shape> shape_of(std::string_view part);

/// What an instruction computes: its shape, and the types named between the layouts and the operands.
struct Multiplication {
  Shape shape;
  Product product{};
  bool saturates = false;  // .satfinite
  bool d_in_f16 = false, c_in_f16 = false;

  Slot accumulator_slot() const { return product == Product::f64 ? Slot::b64 : Slot::b32; }
  int row_blocks() const { return shape.m / kBlock; }
  int k_blocks() const { return shape.k / Shape::block_k(bits_of(product)); }
  bool is(int m, int n, int k) const { return shape.m == m && shape.n == n && shape.k == k; }
};

/// Whether mma, or wmma, has this shape for these types.
bool is_known(const Multiplication& multiplication, bool wmma);
/// The number of registers of a fragment of A or B in wmma: those of f16 store everything twice or more.
std::size_t input_registers(const Multiplication& multiplication, bool of_b);
/// The number of registers of an accumulator.
std::size_t accumulators(const Multiplication& multiplication, bool in_f16);

/// The parts of the opcode: shape, layouts, types, modifiers. Fails if it is malformed; the caller checks whether the
/// shape exists.
struct MultiplicationOpcode {
  Multiplication multiplication;
  bool a_by_row = true, b_by_row = false;
};
MultiplicationOpcode multiplication_opcode(KernelDecoder& decoder, std::size_t first_part);

/// The registers of a fragment that consists of this many.
std::vector<int> read_fragment(KernelDecoder& decoder, std::size_t operand, std::size_t length, Slot slot);
std::vector<int> write_fragment(KernelDecoder& decoder, std::size_t operand, std::size_t length, Slot slot);

/// D = A B + C for 8 or 16 rows and 8 columns, and one or two blocks of k; A's registers are in order of k and row,
/// with two accumulators for each block of rows.
void emit_multiplication(KernelDecoder& decoder, const Multiplication& multiplication, const std::vector<int>& to,
                         const std::vector<int>& a, const std::vector<int>& b, const std::vector<int>& c);

/// Accumulators in the form that the multiplication needs: f16 accumulators are packed two to a register.
std::vector<int> widened(KernelDecoder& decoder, const std::vector<int>& pairs);
void narrow(KernelDecoder& decoder, const std::vector<int>& values, const std::vector<int>& to);

/// mma and wmma.mma.
void decode_multiplication(KernelDecoder& decoder, bool wmma);
/// wmma.load, wmma.store and wmma.mma.
void decode_wmma(KernelDecoder& decoder);
/// mma.sp and mma.sp::ordered_metadata.
void decode_sparse_multiplication(KernelDecoder& decoder);
/// mma.m8n8k4 with f16.
void decode_quad_multiplication(KernelDecoder& decoder);

}  // namespace flash_ladder::emulator
