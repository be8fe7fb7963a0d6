// Times of single launches.
#pragma once

#include <vector>

#include "rules/protocol.h"
#include "worker/device_problem.h"
#include "worker/events.h"
#include "worker/nvml.h"

namespace flash_ladder {

struct Timing {
  std::vector<double> milliseconds;  // of each launch
  Load load;                         // half-way through them
};

/// Times `repeat` launches of each configuration, each between two CUDA events, after a warm-up and with the L2 flushed before
/// each. The configurations take turns, and each round begins with another one, so that a clock that falls as the card warms up
/// falls for all of them. One Timing per configuration, in their order.
std::vector<Timing> time_launches(const DeviceProblem& problem, const std::vector<const Configuration*>& configurations,
                                  const DeviceInfo& device, const Nvml& nvml, int repeat, EventWriter& events);

}  // namespace flash_ladder
