// The operands of wgmma in shared memory. PTX ISA, "Matrix Descriptor Format", "Shared Memory Matrix Layout".
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

class CtaExecutor;

inline constexpr int kWarpgroup = 4;  // warps

/// What a wgmma takes from registers that are the same in all lanes.
struct WgmmaScalars {
  std::array<std::uint64_t, 2> descriptors = {};  // of A, if it has one, and of B
  bool accumulates = false;

  bool operator==(const WgmmaScalars&) const = default;
};

/// Reports scalars that differ between the lanes.
WgmmaScalars wgmma_scalars(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t mask);

Swizzle swizzle_of(std::uint64_t descriptor);

/// For A, empty if it is in registers, and for B: the addresses of its 16-byte chunks. There are two for each of its rows
/// (of A; columns of B), along k; or, if it is transposed, those of each k, one for each eight rows.
using WgmmaChunks = std::array<std::vector<std::uint32_t>, 2>;

/// Reports chunks that are out of bounds, and returns others in their place.
WgmmaChunks wgmma_chunks(CtaExecutor& cta, const Warp& warp, const Instruction& instruction,
                         const WgmmaScalars& scalars);
/// Counts the wavefronts in which the tensor cores read the chunks.
void count_chunks(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, const WgmmaChunks& chunks);

}  // namespace flash_ladder::emulator
