// Runs one version on one problem in its own process, and reports the outcome.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/options/options.h"
#include "app/run/configuration_choice.h"
#include "app/run/device_choice.h"
#include "app/run/stored_tuning.h"
#include "app/run/temporary_directory.h"
#include "app/run/worker_client.h"
#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// How to run a version.
struct Run {
  AttentionProblem problem;
  std::string config;  // empty: the result of --tune if there is one, otherwise the first that fits the device
  bool check = true;
  bool only_requested_problem = false;  // check it alone, without the small problems that are hard in different ways
  bool benchmark = true;
};

class Runner {
 public:
  /// Looks for the device. Throws UnavailableError if a device that was requested by name is missing, and UsageError if
  /// there is none and the problem would not even fit in this machine's memory.
  explicit Runner(const Options& options);

  const DeviceChoice& device() const { return device_; }
  bool is_virtual() const { return device_.gpu && device_.gpu->is_virtual; }

  /// The problem that the options name, for the device.
  const AttentionProblem& problem() const { return is_virtual() ? options_.emulator_problem : options_.problem; }

  /// The SM whose limits the static study assumes: the value of --sm, else that of the GPU, else kDefaultSm.
  int sm() const { return sm_; }
  /// The same for one version: sm_90 if it has no code for other architectures.
  int sm(const Version& version) const;

  /// The configuration to pass to run(). `name` is empty, or the value of --config.
  ConfigurationChoice choose(const Version& version, const std::string& name, const AttentionProblem& problem) const;

  /// What is wrong with the device's tuning.json; empty if nothing is.
  const std::string& tuning_problem() const { return stored_tuning_.problem(); }

  /// Never throws because of what a version does: the result's status and reason report it. The static study is always
  /// filled in.
  Result run(const Version& version, const Run& run) const;

  /// Inspects O tile by tile, with this configuration. Throws UsageError for a problem that the version does not
  /// support, UnavailableError for a CUDA error, a crash, or a run that exceeds the time limit.
  DebugReport debug(const Version& version, const std::string& config, const AttentionProblem& problem,
                    std::optional<std::int64_t> head, std::optional<std::int64_t> row) const;
  /// The same for a version that computes gradients: inspects a tile of queries and a tile of keys, step by step.
  GradientReport debug_gradients(const Version& version, const std::string& config, const AttentionProblem& problem,
                                 std::optional<std::int64_t> head, std::optional<std::int64_t> row) const;

  /// Times configurations of a version in turn, in one process, on problem(), and adds each time to the matching entry
  /// of `results`; otherwise returns the reason why there are no times.
  void time_in_turn(const Version& version, const std::vector<std::string>& configs,
                    std::vector<Result>& results) const;

 private:
  Request request_for(const Version& version, const AttentionProblem& problem) const;
  template <typename Report>
  Report debug_with(std::variant<Report, WorkerFailure> (WorkerClient::*ask)(const Request&, const std::string&) const,
                    const Request& request, const std::string& label) const;

  const Options& options_;
  WorkerClient worker_, emulator_worker_;
  DeviceChoice device_;
  StoredTuning stored_tuning_;
  int sm_;
  TemporaryDirectory reference_cache_;
};

/// What the process returns: 1 for a wrong result, else 3 for a failed one, else 0 if at least one version ran or was
/// studied. If all were skipped: 2 if no version supports the problem; if the device cannot run a version, 0 for a
/// study on a device that was not requested by name, else 3.
int exit_code(const Options& options, const std::vector<Result>& results);

}  // namespace flash_ladder
