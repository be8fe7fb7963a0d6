// Which of a version's configurations runs a problem, or why none can.
#pragma once

#include <optional>
#include <string>

#include "app/device_choice.h"
#include "host/problem.h"
#include "host/versions.h"

namespace flash_ladder {

struct ConfigurationChoice {
  const Configuration* configuration =
      nullptr;                  // the one whose figures to show, even where it cannot run; nullptr: none
  std::string why_not;          // empty: it can run
  bool device_cannot = false;   // why_not is about the device: it cannot run the version whatever the problem
  std::string tuned;            // what to say where --tune chose it; empty otherwise
  std::string tuning_not_used;  // why what --tune once found does not count; empty otherwise
};

/// `name` is what --config asks for, empty for the first that fits. Without a GPU that can run the version, an SM of compute capability `sm` decides what
/// fits, and memory plays no part.
ConfigurationChoice choose_configuration(const Version& version, const std::string& name,
                                         const AttentionProblem& problem, const std::optional<Gpu>& gpu, int sm);

/// Bytes of memory that this machine has.
double machine_memory_bytes();

}  // namespace flash_ladder
