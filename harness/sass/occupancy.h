// How many CTAs of a kernel an SM holds at once.
#pragma once

#include <string>

namespace flash_ladder {

/// What an SM of one compute capability has (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
struct SmLimits {
  int compute_capability;  // 80, 86, 89, 90
  int registers;           // 32-bit registers per SM
  int threads;             // per SM
  int ctas;                // per SM
  int smem_bytes;          // per SM
  int smem_per_cta_bytes;  // the most one CTA can have
};

/// nullptr for a compute capability that is not in the table.
const SmLimits* sm_limits(int compute_capability);

struct Occupancy {
  int ctas_per_sm;  // 0 when not even one fits
  std::string
      limited_by;  // "registers", "shared memory", "threads" or "CTAs"; "registers and shared memory" where both do
};

/// `smem_bytes` is static + dynamic shared memory per CTA, without the 1 KB that the system reserves.
Occupancy occupancy(const SmLimits& limits, int threads_per_cta, int registers_per_thread, int smem_bytes);

}  // namespace flash_ladder
