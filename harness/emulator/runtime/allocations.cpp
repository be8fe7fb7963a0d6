// Allocates memory, and answers queries about it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "emulator/runtime/addresses.h"
#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

constexpr std::size_t kPitchAlignment = 512;
constexpr std::size_t kHostAlignment = 4096;

cudaError_t allocate(Device& device, void** pointer, std::size_t size) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;  // as in CUDA
  const Address address = device.memory.allocate(size);
  if (address == 0) return cudaErrorMemoryAllocation;
  device.allocated.insert(address);
  device.most_used = std::max(device.most_used, device.memory.used());
  *pointer = pointer_of(address);
  return cudaSuccess;
}

/// Ends the effect of allocate_on_host() and cudaHostRegister().
cudaError_t release_host_memory(Device& device, void* pointer, bool owned) {
  const auto entry = device.host_memory.find(address_of(pointer));
  if (entry == device.host_memory.end() || entry->second.owned != owned) return cudaErrorInvalidValue;
  device.memory.free(entry->first);
  device.host_memory.erase(entry);
  if (owned) {
    device.order.unshare(pointer);
    std::free(pointer);
  }
  return cudaSuccess;
}

/// The handle of the only memory pool.
cudaMemPool_t the_pool() {
  static char pool;
  return reinterpret_cast<cudaMemPool_t>(&pool);
}

cudaError_t free_on_device(Device& device, void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (release_host_memory(device, pointer, true) == cudaSuccess) return cudaSuccess;
  if (device.ended_by_reset.contains(address_of(pointer))) return cudaErrorInvalidValue;  // harmless in a destructor
  device.memory.free(address_of(pointer));
  device.allocated.erase(address_of(pointer));
  return cudaSuccess;
}

/// Records the order in which streams allocate and free memory: work that uses it must come after the allocation and
/// before the freeing.
void touch_all(Device& device, cudaStream_t stream, const void* pointer) {
  const Allocation* allocation = device.memory.find(address_of(pointer));
  if (!device.order.watches() || allocation == nullptr || allocation->freed) return;
  const UsedMemory all{.begin = allocation->address, .end = allocation->end(), .writes = true};
  device.in_order(stream, device.call_name, [&](Device&) {
    device.order.touch(all);
    return cudaSuccess;
  });
}

/// For work that a graph cannot contain here.
void require_no_capture(Device& device, cudaStream_t stream) {
  Graph* graph = device.capture_of(stream);
  if (graph == nullptr) return;
  device.kernels_not_run = true;  // a GPU would run them
  device.break_capture(
      *graph, cudaErrorStreamCaptureUnsupported,
      "cannot be captured into a graph on the virtual GPU: allocate before cudaStreamBeginCapture, and free when the "
      "last launch of the graph has ended");
}

}  // namespace

cudaError_t allocate_on_host(Device& device, void** pointer, std::size_t size, bool managed, unsigned flags) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (size == 0) return managed ? cudaErrorInvalidValue : cudaSuccess;
  if (size > device.memory.capacity() - device.memory.used()) return cudaErrorMemoryAllocation;
  const std::size_t pages = (size + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  void* host = std::aligned_alloc(kHostAlignment, pages);
  if (host == nullptr) return cudaErrorMemoryAllocation;
  device.host_memory[device.memory.adopt(host, size)] = {
      .size = size, .managed = managed, .owned = true, .flags = flags};
  device.order.share(host, size);
  *pointer = host;
  return cudaSuccess;
}

void mark_unwritten(const void* pointer, std::size_t size) {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  device.memory.poison(address_of(pointer), size);
}

}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

// ---- allocation ----

cudaError_t cudaMalloc(void** pointer, size_t size) {
  return api_call("cudaMalloc", [&](Device& device) { return allocate(device, pointer, size); });
}

cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t stream) {
  return api_call("cudaMallocAsync", [&](Device& device) {
    device.require_usable_stream(stream);
    require_no_capture(device, stream);
    const cudaError_t error = allocate(device, pointer, size);
    if (error == cudaSuccess) touch_all(device, stream, *pointer);
    return error;
  });
}

// There is one pool. All memory comes from it, and is returned to it immediately.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return api_call("cudaDeviceGetDefaultMemPool", [&](Device&) {
    if (device != 0) return cudaErrorInvalidDevice;
    if (pool == nullptr) return cudaErrorInvalidValue;
    *pool = the_pool();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return api_call("cudaDeviceSetMemPool", [&](Device&) {
    if (device != 0) return cudaErrorInvalidDevice;
    return pool == the_pool() ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (properties == nullptr) return remember(cudaErrorInvalidValue);
  return cudaDeviceGetDefaultMemPool(pool, 0);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return cudaDeviceSetMemPool(0, pool); }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t /*bytes_to_keep*/) { return cudaDeviceSetMemPool(0, pool); }

// When a pool returns memory, and what it may reuse: only the first attribute is stored.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return api_call("cudaMemPoolSetAttribute", [&](Device& device) {
    if (pool != the_pool() || value == nullptr) return cudaErrorInvalidValue;
    if (attribute == cudaMemPoolAttrReleaseThreshold) device.release_threshold = *static_cast<std::uint64_t*>(value);
    if (attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh) {
      device.most_used = device.memory.used();  // setting it to 0 restarts the measurement
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return api_call("cudaMemPoolGetAttribute", [&](Device& device) {
    if (pool != the_pool() || value == nullptr) return cudaErrorInvalidValue;
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = 1;
        return cudaSuccess;
      case cudaMemPoolAttrReleaseThreshold:
        *static_cast<std::uint64_t*>(value) = device.release_threshold;
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemCurrent:
      case cudaMemPoolAttrUsedMemCurrent:
        *static_cast<std::uint64_t*>(value) = device.memory.used();
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        *static_cast<std::uint64_t*>(value) = device.most_used;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
  const cudaError_t error = cudaDeviceSetMemPool(0, pool);
  return error != cudaSuccess ? error : cudaMallocAsync(pointer, size, stream);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return api_call("cudaMallocPitch", [&](Device& device) {
    if (pitch == nullptr) return cudaErrorInvalidValue;
    *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    if (height != 0 && *pitch > std::numeric_limits<std::size_t>::max() / height) return cudaErrorMemoryAllocation;
    return allocate(device, pointer, *pitch * height);
  });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  if (pointer == nullptr) return remember(cudaErrorInvalidValue);
  pointer->xsize = extent.width;
  pointer->ysize = extent.height;
  return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth);
}

cudaError_t cudaFree(void* pointer) {
  return synchronising_call("cudaFree", [&](Device& device) {
    device.wait_for_all();
    return free_on_device(device, pointer);
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return api_call("cudaFreeAsync", [&](Device& device) {
    device.require_usable_stream(stream);
    require_no_capture(device, stream);
    touch_all(device, stream, pointer);
    return free_on_device(device, pointer);
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
  return api_call("cudaHostAlloc",
                  [&](Device& device) { return allocate_on_host(device, pointer, size, false, flags); });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return api_call("cudaHostGetFlags", [&](Device& device) {
    const HostMemory* host = host_memory_at(device, pointer);
    if (flags == nullptr || host == nullptr || host->managed) return cudaErrorInvalidValue;
    *flags = host->flags;
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t size) { return cudaHostAlloc(pointer, size, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* pointer) {
  return synchronising_call("cudaFreeHost", [&](Device& device) {
    device.wait_for_all();
    return pointer == nullptr ? cudaSuccess : release_host_memory(device, pointer, true);
  });
}

cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned /*flags*/) {
  return api_call("cudaMallocManaged", [&](Device& device) { return allocate_on_host(device, pointer, size, true); });
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned flags) {
  return api_call("cudaHostRegister", [&](Device& device) {
    if (pointer == nullptr || size == 0) return cudaErrorInvalidValue;
    if (on_device(device, pointer)) return cudaErrorHostMemoryAlreadyRegistered;
    device.host_memory[device.memory.adopt(pointer, size)] = {
        .size = size, .managed = false, .owned = false, .flags = flags};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return synchronising_call("cudaHostUnregister", [&](Device& device) {
    return release_host_memory(device, pointer, false) == cudaSuccess ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned /*flags*/) {
  return api_call("cudaHostGetDevicePointer", [&](Device& device) {
    const bool usable = !only_on_device(host_pointer) && on_device(device, host_pointer);
    if (device_pointer == nullptr || !usable) return cudaErrorInvalidValue;
    *device_pointer = host_pointer;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return api_call("cudaMemGetInfo", [&](Device& device) {
    if (free != nullptr) *free = device.memory.capacity() - device.memory.used();
    if (total != nullptr) *total = device.memory.capacity();
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return api_call("cudaPointerGetAttributes", [&](Device& device) {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    *attributes = {};
    const auto* allocation = device.memory.find(address_of(pointer));
    if (allocation == nullptr || allocation->freed) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -1;
      attributes->hostPointer = only_on_device(pointer) ? nullptr : const_cast<void*>(pointer);
      return cudaSuccess;
    }
    attributes->devicePointer = const_cast<void*>(pointer);
    attributes->type = cudaMemoryTypeDevice;
    if (const HostMemory* host = host_memory_at(device, pointer); host != nullptr) {
      attributes->type = host->managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
      attributes->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
  });
}

// While one stream uses managed memory, the host may use it too: here only the order of accesses counts.
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, size_t /*size*/, unsigned /*flags*/) {
  return api_call("cudaStreamAttachMemAsync", [&](Device& device) {
    device.require_usable_stream(stream);
    const HostMemory* host = host_memory_at(device, pointer);
    return host != nullptr && host->managed ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// Hints about the location of managed memory, which here never moves.
#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void* /*pointer*/, size_t /*size*/, cudaMemLocation /*location*/,
                                 unsigned /*flags*/, cudaStream_t /*stream*/) {
  return api_call("cudaMemPrefetchAsync", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaMemAdvise(const void* /*pointer*/, size_t /*size*/, cudaMemoryAdvise /*advice*/,
                          cudaMemLocation /*location*/) {
  return api_call("cudaMemAdvise", [](Device&) { return cudaSuccess; });
}
#else
cudaError_t cudaMemPrefetchAsync(const void* /*pointer*/, size_t /*size*/, int /*device*/, cudaStream_t /*stream*/) {
  return api_call("cudaMemPrefetchAsync", [](Device&) { return cudaSuccess; });
}

cudaError_t cudaMemAdvise(const void* /*pointer*/, size_t /*size*/, cudaMemoryAdvise /*advice*/, int /*device*/) {
  return api_call("cudaMemAdvise", [](Device&) { return cudaSuccess; });
}
#endif

}  // extern "C"
