// What a wrong output looks like and what that suggests: the pattern of the wrong elements, a comparison with known mistakes,
// and a few launches with inputs that are chosen to tell where the mistake is not.
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

/// An input set of the check, and whether the output was right.
struct CheckedSet {
  std::string name;  // as CheckSet::name
  bool right;
};

/// An output that the checker called wrong.
struct WrongOutput {
  const Inputs& inputs;
  Distribution distribution;  // that they were drawn from
  const Reference& reference;
  const HostBuffer& output;
};

/// Of the same problem with fewer keys, or of a problem of a few tiles.
constexpr int kMaxDiagnosisLaunches = 6;

/// `sets` are all that were checked. Launches at most kMaxDiagnosisLaunches times, and calls `progress` in between, since a
/// large problem takes its time. An output that is right was wrong before, with the same inputs: then that is what is said.
Diagnosis diagnose(const WrongOutput& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                   const Relaunch& launch, const Progress& progress = {});

}  // namespace flash_ladder
