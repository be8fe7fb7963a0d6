#include "worker/gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "errors.h"
#include "worker/cuda_check.h"
#include "worker/nvml.h"
#include "worker/observation.h"

namespace flash_ladder {
namespace {

DriverState driver_state() {
  DriverState state;
  check(cudaRuntimeGetVersion(&state.runtime_version), "querying the CUDA runtime's version");
  check(cudaDriverGetVersion(&state.driver_version), "querying the driver's version");
  if (const cudaError_t error = cudaGetDeviceCount(&state.device_count);
      error != cudaSuccess && error != cudaErrorNoDevice)
    state.error = fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  cudaGetLastError();  // the error is in `state`, and later calls must not report it again
  return state;
}

int attribute(int ordinal, cudaDeviceAttr attribute, const char* name) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, ordinal), fmt::format("querying the {} of GPU {}", name, ordinal));
  return value;
}

}  // namespace

DeviceInfo describe_gpu(int ordinal, const Words& words) {
  const DriverState state = driver_state();
  if (const auto why = why_no_device(state, ordinal, words)) throw UnavailableError(*why);

  DeviceInfo info;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), fmt::format("querying the properties of GPU {}", ordinal));
  info.name = properties.name;
  info.is_virtual = device_counts();
  info.compute_capability = 10 * attribute(ordinal, cudaDevAttrComputeCapabilityMajor, "compute capability") +
                            attribute(ordinal, cudaDevAttrComputeCapabilityMinor, "compute capability");
  info.sm_count = attribute(ordinal, cudaDevAttrMultiProcessorCount, "number of SMs");
  info.l2_bytes = attribute(ordinal, cudaDevAttrL2CacheSize, "L2 size");
  info.smem_per_cta_bytes = attribute(ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin, "shared memory per CTA");
  info.sm_clock_max_mhz = attribute(ordinal, cudaDevAttrClockRate, "SM clock") / 1000;
  info.memory_clock_max_mhz = attribute(ordinal, cudaDevAttrMemoryClockRate, "memory clock") / 1000;
  info.driver_version = state.driver_version;
  info.runtime_version = state.runtime_version;
  info.driver = Nvml(pci_bus_id(ordinal)).driver();

  check(cudaSetDevice(ordinal), fmt::format("opening GPU {} ({})", ordinal, info.name));
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), fmt::format("querying the memory of GPU {} ({})", ordinal, info.name));
  info.memory_free_bytes = static_cast<std::int64_t>(free);
  info.memory_total_bytes = static_cast<std::int64_t>(total);
  return info;
}

DeviceInfo open_gpu(int ordinal, const Words& words) {
  const DeviceInfo info = describe_gpu(ordinal, words);
  if (const auto why = why_unusable(info, words)) throw UnavailableError(*why);
  return info;
}

std::string pci_bus_id(int ordinal) {
  char id[32] = "";
  check(cudaDeviceGetPCIBusId(id, sizeof id, ordinal), fmt::format("querying the PCI bus id of GPU {}", ordinal));
  return id;
}

}  // namespace flash_ladder
