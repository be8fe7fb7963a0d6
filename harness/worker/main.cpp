// The worker: see protocol.h.

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "errors.h"
#include "modules/modules.h"
#include "results/debug_report.h"
#include "results/gradient_report.h"
#include "rules/protocol.h"
#include "rules/version_name.h"
#include "worker/cuda_check.h"
#include "worker/events.h"
#include "worker/gpu.h"
#include "worker/observation.h"
#include "worker/run.h"

namespace {

using namespace flash_ladder;
using nlohmann::json;

Request parse_request(int argc, char** argv) {
  if (argc != 2)
    throw UsageError(fmt::format("usage: {} REQUEST, a JSON object as harness/rules/protocol.h describes", argv[0]));
  try {
    return json::parse(argv[1]).get<Request>();
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("the request '{}' is not valid: {}", argv[1], error.what()));
  }
}

// Makes the code of a version available, unless this worker is linked with versions of its own.
void load(const std::string& kernel) {
  const auto folder = module_folder();
  if (versions().empty())
    for (const auto& file : listed_kernels(folder)) announce(version_of_file(file.string()));
  load_module(select_version(kernel), folder);
}

json answer(const Request& request, EventWriter& events) {
  prepare_device(request);
  if (request.command == "device") return {{"event", "device"}, {"device", describe_gpu(request.device)}};
  load(request.kernel);
  if (request.command == "time") return {{"event", "results"}, {"results", time_in_turn(request, events)}};
  if (request.command == "debug") {
    const auto report = debug(request, events);
    return {{"event", "debug_report"},
            {"debug_report", std::visit([](const auto& seen) { return json(seen); }, report)}};
  }
  return {{"event", "result"}, {"result", run(request, events)}};
}

json error_event(const char* kind, const std::exception& error) {
  return {{"event", "error"}, {"kind", kind}, {"message", error.what()}};
}

// The one event that ends the work: an answer, or the reason why there is none.
json last_event(int argc, char** argv, EventWriter& events) {
  try {
    return answer(parse_request(argc, argv), events);
  } catch (const UsageError& error) {
    return error_event("usage", error);
  } catch (const UnavailableError& error) {
    return error_event("unavailable", error);
  } catch (const CudaError& error) {
    return error_event("cuda", error);
  } catch (const std::bad_alloc&) {
    return error_event("unavailable",
                       std::runtime_error("the host does not have enough memory for this problem's inputs and "
                                          "reference; use "
                                          "a smaller --batch, --heads or --seq-len"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  EventWriter events(event_file_descriptor());  // first, before CUDA opens files
  std::signal(SIGPIPE, SIG_IGN);                // if the parent has gone, write() then reports an error
  try {
    events.write(last_event(argc, argv, events));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "harness-worker: %s\n", error.what());
    return 1;
  }
}
