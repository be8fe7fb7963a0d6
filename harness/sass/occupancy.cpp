#include "sass/occupancy.h"

#include <cuda_occupancy.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

namespace flash_ladder {
namespace {

constexpr int kReservedSmemBytes = 1024;  // of every CTA, by the system, since sm_80
constexpr std::array<SmLimits, 4> kLimits = {{
    {.compute_capability = 80,
     .registers = 65536,
     .threads = 64 * 32,
     .ctas = 32,
     .smem_bytes = 164 * 1024,
     .smem_per_cta_bytes = 163 * 1024},
    {.compute_capability = 86,
     .registers = 65536,
     .threads = 48 * 32,
     .ctas = 16,
     .smem_bytes = 100 * 1024,
     .smem_per_cta_bytes = 99 * 1024},
    {.compute_capability = 89,
     .registers = 65536,
     .threads = 48 * 32,
     .ctas = 24,
     .smem_bytes = 100 * 1024,
     .smem_per_cta_bytes = 99 * 1024},
    {.compute_capability = 90,
     .registers = 65536,
     .threads = 64 * 32,
     .ctas = 32,
     .smem_bytes = 228 * 1024,
     .smem_per_cta_bytes = 227 * 1024},
}};

}  // namespace

const SmLimits* sm_limits(int compute_capability) {
  const auto* limits = std::find_if(kLimits.begin(), kLimits.end(), [&](const SmLimits& candidate) {
    return candidate.compute_capability == compute_capability;
  });
  return limits == kLimits.end() ? nullptr : limits;
}

Occupancy occupancy(const SmLimits& limits, int threads_per_cta, int registers_per_thread, int smem_bytes) {
  // The toolkit's own calculator knows in what portions registers and shared memory are given out.
  cudaOccDeviceProp device;
  device.computeMajor = limits.compute_capability / 10;
  device.computeMinor = limits.compute_capability % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = limits.threads;
  device.regsPerBlock = limits.registers;
  device.regsPerMultiprocessor = limits.registers;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 * 1024;  // without opting in to more, as every launch that needs more does
  device.sharedMemPerMultiprocessor = limits.smem_bytes;
  device.numSms = 1;  // not used here, but checked
  device.sharedMemPerBlockOptin = limits.smem_per_cta_bytes;
  device.reservedSharedMemPerBlock = kReservedSmemBytes;

  cudaOccFuncAttributes function;
  function.maxThreadsPerBlock = std::numeric_limits<int>::max();
  function.numRegs = registers_per_thread;
  function.sharedSizeBytes = 0;
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  function.maxDynamicSharedSizeBytes = smem_bytes;

  cudaOccDeviceState state;
  cudaOccResult result;
  const cudaOccError error =
      cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads_per_cta, smem_bytes);
  if (error != CUDA_OCC_SUCCESS) throw std::invalid_argument("occupancy of a launch that cannot be");

  std::string limited_by;
  const auto add = [&](unsigned factor, const char* name) {
    if (result.limitingFactors & factor) limited_by += (limited_by.empty() ? "" : " and ") + std::string(name);
  };
  add(OCC_LIMIT_REGISTERS, "registers");
  add(OCC_LIMIT_SHARED_MEMORY, "shared memory");
  add(OCC_LIMIT_WARPS, "threads");
  add(OCC_LIMIT_BLOCKS, "CTAs");
  return {.ctas_per_sm = result.activeBlocksPerMultiprocessor, .limited_by = limited_by};
}

}  // namespace flash_ladder
