// Sends requests to a worker process and turns every outcome into an answer or a reason.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "host/sm_limits.h"
#include "results/debug_report.h"
#include "results/gradient_report.h"
#include "results/result.h"
#include "rules/protocol.h"

namespace flash_ladder {

/// Why there is no answer.
struct WorkerFailure {
  enum class Kind {
    usage,        // the version does not support the problem
    unavailable,  // no such device, no driver, no worker program
    broken,       // a CUDA error, a crash, or a run that exceeded the time limit
  };
  Kind kind;
  std::string message;
};

class WorkerClient {
 public:
  /// `step_timeout` limits how long the worker may give no sign of life; with `stdout_to_stderr`, the output of kernels
  /// goes to standard error.
  WorkerClient(std::filesystem::path program, std::chrono::milliseconds step_timeout, bool stdout_to_stderr)
      : program_(std::move(program)), step_timeout_(step_timeout), stdout_to_stderr_(stdout_to_stderr) {}

  /// What the worker reports about a GPU. `sm` selects the limits of a virtual GPU; a real one has its own.
  std::variant<DeviceInfo, WorkerFailure> device(int ordinal, int sm = kDefaultSm) const;

  /// Runs a version. `label` precedes the progress line. Starts one process per call.
  std::variant<Result, WorkerFailure> run(const Request& request, const std::string& label) const;

  /// Inspects how a version updates O, tile by tile.
  std::variant<DebugReport, WorkerFailure> debug(const Request& request, const std::string& label) const;
  /// The same for a version that computes gradients.
  std::variant<GradientReport, WorkerFailure> debug_gradients(const Request& request, const std::string& label) const;

  /// Times configurations of a version in turn.
  std::variant<std::vector<Result>, WorkerFailure> time(const Request& request, const std::string& label) const;

 private:
  // `what` names the kind of Answer in messages.
  template <typename Answer>
  std::variant<Answer, WorkerFailure> ask(const Request& request, const std::string& label, const char* what) const;

  std::filesystem::path program_;
  std::chrono::milliseconds step_timeout_;
  bool stdout_to_stderr_;
};

}  // namespace flash_ladder
