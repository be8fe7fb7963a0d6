#include "app/run/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "app/run/configuration_choice.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "problem/format_bytes.h"
#include "rules/support.h"
#include "sass/static_study.h"

namespace flash_ladder {
namespace {

// Without a GPU the problem only selects what is shown, so any problem is accepted that some machine could hold.
void check_machine_memory(const AttentionProblem& problem) {
  const double needed = tensor_bytes(problem), available = machine_memory_bytes();
  if (needed > available)
    throw UsageError(fmt::format(
        "batch {}, heads {}, seq_len {}, seq_len_kv {}: Q, K, V and O alone take {}, and this machine has {} of memory "
        "(and no GPU that can be used); use a smaller --batch, --heads or --seq-len",
        problem.batch, problem.heads, problem.seq_len, problem.seq_len_kv, format_bytes(needed),
        format_bytes(available)));
}

int choose_sm(const Options& options, const DeviceChoice& device) {
  if (options.sm) return *options.sm;
  return device.gpu && sm_limits(device.gpu->info.compute_capability) ? device.gpu->info.compute_capability
                                                                      : kDefaultSm;
}

// An answer about a different version would be shown under the wrong name.
bool answers(const Result& result, const Request& request) {
  return result.kernel == request.kernel && result.config == request.config && result.problem == request.problem &&
         result.data == request.data;
}

}  // namespace

Runner::Runner(const Options& options)
    : options_(options),
      worker_(options.paths.worker, options.step_timeout, options.json == "-"),
      emulator_worker_(options.paths.emulator_worker, options.emulator_step_timeout, options.json == "-"),
      device_(options.action == Action::sass
                  ? DeviceChoice{std::nullopt, "--sass runs nothing", ""}
                  : choose_device(options.device, worker_, emulator_worker_, options.sm.value_or(kDefaultSm))),
      stored_tuning_(options.paths, device_.gpu),
      sm_(choose_sm(options, device_)) {
  if (!device_.gpu) check_machine_memory(options.problem);
}

int Runner::sm(const Version& version) const {
  return options_.sm || runs_on(version.architecture, sm_) ? sm_ : kHopperSm;
}

ConfigurationChoice Runner::choose(const Version& version, const std::string& name,
                                   const AttentionProblem& problem) const {
  const auto tuned = name.empty() ? stored_tuning_.find(version, problem) : StoredTuning::Answer{};
  const std::string& wanted = tuned.entry ? tuned.entry->ranking.front().config : name;
  ConfigurationChoice choice = choose_configuration(version, wanted, problem, device_.gpu, sm(version));
  choice.tuning_not_used = tuned.why_not;
  if (tuned.entry)
    choice.tuned =
        fmt::format("{}, the fastest of {} for this problem{} (--tune, {}); --config selects another", wanted,
                    tuned.entry->ranking.size(), options_.data == Distribution::normal ? "" : " with normal data",
                    tuned.entry->date.substr(0, 10));
  return choice;
}

Request Runner::request_for(const Version& version, const AttentionProblem& problem) const {
  Request request;
  request.device = device_.gpu->ordinal;
  request.sm = sm_;
  request.max_instructions = options_.max_instructions;
  request.kernel = kernel_id(version);
  request.problem = problem;
  request.data = options_.data;
  request.seed = options_.seed;
  request.repeat = options_.repeat;
  return request;
}

Result Runner::run(const Version& version, const Run& run) const {
  const auto choice = choose(version, run.config, run.problem);
  Result result;
  result.kernel = kernel_id(version);
  result.name = version.name;
  result.problem = run.problem;
  result.data = options_.data;
  if (choice.configuration) result.config = choice.configuration->name;
  const auto with_static_study = [&](Result final) {
    if (choice.configuration) final.static_study = static_study(version, *choice.configuration, options_.paths.study);
    return final;
  };

  if (!choice.why_not.empty()) {
    result.status = Status::skipped;
    result.reason = choice.why_not;
    result.device_cannot = choice.device_cannot;
    return with_static_study(result);
  }
  result.status = Status::ok;
  if (!device_.gpu) return with_static_study(result);

  Request request = request_for(version, run.problem);
  request.config = result.config;
  request.check = run.check;
  request.only_requested_problem = run.only_requested_problem;
  request.benchmark = run.benchmark && !device_.gpu->is_virtual;
  request.reference_cache = reference_cache_.path().string();
  if (!options_.trace.empty()) request.trace = std::filesystem::absolute(options_.trace).string();
  const WorkerClient& worker = device_.gpu->is_virtual ? emulator_worker_ : worker_;
  const auto answer =
      worker.run(request, fmt::format("{} {} {}, batch {}, seq_len {}", label(version), result.config,
                                      to_string(run.problem.dtype), run.problem.batch, run.problem.seq_len));
  result.device = device_.gpu->info.name;
  if (const auto* failure = std::get_if<WorkerFailure>(&answer)) {
    result.status = failure->kind == WorkerFailure::Kind::usage ? Status::skipped : Status::failed;
    result.reason = failure->message;
    return with_static_study(result);
  }
  const auto& ran = std::get<Result>(answer);
  if (!answers(ran, request)) {
    result.status = Status::failed;
    result.reason = "the worker answered about another version, configuration, problem or data";
    return with_static_study(result);
  }
  return with_static_study(ran);
}

template <typename Report>
Report Runner::debug_with(std::variant<Report, WorkerFailure> (WorkerClient::*ask)(const Request&, const std::string&)
                              const,
                          const Request& request, const std::string& label) const {
  const WorkerClient& worker = device_.gpu->is_virtual ? emulator_worker_ : worker_;
  auto answer =
      (worker.*ask)(request, fmt::format("{} {} {}", label, request.config, to_string(request.problem.dtype)));
  if (const auto* failure = std::get_if<WorkerFailure>(&answer)) {
    if (failure->kind == WorkerFailure::Kind::usage) throw UsageError(failure->message);
    throw UnavailableError(failure->message);
  }
  auto& report = std::get<Report>(answer);
  if (report.kernel != request.kernel || report.config != request.config || report.problem != request.problem)
    throw UnavailableError("the worker answered about another version, configuration or problem");
  return std::move(report);
}

DebugReport Runner::debug(const Version& version, const std::string& config, const AttentionProblem& problem,
                          std::optional<std::int64_t> head, std::optional<std::int64_t> row) const {
  Request request = request_for(version, problem);
  request.command = "debug";
  request.config = config;
  request.head = head;
  request.row = row;
  return debug_with(&WorkerClient::debug, request, label(version));
}

GradientReport Runner::debug_gradients(const Version& version, const std::string& config,
                                       const AttentionProblem& problem, std::optional<std::int64_t> head,
                                       std::optional<std::int64_t> row) const {
  Request request = request_for(version, problem);
  request.command = "debug";
  request.config = config;
  request.head = head;
  request.row = row;
  return debug_with(&WorkerClient::debug_gradients, request, label(version));
}

void Runner::time_in_turn(const Version& version, const std::vector<std::string>& configs,
                          std::vector<Result>& results) const {
  Request request = request_for(version, problem());
  request.command = "time";
  request.configs = configs;
  const auto answer = worker_.time(request, fmt::format("{}, {} configurations, batch {}, seq_len {}", label(version),
                                                        configs.size(), problem().batch, problem().seq_len));
  const auto* failure = std::get_if<WorkerFailure>(&answer);
  const std::vector<Result> none;
  const auto& timed = failure ? none : std::get<std::vector<Result>>(answer);
  for (Result& result : results) {
    if (std::find(configs.begin(), configs.end(), result.config) == configs.end()) continue;
    request.config = result.config;
    const auto found =
        std::find_if(timed.begin(), timed.end(), [&](const Result& other) { return answers(other, request); });
    if (found == timed.end() || !found->ms || !found->tflops) {
      result.status = Status::failed;
      result.reason = failure ? failure->message : "the worker returned no time for this configuration";
      continue;
    }
    result.ms = found->ms;
    result.tflops = found->tflops;
    result.load = found->load;
  }
}

int exit_code(const Options& options, const std::vector<Result>& results) {
  const auto any = [&](Status status) {
    return std::any_of(results.begin(), results.end(), [&](const Result& result) { return result.status == status; });
  };
  if (any(Status::wrong)) return kExitWrong;
  if (any(Status::failed)) return kExitUnavailable;
  if (any(Status::ok)) return kExitOk;
  const bool device_cannot =
      std::any_of(results.begin(), results.end(), [](const Result& result) { return result.device_cannot; });
  if (!device_cannot) return kExitUsage;
  // If no particular device was requested, the static study is an answer.
  const bool static_will_do = options.action == Action::study && options.device.kind == DeviceKind::automatic;
  return static_will_do ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
