// Whether the GPU can hold a launch at all.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/launch.h"

namespace flash_ladder::emulator {

/// The number of CTAs in a cluster, in each dimension.
Dim3 cluster_of(const Kernel& kernel, const LaunchConfig& config);

inline std::uint64_t size_of(const Dim3& dimensions) {
  return std::uint64_t{dimensions.x} * dimensions.y * dimensions.z;
}

/// Why a launch is not possible on the given GPU; empty if it is.
std::string refusal(const Kernel& kernel, const LaunchConfig& config, const Options& options);

}  // namespace flash_ladder::emulator
