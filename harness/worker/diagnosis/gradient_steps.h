// What a version does to a tile of queries and a tile of keys of a backward pass, step by step, beside the same computation
// in float64: launches in which the queries or the keys are cut off after each tile, and launches that make P, dP and dS
// visible. The kernels need no changes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "results/gradient_report.h"
#include "worker/diagnosis/diagnosis.h"
#include "worker/diagnosis/tile_by_tile.h"
#include "worker/gradients.h"

namespace flash_ladder {

/// One launch: dQ, dK and dV, or nullopt if it faults, and the findings of the virtual GPU.
struct ExaminedGradients {
  std::optional<std::vector<HostBuffer>> outputs;
  std::vector<Finding> findings;
};
using ExamineGradients = std::function<ExaminedGradients(const Inputs&)>;

/// As debug_tile_by_tile() for a version that computes gradients. `shown.row` is a query. Fills in everything except the
/// members that name the version, and `look_at`.
GradientReport debug_gradients(const AttentionProblem& problem, Distribution data, std::uint64_t seed,
                               const Tiling& tiling, const ShownRow& shown, const ExamineGradients& examine,
                               const Progress& progress = {});

/// dQ, dK and dV that the checker found wrong.
struct WrongGradients {
  const Inputs& inputs;
  Distribution distribution;
  const std::array<Reference, 3>& references;
  const std::vector<HostBuffer>& outputs;
};

/// As diagnose() for gradients. Launches a problem of a few tiles of the same kind about 20 times; without a function to launch
/// it, judges only the gradients that are given.
Diagnosis diagnose_gradients(const WrongGradients& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                             const ExamineGradients& examine, const Progress& progress = {});

}  // namespace flash_ladder
