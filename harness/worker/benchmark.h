// Times of single launches.
#pragma once

#include <vector>

#include "worker/device_problem.h"
#include "worker/events.h"
#include "worker/nvml.h"
#include "worker/protocol.h"

namespace flash_ladder {

struct Timing {
  std::vector<double> milliseconds;  // of each launch
  Load load;                         // half-way through them
};

/// Times `repeat` launches, each between two CUDA events, after a warm-up and with the L2 flushed before each.
Timing time_launches(const DeviceProblem& problem, const DeviceInfo& device, const Nvml& nvml, int repeat,
                     EventWriter& events);

}  // namespace flash_ladder
