// Which of a version's configurations runs a problem, or why none of them can.
#pragma once

#include <optional>
#include <string>

#include "app/run/device_choice.h"
#include "host/problem.h"
#include "host/versions.h"

namespace flash_ladder {

struct ConfigurationChoice {
  const Configuration* configuration =
      nullptr;                  // the configuration whose figures to show, even if it cannot run; or nullptr
  std::string why_not;          // empty: it can run
  bool device_cannot = false;   // why_not is about the device: it cannot run the version, whatever the problem
  std::string tuned;            // what to say if --tune chose the configuration; empty otherwise
  std::string tuning_not_used;  // why an earlier result of --tune does not count; empty otherwise
};

/// `name` is the value of --config, or empty for the first configuration that fits. Without a GPU that can run the
/// version, the limits of an SM of compute capability `sm` decide what fits, and memory plays no part.
ConfigurationChoice choose_configuration(const Version& version, const std::string& name,
                                         const AttentionProblem& problem, const std::optional<Gpu>& gpu, int sm);

/// The memory of this machine, in bytes.
double machine_memory_bytes();

}  // namespace flash_ladder
