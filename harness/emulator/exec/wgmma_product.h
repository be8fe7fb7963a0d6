// The arithmetic of wgmma: D = A B, or D += A B, in fp32. PTX ISA, "wgmma.mma_async".
#pragma once

#include <cstddef>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"
#include "emulator/exec/wgmma_operands.h"

namespace flash_ladder::emulator {

/// One wgmma. B is read from shared memory, and converted to fp32 once for all warps of the warpgroup.
class WgmmaProduct {
 public:
  WgmmaProduct(const Wgmma& wgmma, const WgmmaChunks& chunks, bool accumulates, const std::byte* shared);

  /// Computes a warp's 16 rows of D.
  void add_to(Warp& warp) const;

 private:
  void convert_b();
  void convert_a(const Warp& warp, float* a) const;
  void convert_shared_a(int first_row, float* a) const;
  void narrow(Warp& warp, float* const* d) const;

  const Wgmma& wgmma_;
  const WgmmaChunks& chunks_;
  const bool accumulates_;
  const std::byte* const shared_;
  const int per_chunk_;            // elements
  alignas(64) float b_[32 * 256];  // [k][n], columns in the order that lanes::wgmma_f16() expects
};

}  // namespace flash_ladder::emulator
