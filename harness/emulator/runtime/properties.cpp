#include "emulator/runtime/properties.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace flash_ladder::emulator::runtime {
namespace {

struct Architecture {
  int sm;
  int sm_count;
  int l2_bytes;
  int threads_per_sm;
  int ctas_per_sm;
  int shared_bytes_per_sm;
};
constexpr Architecture kArchitectures[] = {
    {.sm = 80,
     .sm_count = 108,
     .l2_bytes = 40 << 20,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .shared_bytes_per_sm = 164 << 10},
    {.sm = 86,
     .sm_count = 82,
     .l2_bytes = 6 << 20,
     .threads_per_sm = 1536,
     .ctas_per_sm = 16,
     .shared_bytes_per_sm = 100 << 10},
    {.sm = 89,
     .sm_count = 128,
     .l2_bytes = 72 << 20,
     .threads_per_sm = 1536,
     .ctas_per_sm = 24,
     .shared_bytes_per_sm = 100 << 10},
    {.sm = 90,
     .sm_count = 132,
     .l2_bytes = 50 << 20,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .shared_bytes_per_sm = 228 << 10},
};

}  // namespace

cudaDeviceProp device_properties(const Device& device) {
  const auto* architecture = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                          [&](const Architecture& candidate) { return candidate.sm == device.sm; });
  cudaDeviceProp properties{};
  std::snprintf(properties.name, sizeof properties.name, "virtual GPU (sm_%d)", device.sm);
  properties.major = device.sm / 10;
  properties.minor = device.sm % 10;
  properties.totalGlobalMem = device.memory.capacity();
  properties.totalConstMem = 64 << 10;
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerBlockOptin = device.limits.shared_bytes_per_cta;
  properties.sharedMemPerMultiprocessor = architecture->shared_bytes_per_sm;
  properties.reservedSharedMemPerBlock = 1 << 10;
  properties.regsPerBlock = static_cast<int>(device.limits.registers_per_sm);
  properties.regsPerMultiprocessor = static_cast<int>(device.limits.registers_per_sm);
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = static_cast<int>(device.limits.threads_per_cta);
  properties.maxThreadsDim[0] = 1024;
  properties.maxThreadsDim[1] = 1024;
  properties.maxThreadsDim[2] = 64;
  properties.maxGridSize[0] = 0x7fffffff;
  properties.maxGridSize[1] = 65535;
  properties.maxGridSize[2] = 65535;
  properties.maxThreadsPerMultiProcessor = architecture->threads_per_sm;
  properties.maxBlocksPerMultiProcessor = architecture->ctas_per_sm;
  properties.multiProcessorCount = settings().sm_count > 0 ? settings().sm_count : architecture->sm_count;
  properties.l2CacheSize = architecture->l2_bytes;
  properties.memPitch = 0x7fffffff;
  properties.textureAlignment = 512;
  properties.unifiedAddressing = 1;
  properties.canMapHostMemory = 1;
  properties.managedMemory = 1;
  properties.concurrentKernels = 1;
  properties.asyncEngineCount = 1;
  properties.hostRegisterSupported = 1;
  properties.canUseHostPointerForRegisteredMem = 1;
  properties.memoryPoolsSupported = 1;
  return properties;
}

}  // namespace flash_ladder::emulator::runtime
