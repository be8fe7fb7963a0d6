// Derives the reported figures from the times of single launches.
#pragma once

#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The median, 10th and 90th percentile, interpolated between the two nearest times. Needs at least one time.
Milliseconds summarise(std::vector<double> milliseconds);

/// TFLOP/s of one launch that takes this long: floating_point_operations() divided by the time. `work` is KindOfProblem::work.
double tflops(const AttentionProblem& problem, double milliseconds, double work = 1);

}  // namespace flash_ladder
