#include "app/run/worker_client.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/run/child_process.h"
#include "app/terminal/terminal.h"
#include "errors.h"

namespace flash_ladder {
namespace {

using nlohmann::json;
using Kind = WorkerFailure::Kind;

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// "check normal inputs 3/20"
std::string describe_step(const json& event) {
  const auto what = event.value("what", std::string());
  const auto total = event.value("total", std::int64_t{0});
  return total > 0 ? fmt::format("{} {}/{}", what, event.value("done", std::int64_t{0}), total) : what;
}

WorkerFailure error_event(const json& event) {
  const auto kind = event.value("kind", std::string());
  const auto message = event.value("message", std::string("the worker gave no reason"));
  if (kind == "usage") return {Kind::usage, message};
  if (kind == "unavailable") return {Kind::unavailable, message};
  return {Kind::broken, message};
}

std::variant<json, WorkerFailure> run_worker(const std::filesystem::path& program,
                                             std::chrono::milliseconds step_timeout, bool stdout_to_stderr,
                                             const Request& request, const std::string& label) {
  Progress progress;
  std::string step = "start";
  const auto broken = [&](const std::string& why) {
    return WorkerFailure{Kind::broken, fmt::format("{} (last step: {})", why, step)};
  };

  std::optional<ChildProcess> child;
  try {
    child.emplace(program, std::vector{json(request).dump()}, stdout_to_stderr);
  } catch (const json::type_error&) {
    throw UsageError(
        "the name of a file, of --trace or in TMPDIR, is not UTF-8, but requests to workers are JSON; choose another "
        "name");
  } catch (const UnavailableError& error) {
    return WorkerFailure{Kind::unavailable, error.what()};
  }

  std::optional<json> answer;
  std::optional<WorkerFailure> failure;
  progress.show(label);
  for (std::string line;;) {
    const auto read = child->read_line(line, step_timeout);
    if (read == ChildProcess::Read::end) break;
    if (read == ChildProcess::Read::timeout)
      return broken(fmt::format(
          "no progress for {:g} s, so it was killed: the kernel never ends, or needs more time (then raise --timeout)",
          seconds(step_timeout)));
    const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool is_event = event.is_object() && event.contains("event") && event["event"].is_string();
    const std::string name = is_event ? event["event"].get<std::string>() : "";
    try {
      if (name == "progress") {
        step = describe_step(event);
        progress.show(fmt::format("{}: {}", label, step));
      } else if (name == "device" || name == "result" || name == "results" || name == "debug_report") {
        answer = event.at(name);
      } else if (name == "error") {
        failure = error_event(event);
      } else {
        return broken(fmt::format("the worker wrote something that is not an event: {}", line.substr(0, 200)));
      }
    } catch (const json::exception& error) {
      return broken(fmt::format("the worker wrote an event that cannot be read: {}", error.what()));
    }
  }

  const auto status = child->wait(step_timeout);
  if (!status)
    return broken(fmt::format("the worker closed its event stream but did not end within {:g} s, so it was killed",
                              seconds(step_timeout)));
  if (WIFSIGNALED(*status))
    return broken(
        fmt::format("the worker was ended by signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status))));
  if (failure) return *failure;
  if (!answer) return broken(fmt::format("the worker ended with status {} and gave no answer", WEXITSTATUS(*status)));
  return *answer;
}

}  // namespace

template <typename Answer>
std::variant<Answer, WorkerFailure> WorkerClient::ask(const Request& request, const std::string& label,
                                                      const char* what) const {
  auto answer = run_worker(program_, step_timeout_, stdout_to_stderr_, request, label);
  if (auto* failure = std::get_if<WorkerFailure>(&answer)) return std::move(*failure);
  try {
    return std::get<json>(answer).get<Answer>();
  } catch (const std::exception& error) {
    return WorkerFailure{Kind::broken, fmt::format("the worker's answer is not {}: {}", what, error.what())};
  }
}

std::variant<DeviceInfo, WorkerFailure> WorkerClient::device(int ordinal, int sm) const {
  Request request;
  request.command = "device";
  request.device = ordinal;
  request.sm = sm;
  return ask<DeviceInfo>(request, "looking for a GPU", "a device");
}

std::variant<Result, WorkerFailure> WorkerClient::run(const Request& request, const std::string& label) const {
  return ask<Result>(request, label, "a result");
}

std::variant<DebugReport, WorkerFailure> WorkerClient::debug(const Request& request, const std::string& label) const {
  return ask<DebugReport>(request, label, "a debug report's");
}

std::variant<GradientReport, WorkerFailure> WorkerClient::debug_gradients(const Request& request,
                                                                          const std::string& label) const {
  return ask<GradientReport>(request, label, "a debug report's");
}

std::variant<std::vector<Result>, WorkerFailure> WorkerClient::time(const Request& request,
                                                                    const std::string& label) const {
  return ask<std::vector<Result>>(request, label, "a list of results");
}

}  // namespace flash_ladder
