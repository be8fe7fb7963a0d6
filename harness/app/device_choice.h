// Which device the kernels run on, and why.
#pragma once

#include <optional>
#include <string>

#include "app/options.h"
#include "app/worker_client.h"
#include "rules/protocol.h"

namespace flash_ladder {

struct Gpu {
  int ordinal;
  DeviceInfo info;
  bool is_virtual = false;  // it counts and finds mistakes, and has no clock
};

struct DeviceChoice {
  std::optional<Gpu> gpu;  // nullopt: nothing can run, and the study is static
  std::string why;         // a sentence for the reader
  std::string why_no_gpu;  // why it is none that has a clock, and what to do about it; empty: it has one
};

/// What `--device` asks for; the virtual GPU gets the limits of `sm`. Throws UnavailableError when a device that was asked for by
/// name is missing or cannot be used, and UsageError where the environment asks the virtual GPU for what cannot be.
DeviceChoice choose_device(const DeviceRequest& request, const WorkerClient& worker,
                           const WorkerClient& emulator_worker, int sm);

}  // namespace flash_ladder
