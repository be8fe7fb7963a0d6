#include "emulator/exec/wgmma_operands.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/exec/async_chunks.h"
#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

struct Descriptor {
  std::uint32_t start, leading, stride;  // bytes
  std::uint32_t base_offset;
  Swizzle swizzle;
};

Descriptor decoded(std::uint64_t bits) {
  constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_128, Swizzle::bytes_64, Swizzle::bytes_32};
  const auto field = [&](int from) { return static_cast<std::uint32_t>((bits >> from) & 0x3fff) << 4; };
  return {.start = field(0),
          .leading = field(16),
          .stride = field(32),
          .base_offset = static_cast<std::uint32_t>((bits >> 49) & 7),
          .swizzle = kSwizzles[bits >> 62]};
}

// The addresses of one operand. PTX ISA, "Strides".
std::vector<std::uint32_t> chunks_of(CtaExecutor& cta, const Warp& warp, const Instruction& instruction,
                                     std::uint64_t bits, int rows, bool transposed) {
  const Descriptor descriptor = decoded(bits);
  const std::uint32_t span = kChunk << static_cast<unsigned>(descriptor.swizzle);  // of the swizzle's rows
  const std::uint32_t side_by_side = span / kChunk;
  std::vector<std::uint32_t> chunks;
  std::uint32_t wrong = 0;
  const std::uint64_t size = cta.memory().shared_bytes();
  const auto add = [&](std::uint32_t address) {
    // The base offset identifies a pattern that does not start at a multiple of its size.
    const std::uint32_t phase = swizzled(address - (descriptor.base_offset << 7), descriptor.swizzle) ^
                                (address - (descriptor.base_offset << 7));
    const std::uint32_t offset = (address ^ phase) - kSharedBase;
    const bool inside = std::uint64_t{offset} + kChunk <= size;
    if (!inside) wrong = address;
    chunks.push_back(inside ? offset : 0);
  };
  const auto unsigned_rows = static_cast<std::uint32_t>(rows);
  if (!transposed) {
    for (std::uint32_t row = 0; row < unsigned_rows; ++row) {
      const std::uint32_t at = descriptor.start + row / 8 * descriptor.stride + row % 8 * span;
      add(at);
      add(at + (descriptor.swizzle == Swizzle::none ? descriptor.leading : kChunk));
    }
  } else {
    for (std::uint32_t k = 0; k < 16; ++k) {
      for (std::uint32_t j = 0; j < unsigned_rows / 8; ++j) {
        if (descriptor.swizzle == Swizzle::none) {
          add(descriptor.start + j * descriptor.stride + k % 8 * kChunk + k / 8 * descriptor.leading);
        } else {
          add(descriptor.start + j % side_by_side * kChunk + j / side_by_side * descriptor.leading + k % 8 * span +
              k / 8 * descriptor.stride);
        }
      }
    }
  }
  if (wrong != 0) {
    cta.find(
        FindingKind::out_of_bounds, &warp, &instruction, -1, wrong - kSharedBase,
        fmt::format("an operand of wgmma reaches byte {} of the block's {} bytes of shared memory: its descriptor has "
                    "start {}, leading offset {} and stride offset {}",
                    static_cast<std::int32_t>(wrong - kSharedBase), size,
                    static_cast<std::int32_t>(descriptor.start - kSharedBase), descriptor.leading, descriptor.stride));
  }
  return chunks;
}

}  // namespace

Swizzle swizzle_of(std::uint64_t descriptor) { return decoded(descriptor).swizzle; }

WgmmaScalars wgmma_scalars(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const Wgmma& wgmma = cta.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  const int lane = std::countr_zero(mask);
  WgmmaScalars scalars;
  const std::size_t num_descriptors = wgmma.a.empty() ? 2 : 1;
  for (std::size_t i = 0; i < num_descriptors; ++i) {
    const auto* lanes = reinterpret_cast<const std::uint64_t*>(warp.registers + instruction.r[i]);
    scalars.descriptors[2 - num_descriptors + i] = lanes[lane];
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      if (lanes[std::countr_zero(rest)] == lanes[lane]) continue;
      cta.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(rest), std::nullopt,
               "a matrix descriptor of wgmma that differs between the lanes of the warp");
      break;
    }
  }
  std::uint32_t scale;
  std::memcpy(&scale, warp.registers + instruction.r[num_descriptors], sizeof scale);
  scalars.accumulates = (scale & mask) != 0;
  if (scalars.accumulates && (scale & mask) != mask) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(mask & ~scale), std::nullopt,
             "scale-d of wgmma differs between the lanes of the warp");
  }
  return scalars;
}

WgmmaChunks wgmma_chunks(CtaExecutor& cta, const Warp& warp, const Instruction& instruction,
                         const WgmmaScalars& scalars) {
  const Wgmma& wgmma = cta.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  WgmmaChunks chunks;
  if (wgmma.a.empty()) chunks[0] = chunks_of(cta, warp, instruction, scalars.descriptors[0], 64, wgmma.transposes_a);
  chunks[1] = chunks_of(cta, warp, instruction, scalars.descriptors[1], wgmma.n, wgmma.transposes_b);
  return chunks;
}

void count_chunks(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, const WgmmaChunks& of_operands) {
  const Wgmma& wgmma = cta.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  // The tensor cores read 8 rows of 16 bytes at a time, as ldmatrix does.
  for (const std::vector<std::uint32_t>& chunks : of_operands) {
    // Chunks of eight consecutive rows: in `chunks`, two of a row are adjacent.
    const bool transposed = &chunks == &of_operands[0] ? wgmma.transposes_a : wgmma.transposes_b;
    const std::size_t step = transposed ? chunks.size() / 16 : 2;
    std::vector<std::uint32_t> by_matrix;
    by_matrix.reserve(chunks.size());
    for (std::size_t block = 0; block < chunks.size(); block += 8 * step)
      for (std::size_t i = 0; i < step; ++i)
        for (std::size_t row = 0; row < 8; ++row) by_matrix.push_back(chunks[block + row * step + i]);
    for_each_access(warp, cta.index_of(instruction), -1, by_matrix, [&](const SharedAccess& access) {
      cta.memory().count_shared(instruction, access.mask, access.mask, kChunk, access.offsets, true);
    });
  }
}

}  // namespace flash_ladder::emulator
