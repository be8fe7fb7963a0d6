// Runs one version on one problem, in a process of its own, and says what came of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/configuration_choice.h"
#include "app/device_choice.h"
#include "app/options.h"
#include "app/temporary_directory.h"
#include "app/tuned.h"
#include "app/worker_client.h"
#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// What to run a version on.
struct Run {
  AttentionProblem problem;
  std::string config;  // empty: as --tune found, else the first that fits the device
  bool check = true;
  bool only_requested_problem = false;  // checked alone, without the small problems that are hard in different ways
  bool benchmark = true;
};

class Runner {
 public:
  /// Looks for the device. Throws UnavailableError when one that was asked for by name is missing, and UsageError when there is
  /// none and the problem would not even fit this machine's memory.
  explicit Runner(const Options& options);

  const DeviceChoice& device() const { return device_; }
  bool is_virtual() const { return device_.gpu && device_.gpu->is_virtual; }

  /// The problem that the options name, for the device.
  const AttentionProblem& problem() const { return is_virtual() ? options_.emulator_problem : options_.problem; }

  /// Whose limits the static study assumes: those of --sm, else of the GPU, else of kDefaultSm.
  int sm() const { return sm_; }
  /// The same for one version: sm_90's where it has no code for the others.
  int sm(const Version& version) const;

  /// The configuration that run() takes. `name` is empty, or what --config asks for.
  ConfigurationChoice choose(const Version& version, const std::string& name, const AttentionProblem& problem) const;

  /// What is wrong with the device's tuning.json; empty when nothing is.
  const std::string& tuning_problem() const { return tuned_.problem(); }

  /// Never throws for what a version does: that is the result's status and reason. The static study is always filled in.
  Result run(const Version& version, const Run& run) const;

  /// Looks at O tile by tile, with this configuration. Throws UsageError for what the version does not support, UnavailableError
  /// for a CUDA error, a crash, or no end within the time limit.
  Microscope debug(const Version& version, const std::string& config, const AttentionProblem& problem,
                   std::optional<std::int64_t> head, std::optional<std::int64_t> row) const;

  /// Times configurations of a version in turn, in one process, on problem(), and adds the times to those of `results` that are
  /// theirs; or else the reason why there are none.
  void time_in_turn(const Version& version, const std::vector<std::string>& configs,
                    std::vector<Result>& results) const;

 private:
  Request request_for(const Version& version, const AttentionProblem& problem) const;

  const Options& options_;
  WorkerClient worker_, emulator_worker_;
  DeviceChoice device_;
  Tuned tuned_;
  int sm_;
  TemporaryDirectory reference_cache_;
};

/// What the process returns: 1 for a wrong result, else 3 for a failed one, else 0 when one ran or was studied. When all were
/// skipped: 2 where no version supports the problem; where the device cannot run a version, 0 for a study on a device that was not
/// asked for by name, else 3.
int exit_code(const Options& options, const std::vector<Result>& results);

}  // namespace flash_ladder
