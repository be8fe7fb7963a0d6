// Launches the version under diagnosis with inputs that are chosen to locate a mistake.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>

#include "worker/diagnosis/layout.h"
#include "worker/diagnosis/pattern.h"
#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/parallel.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// Launches the version under diagnosis with these inputs; returns its output, or nullopt if it faults.
using Relaunch = std::function<std::optional<HostBuffer>(const Inputs&)>;

/// Launches and compares with the reference.
class Laboratory {
 public:
  /// Keeps references to all three arguments.
  Laboratory(const Tiling& tiling, const Relaunch& launch, const Progress& progress)
      : tiling_(tiling), launch_(launch), progress_(progress) {}

  struct Outcome {
    Inputs inputs;
    Reference reference;
    std::optional<HostBuffer> output;  // nullopt: the launch faulted
    WrongElements wrong;
    bool right() const { return output && wrong.wrong == 0; }
  };
  /// Compares one row out of every `row_tile`.
  Outcome launch(Inputs inputs, std::int64_t row_tile = 1) const;

 private:
  const Tiling& tiling_;
  const Relaunch& launch_;
  const Progress& progress_;
};

/// The same queries with only the first `num_keys` keys, each tensor in its own buffer.
Inputs with_first_keys(const Inputs& inputs, std::int64_t num_keys);

/// One launch of small experiments, each in its own head. A member is false if its experiment failed.
struct Probes {
  bool ones;           // V = 1: every O is 1, whatever Q and K are
  bool uniform;        // Q = 0: O is the mean of V, whatever K is
  bool scores_by_key;  // rows of K and Q have one value each: the order of head_dim, or of Q's rows, does not matter
  double least_of_ones = INFINITY, most_of_ones = -INFINITY;
  bool ones_differ_in_a_row = false;  // a wrong row sum could not cause that
  std::optional<Layout> S, PV;        // nullopt: a tile is too large to be made visible

  bool all_right() const {
    return ones && uniform && scores_by_key && (!S || S->wrong == 0) && (!PV || PV->wrong == 0);
  }
};

/// Performs that launch, with `tiles` K/V tiles; the layouts show the last of them. nullopt: it faulted.
std::optional<Probes> probe(const AttentionProblem& problem, Distribution distribution, const Tiling& tiling,
                            std::int64_t tiles, const Laboratory& laboratory);

}  // namespace flash_ladder
