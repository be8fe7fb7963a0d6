// Addresses as programs see them: pointers of the device, of the host, or of both.
#pragma once

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {

inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
inline void* pointer_of(Address address) { return reinterpret_cast<void*>(address); }

/// Whether kernels can use the address, or could if it were not freed or out of bounds.
inline bool on_device(const Device& device, const void* pointer) {
  return address_of(pointer) >> 47 != 0 || device.memory.find(address_of(pointer)) != nullptr;
}

/// Whether the host must not access it. Such addresses are never valid host addresses.
inline bool only_on_device(const void* pointer) { return address_of(pointer) >> 47 != 0; }

/// The memory shared with the host that contains the address; null if there is none.
inline const HostMemory* host_memory_at(const Device& device, const void* pointer) {
  const Allocation* allocation = device.memory.find(address_of(pointer));
  if (allocation == nullptr) return nullptr;
  const auto host = device.host_memory.find(allocation->address);
  return host == device.host_memory.end() ? nullptr : &host->second;
}

}  // namespace flash_ladder::emulator::runtime
