// Which device the kernels run on, and why.
#pragma once

#include <optional>
#include <string>

#include "app/options/options.h"
#include "app/run/worker_client.h"
#include "rules/protocol.h"

namespace flash_ladder {

struct Gpu {
  int ordinal;
  DeviceInfo info;
  bool is_virtual = false;  // it counts and finds mistakes, but has no clock
};

struct DeviceChoice {
  std::optional<Gpu> gpu;  // nullopt: nothing can run, so the study is static
  std::string why;         // a sentence for the reader
  std::string why_no_gpu;  // why the device has no clock, and what to do about it; empty: it has one
};

/// The device that `--device` requests; the virtual GPU gets the limits of `sm`. Throws UnavailableError if a device
/// that was requested by name is missing or cannot be used, and UsageError if an environment variable requests the
/// impossible from the virtual GPU.
DeviceChoice choose_device(const DeviceRequest& request, const WorkerClient& worker,
                           const WorkerClient& emulator_worker, int sm);

}  // namespace flash_ladder
