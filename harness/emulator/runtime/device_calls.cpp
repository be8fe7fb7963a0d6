// Queries about the device, and its few settings. There is one device, number 0.
#include <cstring>
#include <unordered_map>
#include <variant>

#include "emulator/runtime/device.h"
#include "emulator/runtime/properties.h"

namespace flash_ladder::emulator::runtime {
namespace {

// Attributes that are members of cudaDeviceProp.
const std::unordered_map<int, std::variant<int cudaDeviceProp::*, std::size_t cudaDeviceProp::*>>& members() {
  using Properties = cudaDeviceProp;
  static const std::unordered_map<int, std::variant<int Properties::*, std::size_t Properties::*>> members = {
      {cudaDevAttrMaxThreadsPerBlock, &Properties::maxThreadsPerBlock},
      {cudaDevAttrWarpSize, &Properties::warpSize},
      {cudaDevAttrMaxRegistersPerBlock, &Properties::regsPerBlock},
      {cudaDevAttrMaxRegistersPerMultiprocessor, &Properties::regsPerMultiprocessor},
      {cudaDevAttrMaxThreadsPerMultiProcessor, &Properties::maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, &Properties::maxBlocksPerMultiProcessor},
      {cudaDevAttrMultiProcessorCount, &Properties::multiProcessorCount},
      {cudaDevAttrL2CacheSize, &Properties::l2CacheSize},
      {cudaDevAttrComputeCapabilityMajor, &Properties::major},
      {cudaDevAttrComputeCapabilityMinor, &Properties::minor},
      {cudaDevAttrUnifiedAddressing, &Properties::unifiedAddressing},
      {cudaDevAttrCanMapHostMemory, &Properties::canMapHostMemory},
      {cudaDevAttrManagedMemory, &Properties::managedMemory},
      {cudaDevAttrConcurrentKernels, &Properties::concurrentKernels},
      {cudaDevAttrAsyncEngineCount, &Properties::asyncEngineCount},
      {cudaDevAttrCooperativeLaunch, &Properties::cooperativeLaunch},
      {cudaDevAttrMemoryPoolsSupported, &Properties::memoryPoolsSupported},
      {cudaDevAttrHostRegisterSupported, &Properties::hostRegisterSupported},
      {cudaDevAttrCanUseHostPointerForRegisteredMem, &Properties::canUseHostPointerForRegisteredMem},
      {cudaDevAttrGlobalMemoryBusWidth, &Properties::memoryBusWidth},
      {cudaDevAttrStreamPrioritiesSupported, &Properties::streamPrioritiesSupported},
      {cudaDevAttrGlobalL1CacheSupported, &Properties::globalL1CacheSupported},
      {cudaDevAttrLocalL1CacheSupported, &Properties::localL1CacheSupported},
      {cudaDevAttrConcurrentManagedAccess, &Properties::concurrentManagedAccess},
      {cudaDevAttrClusterLaunch, &Properties::clusterLaunch},
      {cudaDevAttrMaxSharedMemoryPerBlock, &Properties::sharedMemPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &Properties::sharedMemPerBlockOptin},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &Properties::sharedMemPerMultiprocessor},
      {cudaDevAttrReservedSharedMemoryPerBlock, &Properties::reservedSharedMemPerBlock},
      {cudaDevAttrTotalConstantMemory, &Properties::totalConstMem},
      {cudaDevAttrMaxPitch, &Properties::memPitch},
      {cudaDevAttrTextureAlignment, &Properties::textureAlignment},
  };
  return members;
}

cudaError_t attribute_value(const Device& device, cudaDeviceAttr attribute, int* value) {
  const cudaDeviceProp properties = device_properties(device);
  if (const auto member = members().find(attribute); member != members().end()) {
    *value = std::visit([&](auto which) { return static_cast<int>(properties.*which); }, member->second);
    return cudaSuccess;
  }
  switch (attribute) {
    case cudaDevAttrMaxBlockDimX:
      *value = properties.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = properties.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = properties.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = properties.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = properties.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = properties.maxGridSize[2];
      break;
    case cudaDevAttrGpuOverlap:
      *value = properties.asyncEngineCount > 0 ? 1 : 0;
      break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      *value = device.sm == 80 || device.sm == 90 ? 2 : 64;
      break;
    default:
      if (attribute < cudaDevAttrMaxThreadsPerBlock || attribute >= cudaDevAttrMax) return cudaErrorInvalidValue;
      *value = 0;  // features that it does not have, and clock rates, because it has no clock
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return api_call("cudaGetDeviceCount", [&](Device&) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api_call("cudaGetDevice", [&](Device&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api_call("cudaSetDevice", [&](Device&) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaInitDevice(int device, unsigned /*device_flags*/, unsigned /*flags*/) { return cudaSetDevice(device); }

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* /*wanted*/) { return cudaGetDevice(device); }

cudaError_t cudaSetDeviceFlags(unsigned /*flags*/) {
  return api_call("cudaSetDeviceFlags", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return api_call("cudaGetDeviceFlags", [&](Device&) {
    if (flags == nullptr) return cudaErrorInvalidValue;
    *flags = cudaDeviceScheduleAuto;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api_call("cudaGetDeviceProperties", [&](Device& state) {
    if (device != 0) return cudaErrorInvalidDevice;
    if (properties == nullptr) return cudaErrorInvalidValue;
    *properties = device_properties(state);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api_call("cudaDeviceGetAttribute", [&](Device& state) {
    if (device != 0) return cudaErrorInvalidDevice;
    return value == nullptr ? cudaErrorInvalidValue : attribute_value(state, attribute, value);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return api_call("cudaDeviceGetPCIBusId", [&](Device&) {
    constexpr char kId[] = "0000:00:00.0";
    if (device != 0) return cudaErrorInvalidDevice;
    if (id == nullptr || length < static_cast<int>(sizeof kId)) return cudaErrorInvalidValue;
    std::memcpy(id, kId, sizeof kId);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  return api_call("cudaDeviceCanAccessPeer", [&](Device&) {
    if (can == nullptr) return cudaErrorInvalidValue;
    *can = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api_call("cudaDriverGetVersion", [&](Device&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceSynchronize() {
  return synchronising_call("cudaDeviceSynchronize", [](Device& device) {
    for (Stream* stream : device.streams) device.refuse_to_wait_for_capture(reinterpret_cast<cudaStream_t>(stream));
    device.wait_for_all();
    return cudaSuccess;
  });
}

// Ends what the program has allocated on the device. Variables, streams and host memory stay.
cudaError_t cudaDeviceReset() {
  return synchronising_call("cudaDeviceReset", [](Device& device) {
    device.wait_for_all();
    for (const auto address : device.allocated) device.memory.free(address);
    device.ended_by_reset.merge(device.allocated);
    device.allocated.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return api_call("cudaDeviceSetLimit", [&](Device& device) {
    if (limit == cudaLimitMallocHeapSize) {
      device.memory.set_heap_bytes(value);
      return cudaSuccess;
    }
    const auto known = device.limit_values.find(limit);
    if (known == device.limit_values.end()) return cudaErrorUnsupportedLimit;
    known->second = value;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return api_call("cudaDeviceGetLimit", [&](Device& device) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (limit == cudaLimitMallocHeapSize) {
      *value = device.memory.heap_bytes();
      return cudaSuccess;
    }
    const auto known = device.limit_values.find(limit);
    if (known == device.limit_values.end()) return cudaErrorUnsupportedLimit;
    *value = known->second;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache /*config*/) {
  return api_call("cudaDeviceSetCacheConfig", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  return api_call("cudaDeviceGetCacheConfig", [&](Device&) {
    if (config == nullptr) return cudaErrorInvalidValue;
    *config = cudaFuncCachePreferNone;
    return cudaSuccess;
  });
}

// Banks of shared memory have been 4 bytes wide since sm_50, whatever a program requests.
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig /*config*/) {
  return api_call("cudaDeviceSetSharedMemConfig", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  return api_call("cudaDeviceGetSharedMemConfig", [&](Device&) {
    if (config == nullptr) return cudaErrorInvalidValue;
    *config = cudaSharedMemBankSizeFourByte;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api_call("cudaDeviceGetStreamPriorityRange", [&](Device&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

// It describes an element of a texture, and needs no device.
cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

// Profilers have nothing to measure here.
cudaError_t cudaProfilerStart() {
  return api_call("cudaProfilerStart", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaProfilerStop() {
  return api_call("cudaProfilerStop", [](Device&) { return cudaSuccess; });
}

}  // extern "C"
