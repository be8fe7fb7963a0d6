// What the virtual GPU reports about itself.
#pragma once

#include <cuda_runtime_api.h>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {

/// The answer of cudaGetDeviceProperties: the limits of the sm in the settings, as given in the CUDA C++ Programming
/// Guide. The L2 size, and the number of SMs if the settings do not specify it, are those of the best-known GPU with
/// that sm (A100, RTX 3090, RTX 4090, H100); there are no clock rates.
cudaDeviceProp device_properties(const Device& device);

}  // namespace flash_ladder::emulator::runtime
