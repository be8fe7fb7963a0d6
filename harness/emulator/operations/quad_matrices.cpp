// mma.m8n8k4 with f16, from Volta: four multiplications of 8 × 8 × 4 at a time, each by eight lanes, 4 q … 4 q + 3 and
// the same plus 16. PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/divergence.h"
#include "emulator/lanes/float_bits.h"
#include "emulator/operations/matrices.h"

namespace flash_ladder::emulator {
namespace {

constexpr int kQuads = 4, kDepth = 4;

// Bits of Instruction::count.
constexpr std::uint32_t kAByRow = 1, kBByRow = 2, kDInF16 = 4, kCInF16 = 8;

// The lane in the warp that has number 0 … 7 in a quad.
int lane_of(int quad, int number) { return 4 * quad + number % 4 + (number >= 4 ? 16 : 0); }

struct Place {
  int row, column;
};

// Element i of an accumulator's fragment.
Place place_of(int number, int i, bool in_f16) {
  if (in_f16) return {number, i};
  return {(number & 1) + (i & 2) + (number >= 4 ? 4 : 0), (i & 4) + (number & 2) + (i & 1)};
}

// r: D, A, B, C. `elements`: the index of the element of D in the first register, which is also that of C.
void multiply_quads(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  const auto flag = [&](std::uint32_t bit) { return (instruction.count & bit) != 0; };
  const int d_registers = instruction.writes, a_at = d_registers, b_at = a_at + 2, c_at = b_at + 2;
  const int first = instruction.elements, count = d_registers * (flag(kDInF16) ? 2 : 1);
  const auto word = [&](int operand, int lane) -> std::uint32_t& {
    return reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[static_cast<std::size_t>(operand)])[lane];
  };
  const auto half = [&](int operand, int lane, int i) {
    return to_float(f16{static_cast<std::uint16_t>(word(operand + i / 2, lane) >> (16 * (i % 2)))});
  };
  float results[kWarpSize][8];
  for (int quad = 0; quad < kQuads; ++quad) {
    float a[8][kDepth], b[kDepth][8], c[8][8] = {};
    for (int number = 0; number < 8; ++number) {
      const int lane = lane_of(quad, number), lower = number % 4, upper = number >= 4 ? 4 : 0;
      for (int i = 0; i < 4; ++i) {
        (flag(kAByRow) ? a[number][i] : a[i + upper][lower]) = half(a_at, lane, i);
        (flag(kBByRow) ? b[lower][i + upper] : b[i][number]) = half(b_at, lane, i);
      }
      for (int i = 0; i < (flag(kCInF16) ? 8 : count); ++i) {
        const Place place = place_of(number, flag(kCInF16) ? i : first + i, flag(kCInF16));
        c[place.row][place.column] = flag(kCInF16) ? half(c_at, lane, i) : std::bit_cast<float>(word(c_at + i, lane));
      }
    }
    for (int number = 0; number < 8; ++number) {
      for (int i = 0; i < count; ++i) {
        const Place place = place_of(number, first + i, flag(kDInF16));
        float sum = c[place.row][place.column];
        for (int k = 0; k < kDepth; ++k) sum += a[place.row][k] * b[k][place.column];
        results[lane_of(quad, number)][i] = sum;
      }
    }
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (int i = 0; i < count; ++i) {
      const float value = results[lane][i];
      if (!flag(kDInF16)) {
        word(i, lane) = std::isnan(value) ? 0x7fffffff : std::bit_cast<std::uint32_t>(value);
        continue;
      }
      std::uint32_t& to = word(i / 2, lane);
      const std::uint32_t bits = from_float<f16>(value).bits;
      to = i % 2 == 0 ? (to & 0xffff0000u) | bits : (to & 0xffffu) | bits << 16;
    }
  }
}

}  // namespace

// mma.sync.aligned.m8n8k4.alayout.blayout.dtype.f16.f16.ctype
void decode_quad_multiplication(KernelDecoder& d) {
  const MultiplicationOpcode opcode = multiplication_opcode(d, 1);
  const Multiplication& m = opcode.multiplication;
  if (m.d_in_f16 && !m.c_in_f16) d.fail_unknown();
  d.expect_operands(4);
  std::vector<int> inputs = read_fragment(d, 1, 2, Slot::b32);
  const std::vector<int> b = read_fragment(d, 2, 2, Slot::b32);
  inputs.insert(inputs.end(), b.begin(), b.end());
  const std::vector<int> c = read_fragment(d, 3, m.c_in_f16 ? 4 : 8, Slot::b32);
  const std::vector<int> to = write_fragment(d, 0, m.d_in_f16 ? 4 : 8, Slot::b32);
  const std::uint32_t flags = (opcode.a_by_row ? kAByRow : 0) | (opcode.b_by_row ? kBByRow : 0) |
                              (m.d_in_f16 ? kDInF16 : 0) | (m.c_in_f16 ? kCInF16 : 0);
  // An instruction has at most 16 operands: if everything is f32, it is done in two halves, and registers that the
  // first half writes may still have to be read by the second.
  const std::size_t parts = m.c_in_f16 ? 1 : 2, step = to.size() / parts;
  std::vector<int> results;
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<int> reads = inputs, writes;
    const std::size_t c_step = c.size() / parts;
    reads.insert(reads.end(), c.begin() + static_cast<std::ptrdiff_t>(part * c_step),
                 c.begin() + static_cast<std::ptrdiff_t>((part + 1) * c_step));
    for (std::size_t i = 0; i < step; ++i) writes.push_back(parts == 1 ? to[i] : d.temporary(Slot::b32));
    Instruction& out = d.emit(multiply_quads, InstructionClass::mma, writes, reads);
    out.count = flags;
    out.elements = static_cast<std::uint8_t>(part * step);
    results.insert(results.end(), writes.begin(), writes.end());
  }
  if (parts == 1) return;
  for (std::size_t i = 0; i < to.size(); ++i) d.emit_lane("mov.b32", {to[i]}, {results[i]});
}

}  // namespace flash_ladder::emulator
