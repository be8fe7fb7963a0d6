// Rejects configurations that no SM can hold at compile time. The compiler's front end does this in seconds, before its
// back end would spend minutes on a kernel whose registers do not fit.
#pragma once

#include "host/sm_limits.h"

namespace flash_ladder {

/// The most shared memory that a CTA gets on any SM, but not on every SM: a configuration may be made for one
/// architecture, and on the others a smaller one is chosen at launch.
constexpr int most_smem_per_cta() {
  int most = 0;
  for (const SmLimits& limits : kSmLimits) most = limits.smem_per_cta_bytes > most ? limits.smem_per_cta_bytes : most;
  return most;
}

// Separate templates, so that the compiler prints the figures with the message.
template <int kSmemBytes, int kMost>
struct SharedMemoryOfACta {
  static_assert(
      kSmemBytes <= kMost,
      "kSmemBytes is more shared memory than a CTA gets on any SM (here kMost, and less on most: host/sm_limits.h): "
      "take a smaller kBlockQ or kBlockKV, or fewer stages");
};
template <int kAccumulators, int kMost>
struct RegistersOfAThread {
  static_assert(kAccumulators <= kMost,
                "the fp32 accumulators of S and O alone, kBlockQ / kNumWarps rows of kBlockKV (or kStepKV) + kHeadDimV "
                "columns, are more than the kMost registers of each of a warp's 32 threads: take a smaller kBlockQ or "
                "kBlockKV, or more warps");
};

/// Rejects traits that no SM can hold. A version that keeps S and O elsewhere has few rows per warp, and passes.
template <typename Traits, int kStepKV, int kHeadDimV>
constexpr void check_limits() {
  (void)SharedMemoryOfACta<static_cast<int>(Traits::kSmemBytes), most_smem_per_cta()>();
  constexpr int kRows = Traits::kBlockQ / Traits::kNumWarps;
  (void)RegistersOfAThread<kRows*(kStepKV + kHeadDimV) / 32, kMaxRegistersPerThread>();
}

}  // namespace flash_ladder
