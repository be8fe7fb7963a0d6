// What a wrong output looks like and what that suggests: the pattern of the wrong elements, a comparison with known mistakes,
// and a few launches with inputs that are chosen to tell where the mistake is not.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "results/result.h"
#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// A launch of the version that is diagnosed, with these inputs: its output, nullopt where it faults.
using Launch = std::function<std::optional<HostBuffer>(const Inputs&)>;

/// An input set of the check, and whether the output was right.
struct CheckedSet {
  std::string name;  // as CheckSet::name
  bool right;
};

/// An output that the checker called wrong.
struct WrongOutput {
  const Inputs& inputs;
  const Reference& reference;
  const HostBuffer& output;
};

/// Launches at most kMaxDiagnosisLaunches times, always with less work than a few launches of the small problems of a check. Says
/// nothing of a problem whose compared rows are all right.
constexpr int kMaxDiagnosisLaunches = 6;
Diagnosis diagnose(const WrongOutput& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                   const Launch& launch);

}  // namespace flash_ladder
