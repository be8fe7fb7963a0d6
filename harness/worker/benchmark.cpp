#include "worker/benchmark.h"

#include <algorithm>
#include <chrono>

#include "worker/cuda_check.h"
#include "worker/support.h"

namespace flash_ladder {
namespace {

// The clocks take a while to rise; the first launch also loads the code.
constexpr int kWarmUpLaunches = 3;
constexpr std::chrono::milliseconds kWarmUpTime{300};

// Enqueued together, so that the GPU is never idle between them, and the launch itself is not in the time.
constexpr int kBatch = 50;

void warm_up(const DeviceProblem& problem, const Stream& stream, EventWriter& events) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kWarmUpLaunches || std::chrono::steady_clock::now() - start < kWarmUpTime; ++i) {
    events.progress("warm up", std::min(i, kWarmUpLaunches), kWarmUpLaunches);
    problem.launch(stream);
    problem.wait();
  }
}

}  // namespace

Timing time_launches(const DeviceProblem& problem, const DeviceInfo& device, const Nvml& nvml, int repeat,
                     EventWriter& events) {
  const Stream stream;
  GuardedBuffer flushed("the buffer that flushes the L2", flush_bytes(device.l2_bytes));
  warm_up(problem, stream, events);

  Timing timing;
  std::vector<Event> starts(std::min(repeat, kBatch)), stops(std::min(repeat, kBatch));
  for (int first = 0; first < repeat; first += kBatch) {
    const int count = std::min(repeat - first, kBatch);
    for (int i = 0; i < count; ++i) {
      flushed.poison(stream);
      starts[i].record(stream);
      problem.launch(stream);
      stops[i].record(stream);
    }
    for (int i = 0; i < count; ++i) {
      events.progress("time launches", first + i, repeat);
      stops[i].wait();
      timing.milliseconds.push_back(Event::milliseconds(starts[i], stops[i]));
      if (first + i == repeat / 2) timing.load = nvml.load();  // the launches after this one are running
    }
  }
  problem.wait();
  return timing;
}

}  // namespace flash_ladder
