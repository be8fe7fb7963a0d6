// Asks a worker process, and turns whatever becomes of it into an answer or a reason.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "host/sm_limits.h"
#include "results/microscope.h"
#include "results/result.h"
#include "rules/protocol.h"

namespace flash_ladder {

/// Why there is no answer.
struct WorkerFailure {
  enum class Kind {
    usage,        // the version does not support the problem
    unavailable,  // no such device, no driver, no worker program
    broken,       // a CUDA error, a crash, or no end within the time limit
  };
  Kind kind;
  std::string message;
};

class WorkerClient {
 public:
  /// `step_timeout` is how long the worker may give no sign of life; `stdout_to_stderr`: what kernels print goes to standard error.
  WorkerClient(std::filesystem::path program, std::chrono::milliseconds step_timeout, bool stdout_to_stderr)
      : program_(std::move(program)), step_timeout_(step_timeout), stdout_to_stderr_(stdout_to_stderr) {}

  /// What the worker says about a GPU. `sm` is whose limits a virtual one is to have; a real one has its own.
  std::variant<DeviceInfo, WorkerFailure> device(int ordinal, int sm = kDefaultSm) const;

  /// Runs a version. `label` precedes the line of progress. One process per call.
  std::variant<Result, WorkerFailure> run(const Request& request, const std::string& label) const;

  /// Looks at what a version does to O, tile by tile.
  std::variant<Microscope, WorkerFailure> debug(const Request& request, const std::string& label) const;

  /// Times configurations of a version in turn.
  std::variant<std::vector<Result>, WorkerFailure> time(const Request& request, const std::string& label) const;

 private:
  // `what` an Answer is, for messages.
  template <typename Answer>
  std::variant<Answer, WorkerFailure> ask(const Request& request, const std::string& label, const char* what) const;

  std::filesystem::path program_;
  std::chrono::milliseconds step_timeout_;
  bool stdout_to_stderr_;
};

}  // namespace flash_ladder
