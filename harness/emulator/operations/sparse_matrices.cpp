// mma with a matrix A of which half of the elements are zero. PTX ISA, "Matrix multiply-accumulate operation using
// mma.sp instruction with sparse matrix A".
//
// A row of A is stored without its zeros: of each chunk of four units, two are stored, and four bits of metadata say which
// two. A unit is an element of 16 or 8 bits, half an element of tf32, or two neighbours of 4 bits. The fragment of A has
// the layout of mma's with half as many columns. So the zeros are put back, after which it is an ordinary multiplication.
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/operations/matrices.h"

namespace flash_ladder::emulator {
namespace {

constexpr int kBlockBytes = 16;  // bytes of a row that four lanes hold in one register
constexpr int kChunk = 4;        // units, two of which are stored

// The location of the metadata for 8 rows and 16 stored bytes of each.
struct Metadata {
  int unit_bytes, blocks, selector;

  /// The lane with the metadata of row g (half: + 8) and a block, and the shift to apply to its register.
  int lane(int g, int half, int block) const {
    if (unit_bytes == 2) return 4 * g + (blocks == 1 ? selector : 2 * selector + block);
    return 4 * g + (blocks == 1 ? 2 * selector : 2 * block) + half;
  }
  int shift(int half) const { return unit_bytes == 2 ? 16 * half : 0; }
};

bool is_valid(std::uint32_t indices, ptx::Type type, bool ordered) {
  if (type.kind == 't') return indices == 0b0100 || indices == 0b1110;  // both halves of one element
  const std::uint32_t first = indices & 3, second = indices >> 2;
  return ordered ? first < second : first != second;
}

// r: dense A, stored A, metadata. `elements`: blocks of a stored row. `bytes`: of a unit. `count`: the selector. `has_count`: the
// indices must ascend. `type`: kind 't' for tf32.
void expand(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  const int blocks = instruction.elements, unit = instruction.bytes;
  const Metadata metadata{unit, blocks, static_cast<int>(instruction.count)};
  const auto lanes = [&](int operand) {
    return reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[static_cast<std::size_t>(operand)]);
  };
  const int stored_at = instruction.writes, metadata_at = stored_at + 2 * blocks;
  std::uint32_t contributors = 0;
  std::uint32_t dense[8][kWarpSize] = {};
  for (int block = 0; block < blocks; ++block) {
    for (int half = 0; half < 2; ++half) {
      for (int g = 0; g < kBlock; ++g) {
        const int from = metadata.lane(g, half, block);
        contributors |= 1u << from;
        std::uint32_t indices = lanes(metadata_at)[from] >> metadata.shift(half);
        std::byte stored[kBlockBytes], row[2 * kBlockBytes] = {};
        std::memcpy(stored, lanes(stored_at + 2 * block + half) + 4 * g, sizeof stored);
        for (int chunk = 0; chunk < kBlockBytes / unit / 2; ++chunk, indices >>= 4) {
          if (!is_valid(indices & 15, instruction.type, instruction.has_count)) {
            cta.find(FindingKind::invalid_operation, &warp, &instruction, from, std::nullopt,
                     fmt::format(
                         "the metadata of lane {} name the elements {:#06b} of a chunk of row {} of A; they must be {}",
                         from, indices & 15, g + 8 * half,
                         instruction.type.kind == 't' ? "0b0100 or 0b1110"
                         : instruction.has_count      ? "two different ones, the lower one first"
                                                      : "two different ones"));
          }
          for (int i = 0; i < 2; ++i) {
            const auto place = static_cast<int>((indices >> (2 * i)) & 3);
            std::memcpy(row + (kChunk * chunk + place) * unit, stored + (2 * chunk + i) * unit,
                        static_cast<std::size_t>(unit));
          }
        }
        for (int i = 0; i < 2; ++i)
          std::memcpy(dense[2 * (2 * block + i) + half] + 4 * g, row + kBlockBytes * i, kBlockBytes);
      }
    }
  }
  const auto k = static_cast<std::size_t>(metadata_at);
  report_undefined(cta, warp, instruction, undefined_sources(cta, warp, instruction, k, k + 1, contributors), "used");
  for (int i = 0; i < instruction.writes; ++i) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((mask >> lane) & 1) lanes(i)[lane] = dense[i][lane];
    }
  }
}

}  // namespace

// mma.sp[::ordered_metadata].sync.aligned.… d, a, b, c, metadata, selector
void decode_sparse_multiplication(KernelDecoder& d) {
  const MultiplicationOpcode opcode = multiplication_opcode(d, 2);
  const Multiplication& m = opcode.multiplication;
  const int bits = bits_of(m.product), blocks = m.shape.k * bits / 8 / (2 * kBlockBytes);
  const bool known = m.shape.m == 16 && m.shape.n == 8 && bits != 64 && bits != 1 && (blocks == 1 || blocks == 2) &&
                     m.shape.k * bits / 8 == 2 * kBlockBytes * blocks && opcode.a_by_row && !opcode.b_by_row;
  if (!known) d.fail_unknown();
  d.expect_operands(6);
  const int unit = bits >= 16 ? 2 : 1;
  const int selector = d.immediate(5), most = unit == 2 ? (blocks == 1 ? 3 : 1) : (blocks == 1 ? 1 : 0);
  if (selector < 0 || selector > most)
    d.fail(fmt::format("a sparsity selector of {}, which is 0 to {} here", selector, most));
  const std::size_t stored = 2 * static_cast<std::size_t>(blocks), dense = 2 * stored;
  std::vector<int> reads = read_fragment(d, 1, stored, Slot::b32);
  const std::vector<int> b = read_fragment(d, 2, stored, Slot::b32);
  const std::vector<int> c = read_fragment(d, 3, m.c_in_f16 ? 2 : 4, Slot::b32);
  reads.push_back(d.read(d.operand(4), Slot::b32));
  std::vector<int> a;
  for (std::size_t i = 0; i < dense; ++i) a.push_back(d.temporary(Slot::b32));
  Instruction& out = d.emit(expand, InstructionClass::mma, a, reads);
  out.elements = static_cast<std::uint8_t>(blocks);
  out.bytes = static_cast<std::uint8_t>(unit);
  out.count = static_cast<std::uint32_t>(selector);
  out.has_count = d.has("sp::ordered_metadata");
  out.type = {.kind = m.product == Product::tf32 ? 't' : 'b', .bits = bits};
  out.own_sources = static_cast<std::uint16_t>(1u << stored);  // only some lanes have metadata
  const std::vector<int> to = write_fragment(d, 0, m.d_in_f16 ? 2 : 4, Slot::b32);
  std::vector<int> sums = m.c_in_f16 ? widened(d, c) : c;
  for (std::size_t i = 0; i < static_cast<std::size_t>(blocks); ++i) {
    const auto part = [](const std::vector<int>& all, std::size_t from, std::size_t count) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
      return std::vector<int>(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    const bool last = i + 1 == static_cast<std::size_t>(blocks);
    std::vector<int> results = to;
    if (!last || m.d_in_f16) {
      results.clear();
      for (int k = 0; k < 4; ++k) results.push_back(d.temporary(Slot::b32));
    }
    emit_multiplication(d, m, results, part(a, 4 * i, 4), part(b, 2 * i, 2), sums);
    sums = results;
  }
  if (m.d_in_f16) narrow(d, sums, to);
}

}  // namespace flash_ladder::emulator
