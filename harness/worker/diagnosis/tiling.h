// What of a configuration a diagnosis speaks of.
#pragma once

#include <cstdint>
#include <optional>

#include "results/result.h"

namespace flash_ladder {

/// How a version cuts up the problem, and whether its lanes hold fragments of mma m16n8k16.
struct Tiling {
  int block_q = 64;   // query rows per CTA
  int block_kv = 64;  // keys per K/V tile
  int step_kv = 64;   // keys per step of the online softmax
  int num_warps = 4;
  bool mma = false;  // S and O are fragments D; a warp owns block_q / num_warps neighbouring rows

  /// Whether a row has a warp and a lane to name.
  bool has_fragments() const { return mma && block_q % (16 * num_warps) == 0; }
  int rows_per_warp() const { return block_q / num_warps; }
};

/// Who holds an element of O before it is stored: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", as
/// common/ptx.h lays it out. nullopt for a version without fragments.
std::optional<FragmentElement> fragment_element(const Tiling& tiling, std::int64_t row, std::int64_t column);

}  // namespace flash_ladder
