#include "worker/nvml.h"

#include <dlfcn.h>

namespace flash_ladder {
namespace {

// The parts of nvml.h that are used here, because not every toolkit package has the header. Every function returns 0
// for success.
constexpr unsigned int kClockSm = 1;  // NVML_CLOCK_SM
using Init = int (*)();
using GetVersion = int (*)(char* version, unsigned int length);
using GetHandle = int (*)(const char* pci_bus_id, void** device);
using GetClock = int (*)(void* device, unsigned int type, unsigned int* mhz);
using GetPower = int (*)(void* device, unsigned int* milliwatts);

template <typename Function>
Function find(void* library, const char* name) {
  return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

}  // namespace

Nvml::Nvml(const std::string& pci_bus_id) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = find<Init>(library_, "nvmlInit_v2");
  if (init == nullptr || init() != 0) {
    if (library_ != nullptr) dlclose(library_);
    library_ = nullptr;
    return;
  }
  const auto get_handle = find<GetHandle>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  if (get_handle == nullptr || get_handle(pci_bus_id.c_str(), &device_) != 0) device_ = nullptr;
}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (const auto shutdown = find<Init>(library_, "nvmlShutdown")) shutdown();
  dlclose(library_);
}

std::string Nvml::driver() const {
  char version[80] = "";  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  const auto get_version = find<GetVersion>(library_, "nvmlSystemGetDriverVersion");
  return get_version != nullptr && get_version(version, sizeof version) == 0 ? version : "";
}

Load Nvml::load() const {
  Load load;
  if (device_ == nullptr) return load;
  unsigned int mhz = 0, milliwatts = 0;
  const auto get_clock = find<GetClock>(library_, "nvmlDeviceGetClockInfo");
  if (get_clock != nullptr && get_clock(device_, kClockSm, &mhz) == 0) load.sm_clock_mhz = static_cast<int>(mhz);
  const auto get_power = find<GetPower>(library_, "nvmlDeviceGetPowerUsage");
  if (get_power != nullptr && get_power(device_, &milliwatts) == 0) load.power_watts = milliwatts / 1000.0;
  return load;
}

}  // namespace flash_ladder
