// Everything known about a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace flash_ladder {

/// A GPU as the worker sees it. For every member, null or zero means "not known".
struct DeviceInfo {
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 90 for 9.0
  std::int64_t memory_total_bytes = 0;
  std::int64_t memory_free_bytes = 0;
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
  bool is_virtual = false;     // the virtual GPU: it counts and finds mistakes, but has no clock
  int smem_per_cta_bytes = 0;  // the most dynamic shared memory that a CTA can opt in to
  int driver_version = 0;      // 13000 for 13.0
  int runtime_version = 0;
  std::string driver;  // "580.159.04"; empty when not known
  int sm_clock_max_mhz = 0;
  int memory_clock_max_mhz = 0;
};

}  // namespace flash_ladder
