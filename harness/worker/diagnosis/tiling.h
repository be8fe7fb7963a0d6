// The properties of a configuration that a diagnosis needs.
#pragma once

#include <cstdint>
#include <optional>

#include "results/result.h"

namespace flash_ladder {

/// How a version divides the problem into tiles, and whether its lanes hold fragments of mma m16n8k16.
struct Tiling {
  int block_q = 64;   // query rows per CTA
  int block_kv = 64;  // keys per K/V tile
  int step_kv = 64;   // keys per step of the online softmax
  int num_warps = 4;
  bool mma = false;  // S and O are fragments D; a warp owns block_q / num_warps neighbouring rows

  /// Whether the warp and lane of a row can be named.
  bool has_fragments() const { return mma && block_q % (16 * num_warps) == 0; }
  int rows_per_warp() const { return block_q / num_warps; }
};

/// The place that holds an element of O before it is stored: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating
/// point type", in the layout of common/ptx.h. nullopt for a version without fragments.
std::optional<FragmentElement> fragment_element(const Tiling& tiling, std::int64_t row, std::int64_t column);

}  // namespace flash_ladder
