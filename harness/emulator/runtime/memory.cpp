// Memory: allocation, copies, fills.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

constexpr std::size_t kPitchAlignment = 512;
constexpr std::size_t kHostAlignment = 4096;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
void* pointer_of(Address address) { return reinterpret_cast<void*>(address); }

/// Whether kernels can use the address, or could if it were not freed or out of bounds.
bool on_device(const Device& device, const void* pointer) {
  return address_of(pointer) >> 47 != 0 || device.memory.find(address_of(pointer)) != nullptr;
}

/// Whether the host must not access it. Such addresses are never valid host addresses.
bool only_on_device(const void* pointer) { return address_of(pointer) >> 47 != 0; }

/// The memory shared with the host that contains the address; null if there is none.
const HostMemory* host_memory_at(const Device& device, const void* pointer) {
  const Allocation* allocation = device.memory.find(address_of(pointer));
  if (allocation == nullptr) return nullptr;
  const auto host = device.host_memory.find(allocation->address);
  return host == device.host_memory.end() ? nullptr : &host->second;
}

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

std::string hexadecimal(const void* pointer) {
  char text[2 + 2 * sizeof(void*) + 1];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

/// The addresses of the two sides of a copy. Throws MemoryError if an address is null, or does not match the kind.
struct Sides {
  bool to_device, from_device;
};
Sides sides(const Device& device, const void* to, const void* from, cudaMemcpyKind kind) {
  if (to == nullptr) throw MemoryError("the destination is the null pointer");
  if (from == nullptr) throw MemoryError("the source is the null pointer");
  if (kind == cudaMemcpyDefault) return {on_device(device, to), on_device(device, from)};
  const Sides sides{.to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
                    .from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice};
  const auto check = [&](const char* side, const void* pointer, bool device_side) {
    const bool right = device_side ? on_device(device, pointer) : !only_on_device(pointer);
    if (right) return;
    throw MemoryError(
        std::string("the ") + side + ", " + hexadecimal(pointer) + ", is not an address of " +
        (device_side ? "the device" : "the host") +
        ", as the kind of the copy says. Are the arguments in the order destination, source, size, kind?");
  };
  check("destination", to, sides.to_device);
  check("source", from, sides.from_device);
  return sides;
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

/// Records the access if kernels can reach the memory.
void touch(Device& device, const void* pointer, std::size_t size, bool writes) {
  if (!device.order.watches() || device.memory.find(address_of(pointer)) == nullptr) return;
  device.order.touch({.begin = address_of(pointer), .end = address_of(pointer) + size, .writes = writes});
}

void copy(Device& device, void* to, const void* from, std::size_t size, Sides sides) {
  if (size == 0) return;
  touch(device, from, size, false);
  touch(device, to, size, true);
  if (sides.to_device && sides.from_device) {
    device.memory.copy(address_of(to), address_of(from), size);
  } else if (sides.to_device) {
    device.memory.write(address_of(to), from, size);
  } else if (sides.from_device) {
    device.memory.read(to, address_of(from), size);
  } else {
    std::memmove(to, from, size);
  }
}

bool is_kind(cudaMemcpyKind kind) { return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault; }

cudaError_t copy(Device& device, void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (device.pending_error != cudaSuccess) return cudaSuccess;  // after a kernel that failed: it would not start
  if (!is_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (size == 0) return cudaSuccess;
  copy(device, to, from, size, sides(device, to, from, kind));
  return cudaSuccess;
}

cudaError_t copy_rows(Device& device, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                      std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  if (device.pending_error != cudaSuccess) return cudaSuccess;
  if (!is_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  if (width == 0 || height == 0) return cudaSuccess;
  const Sides where = sides(device, to, from, kind);
  for (std::size_t row = 0; row < height; ++row) {
    copy(device, static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
         width, where);
  }
  return cudaSuccess;
}

cudaError_t copy_box(Device& device, const cudaMemcpy3DParms& box) {
  // Arrays are not supported, so all sizes are in bytes.
  if (box.srcPtr.ptr == nullptr || box.dstPtr.ptr == nullptr) return cudaErrorInvalidValue;
  const auto slice = [](const cudaPitchedPtr& memory, const cudaPos& first, std::size_t z) {
    return static_cast<std::byte*>(memory.ptr) + ((first.z + z) * memory.ysize + first.y) * memory.pitch + first.x;
  };
  for (std::size_t z = 0; z < box.extent.depth; ++z) {
    const cudaError_t error =
        copy_rows(device, slice(box.dstPtr, box.dstPos, z), box.dstPtr.pitch, slice(box.srcPtr, box.srcPos, z),
                  box.srcPtr.pitch, box.extent.width, box.extent.height, box.kind);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t fill(Device& device, void* pointer, int value, std::size_t size) {
  if (device.pending_error != cudaSuccess || size == 0) return cudaSuccess;
  touch(device, pointer, size, true);
  device.memory.fill(address_of(pointer), static_cast<std::uint8_t>(value), size);
  return cudaSuccess;
}

cudaError_t fill_rows(Device& device, void* pointer, std::size_t pitch, int value, std::size_t width,
                      std::size_t height) {
  if (width > pitch && height > 1) return cudaErrorInvalidValue;
  for (std::size_t row = 0; row < height; ++row) {
    fill(device, static_cast<std::byte*>(pointer) + row * pitch, value, width);
  }
  return cudaSuccess;
}

cudaError_t fill_box(Device& device, const cudaPitchedPtr& memory, int value, const cudaExtent& extent) {
  for (std::size_t z = 0; z < extent.depth; ++z) {
    std::byte* slice = static_cast<std::byte*>(memory.ptr) + z * memory.ysize * memory.pitch;
    const cudaError_t error = fill_rows(device, slice, memory.pitch, value, extent.width, extent.height);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// Work in the legacy default stream for which the host waits.
template <typename Work>
cudaError_t waited_for(Device& device, Work work) {
  device.require_usable_stream(nullptr);
  const cudaError_t error = device.in_order(nullptr, device.call_name, [&](Device&) { return work(); });
  device.order.host_waits(nullptr);
  return error;
}

/// A copy to host memory that is not pinned is complete when the call returns.
void wait_if_pageable(Device& device, const void* to, cudaStream_t stream) {
  const bool watched = device.order.watches() && device.capture_of(stream) == nullptr;
  if (watched && !only_on_device(to) && !on_device(device, to)) device.order.host_waits(stream);
}

/// The same holds for a fill of pinned memory, except with the functions named Async.
void wait_if_pinned(Device& device, const void* pointer) {
  const HostMemory* host = host_memory_at(device, pointer);
  if (host != nullptr && !host->managed) device.order.host_waits(nullptr);
}

/// The part of a variable that a copy refers to.
void* part_of_variable(Device& device, const void* symbol, std::size_t offset, std::size_t size) {
  const ModuleVariable variable = device.variable(symbol);
  if (offset > variable.size || size > variable.size - offset) {
    throw MemoryError(std::to_string(size) + " bytes from byte " + std::to_string(offset) + " on, of a variable of " +
                      std::to_string(variable.size) + " bytes");
  }
  return pointer_of(variable.address + offset);
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

// ---- copies ----

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return synchronising_call("cudaMemcpy", [&](Device& device) {
    return waited_for(device, [&] { return copy(device, to, from, size, kind); });
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call("cudaMemcpyAsync", [&](Device& device) {
    const cudaError_t error = device.on_stream(stream, [=](Device& then) { return copy(then, to, from, size, kind); });
    wait_if_pageable(device, to, stream);
    return error;
  });
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return synchronising_call("cudaMemcpy2D", [&](Device& device) {
    return waited_for(device, [&] { return copy_rows(device, to, to_pitch, from, from_pitch, width, height, kind); });
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call("cudaMemcpy2DAsync", [&](Device& device) {
    const cudaError_t error = device.on_stream(
        stream, [=](Device& then) { return copy_rows(then, to, to_pitch, from, from_pitch, width, height, kind); });
    wait_if_pageable(device, to, stream);
    return error;
  });
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* box) {
  return synchronising_call("cudaMemcpy3D", [&](Device& device) {
    if (box == nullptr) return cudaErrorInvalidValue;
    return waited_for(device, [&] { return copy_box(device, *box); });
  });
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* box, cudaStream_t stream) {
  return api_call("cudaMemcpy3DAsync", [&](Device& device) {
    if (box == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = device.on_stream(stream, [box = *box](Device& then) { return copy_box(then, box); });
    wait_if_pageable(device, box->dstPtr.ptr, stream);
    return error;
  });
}

// The two devices can only be the same one.
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t size,
                                cudaStream_t stream) {
  return api_call("cudaMemcpyPeer", [&](Device& device) {
    if (to_device != 0 || from_device != 0) return cudaErrorInvalidDevice;
    return device.on_stream(stream, [=](Device& then) { return copy(then, to, from, size, cudaMemcpyDeviceToDevice); });
  });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t size) {
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, nullptr);
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t size, size_t offset, cudaMemcpyKind kind) {
  return synchronising_call("cudaMemcpyToSymbol", [&](Device& device) {
    return waited_for(device,
                      [&] { return copy(device, part_of_variable(device, symbol, offset, size), from, size, kind); });
  });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t size, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call("cudaMemcpyToSymbolAsync", [&](Device& device) {
    void* to = part_of_variable(device, symbol, offset, size);
    return device.on_stream(stream, [=](Device& then) { return copy(then, to, from, size, kind); });
  });
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t size, size_t offset, cudaMemcpyKind kind) {
  return synchronising_call("cudaMemcpyFromSymbol", [&](Device& device) {
    return waited_for(device,
                      [&] { return copy(device, to, part_of_variable(device, symbol, offset, size), size, kind); });
  });
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t size, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return api_call("cudaMemcpyFromSymbolAsync", [&](Device& device) {
    const void* from = part_of_variable(device, symbol, offset, size);
    const cudaError_t error = device.on_stream(stream, [=](Device& then) { return copy(then, to, from, size, kind); });
    wait_if_pageable(device, to, stream);
    return error;
  });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return api_call("cudaGetSymbolAddress", [&](Device& device) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = part_of_variable(device, symbol, 0, 0);
    return cudaSuccess;
  });
}

cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  return api_call("cudaGetSymbolSize", [&](Device&) {
    const Variable* variable = registry().find_variable(symbol);
    if (variable == nullptr) return cudaErrorInvalidSymbol;
    if (size == nullptr) return cudaErrorInvalidValue;
    *size = variable->size;
    return cudaSuccess;
  });
}

// ---- fills ----

cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  return api_call("cudaMemset", [&](Device& device) {
    const cudaError_t error = device.on_stream(nullptr, [=](Device& then) { return fill(then, pointer, value, size); });
    wait_if_pinned(device, pointer);
    return error;
  });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
  return api_call("cudaMemsetAsync", [&](Device& device) {
    return device.on_stream(stream, [=](Device& then) { return fill(then, pointer, value, size); });
  });
}

cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width, size_t height) {
  return api_call("cudaMemset2D", [&](Device& device) {
    const cudaError_t error =
        device.on_stream(nullptr, [=](Device& then) { return fill_rows(then, pointer, pitch, value, width, height); });
    wait_if_pinned(device, pointer);
    return error;
  });
}

cudaError_t cudaMemset3D(cudaPitchedPtr memory, int value, cudaExtent extent) {
  return api_call("cudaMemset3D", [&](Device& device) {
    const cudaError_t error =
        device.on_stream(nullptr, [=](Device& then) { return fill_box(then, memory, value, extent); });
    wait_if_pinned(device, memory.ptr);
    return error;
  });
}

cudaError_t cudaMemset3DAsync(cudaPitchedPtr memory, int value, cudaExtent extent, cudaStream_t stream) {
  return api_call("cudaMemset3DAsync", [&](Device& device) {
    return device.on_stream(stream, [=](Device& then) { return fill_box(then, memory, value, extent); });
  });
}

cudaError_t cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return api_call("cudaMemset2DAsync", [&](Device& device) {
    return device.on_stream(stream,
                            [=](Device& then) { return fill_rows(then, pointer, pitch, value, width, height); });
  });
}

}  // extern "C"
