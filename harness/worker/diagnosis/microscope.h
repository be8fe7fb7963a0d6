// What a version does to O, tile by tile: launches with the keys cut off after each K/V tile, beside the same in float64; P made
// visible by a one-hot V; K and V by one-hot Q, K and P. No kernel is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "results/microscope.h"
#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/parallel.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// One launch: its output, nullopt where it faults, and what the virtual GPU found.
struct Examined {
  std::optional<HostBuffer> output;
  std::vector<Finding> findings;
};
using Examine = std::function<Examined(const Inputs&)>;

/// Which row to show; nullopt: the first wrong one, or row 0 of head 0.
struct ShownRow {
  std::optional<std::int64_t> head, row;
};

/// With these data; normal ones that come out right give way to one of the check's other distributions that does not. Fills all but what names
/// the version, and `look_at`. Which problem it is, the members of Microscope say too.
Microscope look_closely(const AttentionProblem& problem, Distribution data, std::uint64_t seed, const Tiling& tiling,
                        const ShownRow& shown, const Examine& examine, const Progress& progress = {});

}  // namespace flash_ladder
