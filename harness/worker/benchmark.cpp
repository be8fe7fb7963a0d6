#include "worker/benchmark.h"

#include <algorithm>
#include <chrono>

#include "rules/support.h"

namespace flash_ladder {
namespace {

// The clocks take a while to rise, and the first launch also loads the code.
constexpr int kWarmUpLaunches = 3;
constexpr std::chrono::milliseconds kWarmUpTime{300};

// Enqueued together, so that the GPU is never idle between them and the time excludes the launch itself.
constexpr int kBatch = 50;

// The rounds are enqueued as those that are timed: if the host is busy, the GPU must not be idle meanwhile, because it would then
// begin with a higher clock than it can keep.
void warm_up(const std::vector<Timed>& timed, const Stream& stream, EventWriter& events) {
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - start; };
  const auto run = [&](int rounds) {
    for (int i = 0; i < rounds; ++i)
      for (const Timed& each : timed) each.launch(stream);
    for (const Timed& each : timed) each.wait();
  };
  std::chrono::nanoseconds round{};
  for (int i = 0; i < kWarmUpLaunches; ++i) {
    events.progress("warm up", i, kWarmUpLaunches);
    const auto before = passed();
    run(1);
    round = std::max<std::chrono::nanoseconds>(passed() - before, std::chrono::microseconds(1));
  }
  while (passed() < kWarmUpTime)
    run(static_cast<int>(std::clamp<std::int64_t>((kWarmUpTime - passed()) / round + 1, 1, kBatch)));
}

}  // namespace

std::vector<Timed> to_be_timed(const DeviceProblem& problem, const std::vector<const Configuration*>& configurations) {
  std::vector<Timed> timed;
  for (const Configuration* configuration : configurations)
    timed.push_back(
        {.launch = [&problem, configuration](const Stream& stream) { problem.launch(*configuration, stream); },
         .wait = [&problem] { problem.wait(); }});
  return timed;
}

std::vector<Timing> time_launches(const std::vector<Timed>& timed, const DeviceInfo& device, const Nvml& nvml,
                                  int repeat, EventWriter& events) {
  const Stream stream;
  GuardedBuffer flushed("the buffer that flushes the L2", flush_bytes(device.l2_bytes));
  warm_up(timed, stream, events);

  const int turns = static_cast<int>(timed.size());
  const int launches = repeat * turns;
  const auto turn = [&](int launch) { return (launch / turns + launch) % turns; };  // round r begins with r % turns

  std::vector<Timing> timings(turns);
  std::vector<Event> starts(std::min(launches, kBatch)), stops(std::min(launches, kBatch));
  for (int first = 0; first < launches; first += kBatch) {
    const int count = std::min(launches - first, kBatch);
    for (int i = 0; i < count; ++i) {
      flushed.poison(stream);
      starts[i].record(stream);
      timed[turn(first + i)].launch(stream);
      stops[i].record(stream);
    }
    for (int i = 0; i < count; ++i) {
      events.progress("time launches", first + i, launches);
      stops[i].wait();
      timings[turn(first + i)].milliseconds.push_back(Event::milliseconds(starts[i], stops[i]));
      if (first + i == launches / 2) {  // the launches after this one are running
        const Load load = nvml.load();
        for (Timing& timing : timings) timing.load = load;
      }
    }
  }
  for (const Timed& each : timed) each.wait();
  return timings;
}

}  // namespace flash_ladder
