// Launches of the version that is looked at, with inputs that are chosen to tell where a mistake is.
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

/// A launch of the version that is diagnosed, with these inputs: its output, nullopt where it faults.
using Relaunch = std::function<std::optional<HostBuffer>(const Inputs&)>;

/// Launches, and compares with the reference.
class Laboratory {
 public:
  /// Keeps references to all three.
  Laboratory(const Tiling& tiling, const Relaunch& launch, const Progress& progress)
      : tiling_(tiling), launch_(launch), progress_(progress) {}

  struct Outcome {
    Inputs inputs;
    Reference reference;
    std::optional<HostBuffer> output;  // nullopt: the launch faulted
    WrongElements wrong;
    bool right() const { return output && wrong.wrong == 0; }
  };
  /// Compares one row of every `row_tile`.
  Outcome launch(Inputs inputs, std::int64_t row_tile = 1) const;

 private:
  const Tiling& tiling_;
  const Relaunch& launch_;
  const Progress& progress_;
};

/// The same queries with the first `num_keys` keys alone, each tensor in a buffer of its own.
Inputs with_first_keys(const Inputs& inputs, std::int64_t num_keys);

/// One launch of small experiments, each a head of its own. Wrong where they are false.
struct Probes {
  bool ones;           // V = 1: every O is 1, whatever Q and K are
  bool uniform;        // Q = 0: O is the mean of V, whatever K is
  bool scores_by_key;  // a row of K has one value throughout, and so has Q: no order of head_dim or of Q's rows counts
  double least_of_ones = INFINITY, most_of_ones = -INFINITY;
  bool ones_differ_in_a_row = false;  // no wrong row sum would do that
  std::optional<Layout> S, PV;        // nullopt: a tile is too large to be seen

  bool all_right() const {
    return ones && uniform && scores_by_key && (!S || S->wrong == 0) && (!PV || PV->wrong == 0);
  }
};

/// Makes that launch, with `tiles` K/V tiles, of which the layouts show the last. nullopt: it faulted.
std::optional<Probes> probe(const AttentionProblem& problem, Distribution distribution, const Tiling& tiling,
                            std::int64_t tiles, const Laboratory& laboratory);

}  // namespace flash_ladder
