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
  std::vector<double> milliseconds;  // one for each launch
  Load load;                         // half-way through the launches
};

/// Something to time.
struct Timed {
  std::function<void(const Stream&)> launch;  // enqueues one launch
  std::function<void()> wait;                 // for all enqueued work; throws CudaError if a kernel has faulted
};

/// The configurations of a problem, each of them to be timed. The problem must outlive them.
std::vector<Timed> to_be_timed(const DeviceProblem& problem, const std::vector<const Configuration*>& configurations);

/// Times `repeat` launches of each entry, each launch between two CUDA events, after a warm-up and with the L2 flushed
/// before it. The entries take turns, and each round begins with a different one, so that when the clock falls as the
/// GPU warms up, it falls for all of them. Returns one Timing per entry, in order.
std::vector<Timing> time_launches(const std::vector<Timed>& timed, const DeviceInfo& device, const Nvml& nvml,
                                  int repeat, EventWriter& events);

}  // namespace flash_ladder
