// How many CTAs of a kernel fit on an SM at once.
#pragma once

#include <string>

#include "host/sm_limits.h"

namespace flash_ladder {

struct Occupancy {
  int ctas_per_sm;  // 0 if not even one fits
  std::string
      limited_by;  // "registers", "shared memory", "threads" or "CTAs"; "registers and shared memory" if both do
};

/// `smem_bytes` is static + dynamic shared memory per CTA, without the 1 KB that the system reserves.
Occupancy occupancy(const SmLimits& limits, int threads_per_cta, int registers_per_thread, int smem_bytes);

}  // namespace flash_ladder
