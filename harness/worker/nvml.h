// NVIDIA's management library, which comes with the driver. It is loaded at run time, because machines without a GPU
// build and start this program too.
#pragma once

#include <string>

#include "results/result.h"

namespace flash_ladder {

/// What NVML reports about one GPU; nothing if there is no NVML or it does not answer.
class Nvml {
 public:
  /// `pci_bus_id` is in the format of cudaDeviceGetPCIBusId.
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// "580.159.04"; empty when not known.
  std::string driver() const;
  /// The present state of the GPU.
  Load load() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace flash_ladder
