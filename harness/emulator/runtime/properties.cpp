#include "emulator/runtime/properties.h"

#include <cstdio>

#include "host/sm_limits.h"

namespace flash_ladder::emulator::runtime {
cudaDeviceProp device_properties(const Device& device) {
  const SmLimits& limits = device.limits;
  cudaDeviceProp properties{};
  std::snprintf(properties.name, sizeof properties.name, "virtual GPU (sm_%d)", device.sm);
  properties.major = device.sm / 10;
  properties.minor = device.sm % 10;
  properties.totalGlobalMem = device.memory.capacity();
  properties.totalConstMem = 64 << 10;
  properties.sharedMemPerBlock = kSmemBytesWithoutOptIn;
  properties.sharedMemPerBlockOptin = limits.smem_per_cta_bytes;
  properties.sharedMemPerMultiprocessor = limits.smem_bytes;
  properties.reservedSharedMemPerBlock = kReservedSmemBytes;
  properties.regsPerBlock = limits.registers;
  properties.regsPerMultiprocessor = limits.registers;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = kMaxThreadsPerCta;
  properties.maxThreadsDim[0] = kMaxBlockX;
  properties.maxThreadsDim[1] = kMaxBlockY;
  properties.maxThreadsDim[2] = kMaxBlockZ;
  properties.maxGridSize[0] = kMaxGridX;
  properties.maxGridSize[1] = kMaxGridYZ;
  properties.maxGridSize[2] = kMaxGridYZ;
  properties.maxThreadsPerMultiProcessor = limits.threads;
  properties.maxBlocksPerMultiProcessor = limits.ctas;
  properties.multiProcessorCount = settings().sm_count > 0 ? settings().sm_count : limits.sm_count;
  properties.l2CacheSize = limits.l2_bytes;
  properties.memPitch = 0x7fffffff;
  properties.textureAlignment = 512;
  properties.unifiedAddressing = 1;
  properties.canMapHostMemory = 1;
  properties.managedMemory = 1;
  properties.concurrentKernels = 1;
  properties.cooperativeLaunch = 1;
  properties.asyncEngineCount = 1;
  properties.hostRegisterSupported = 1;
  properties.canUseHostPointerForRegisteredMem = 1;
  properties.memoryPoolsSupported = 1;
  properties.clusterLaunch = device.sm >= 90 ? 1 : 0;
  properties.concurrentManagedAccess = 1;
  properties.globalL1CacheSupported = 1;
  properties.localL1CacheSupported = 1;
  properties.streamPrioritiesSupported = 1;
  properties.memoryBusWidth = device.sm == 80 || device.sm == 90 ? 5120 : 384;
  return properties;
}

}  // namespace flash_ladder::emulator::runtime
