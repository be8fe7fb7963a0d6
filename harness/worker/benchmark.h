// Times of single launches.
#pragma once

#include <functional>
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

/// Something to time.
struct Timed {
  std::function<void(const Stream&)> launch;  // enqueues one launch
  std::function<void()> wait;                 // for all that was enqueued; throws CudaError when a kernel has faulted
};

/// The configurations of a problem, each to be timed. The problem has to outlive them.
std::vector<Timed> to_be_timed(const DeviceProblem& problem, const std::vector<const Configuration*>& configurations);

/// Times `repeat` launches of each, each between two CUDA events, after a warm-up and with the L2 flushed before each. They take
/// turns, and each round begins with another one, so that a clock that falls as the card warms up falls for all of them. One Timing
/// for each, in their order.
std::vector<Timing> time_launches(const std::vector<Timed>& timed, const DeviceInfo& device, const Nvml& nvml,
                                  int repeat, EventWriter& events);

}  // namespace flash_ladder
