// Copies and fills of memory.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "emulator/runtime/addresses.h"
#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

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
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

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
