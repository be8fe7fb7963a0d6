// What the virtual GPU says of itself.
#pragma once

#include <cuda_runtime_api.h>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {

/// What cudaGetDeviceProperties answers: the limits of the sm of the settings, as they are in the CUDA C++ Programming Guide.
/// The L2, and the number of SMs if the settings do not say it, are those of the best-known GPU of that sm (A100, RTX 3090,
/// RTX 4090, H100); there are no clock rates.
cudaDeviceProp device_properties(const Device& device);

}  // namespace flash_ladder::emulator::runtime
