// Describes a wrong output and what it suggests: the pattern of the wrong elements, a comparison with known mistakes,
// and a few launches with inputs that are chosen to rule out where the mistake could be.
#pragma once

#include <string>
#include <vector>

#include "results/result.h"
#include "worker/diagnosis/laboratory.h"
#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/parallel.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// An input set of the check, and whether its output was right.
struct CheckedSet {
  std::string name;  // as CheckSet::name
  bool right;
};

/// An output that the checker found wrong.
struct WrongOutput {
  const Inputs& inputs;
  Distribution distribution;  // the distribution of the inputs
  const Reference& reference;
  const HostBuffer& output;
};

/// Limit on launches, which use the same problem with fewer keys, or a problem of a few tiles.
constexpr int kMaxDiagnosisLaunches = 6;

/// `sets` are all the sets that were checked. Launches at most kMaxDiagnosisLaunches times, and calls `progress` in
/// between, because a large problem takes time. If the output is right now, it was wrong before with the same inputs,
/// and the diagnosis says so.
Diagnosis diagnose(const WrongOutput& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                   const Relaunch& launch, const Progress& progress = {});

}  // namespace flash_ladder
