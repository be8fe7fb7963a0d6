#include "app/run/device_choice.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "errors.h"
#include "rules/support.h"

namespace flash_ladder {
namespace {

DeviceChoice chosen(int ordinal, const DeviceInfo& info, const std::string& because) {
  return {Gpu{ordinal, info},
          fmt::format("{} (GPU {}, compute capability {}), {}", info.name, ordinal,
                      compute_capability_name(info.compute_capability), because),
          ""};
}

DeviceChoice choose_gpu(int ordinal, const WorkerClient& worker) {
  const auto answer = worker.device(ordinal);
  if (const auto* failure = std::get_if<WorkerFailure>(&answer))
    throw UnavailableError(
        fmt::format("--device gpu:{} cannot be used: {} (--device auto needs no GPU)", ordinal, failure->message));
  const auto& info = std::get<DeviceInfo>(answer);
  if (const auto why = why_unusable(info)) throw UnavailableError(*why);
  return chosen(ordinal, info, "as requested");
}

std::variant<DeviceChoice, std::string> open_emulator(const WorkerClient& worker, int sm, const std::string& because) {
  const auto answer = worker.device(0, sm);
  if (const auto* failure = std::get_if<WorkerFailure>(&answer)) {
    if (failure->kind == WorkerFailure::Kind::usage) throw UsageError(failure->message);
    return failure->message;
  }
  const auto& info = std::get<DeviceInfo>(answer);
  return DeviceChoice{Gpu{0, info, true},
                      fmt::format("{}, {}. It counts events; only a GPU can measure times.", info.name, because),
                      "the virtual GPU was requested"};
}

DeviceChoice choose_emulator(const WorkerClient& worker, int sm) {
  auto opened = open_emulator(worker, sm, "as requested");
  if (const auto* why = std::get_if<std::string>(&opened))
    throw UnavailableError(fmt::format("--device emulator cannot be used: {}", *why));
  return std::get<DeviceChoice>(std::move(opened));
}

// The first GPU that is new enough, otherwise the virtual GPU.
DeviceChoice choose_automatically(const WorkerClient& worker, const WorkerClient& emulator_worker, int sm) {
  std::string why_no_gpu;
  for (int ordinal = 0;; ++ordinal) {
    const auto answer = worker.device(ordinal);
    if (const auto* failure = std::get_if<WorkerFailure>(&answer)) {
      if (why_no_gpu.empty()) why_no_gpu = failure->message;
      break;
    }
    const auto& info = std::get<DeviceInfo>(answer);
    const auto why = why_unusable(info);
    if (!why) return chosen(ordinal, info, "the first GPU of compute capability 8.0 or newer");
    if (why_no_gpu.empty()) why_no_gpu = *why;
  }
  // The advice on what to do about it is not needed here.
  auto opened =
      open_emulator(emulator_worker, sm, "since no GPU can be used: " + why_no_gpu.substr(0, why_no_gpu.find(';')));
  if (auto* choice = std::get_if<DeviceChoice>(&opened)) {
    choice->why_no_gpu = why_no_gpu;
    return std::move(*choice);
  }
  return {std::nullopt,
          fmt::format("No GPU can be used: {}; nor can the virtual GPU: {}", why_no_gpu, std::get<std::string>(opened)),
          why_no_gpu};
}

}  // namespace

DeviceChoice choose_device(const DeviceRequest& request, const WorkerClient& worker,
                           const WorkerClient& emulator_worker, int sm) {
  switch (request.kind) {
    case DeviceKind::gpu:
      return choose_gpu(request.ordinal, worker);
    case DeviceKind::emulator:
      return choose_emulator(emulator_worker, sm);
    case DeviceKind::automatic:
      break;
  }
  return choose_automatically(worker, emulator_worker, sm);
}

}  // namespace flash_ladder
