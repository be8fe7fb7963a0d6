// What a version does to O, tile by tile: launches in which the keys are cut off after each K/V tile, beside the same
// computation in float64; P made visible with a one-hot V; K and V with one-hot Q, K and P. The kernels need no changes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "results/debug_report.h"
#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/parallel.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// One launch: its output, or nullopt if it faults, and the findings of the virtual GPU.
struct Examined {
  std::optional<HostBuffer> output;
  std::vector<Finding> findings;
};
using Examine = std::function<Examined(const Inputs&)>;

/// Which row to show; nullopt: the first wrong one, or row 0 of head 0.
struct ShownRow {
  std::optional<std::int64_t> head, row;
};

/// After how many tiles to cut: after each of the first ones, then more and more sparsely.
std::vector<std::int64_t> cuts_of(std::int64_t tiles);

/// Uses these data; if the output is right for normal data, one of the check's other distributions for which it is
/// wrong replaces them. Fills in everything except the members that name the version, and `look_at`. The members of
/// DebugReport also say which problem it is.
DebugReport debug_tile_by_tile(const AttentionProblem& problem, Distribution data, std::uint64_t seed,
                               const Tiling& tiling, const ShownRow& shown, const Examine& examine,
                               const Progress& progress = {});

}  // namespace flash_ladder
