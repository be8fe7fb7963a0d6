#include "sass/occupancy.h"

#include <cuda_occupancy.h>

#include <limits>
#include <stdexcept>

namespace flash_ladder {
Occupancy occupancy(const SmLimits& limits, int threads_per_cta, int registers_per_thread, int smem_bytes) {
  // The toolkit's own calculator knows the granularity at which registers and shared memory are allocated.
  cudaOccDeviceProp device;
  device.computeMajor = limits.compute_capability / 10;
  device.computeMinor = limits.compute_capability % 10;
  device.maxThreadsPerBlock = kMaxThreadsPerCta;
  device.maxThreadsPerMultiprocessor = limits.threads;
  device.regsPerBlock = limits.registers;
  device.regsPerMultiprocessor = limits.registers;
  device.warpSize = 32;
  device.sharedMemPerBlock = kSmemBytesWithoutOptIn;
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
