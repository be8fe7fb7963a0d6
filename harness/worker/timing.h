// From single launches to what is reported of them.
#pragma once

#include <vector>

#include "results/result.h"

namespace flash_ladder {

/// The median, 10th and 90th percentile, interpolated between the two nearest times. At least one time.
Milliseconds summarise(std::vector<double> milliseconds);

/// TFLOP/s of one launch that takes so long: floating_point_operations() over time.
double tflops(const AttentionProblem& problem, double milliseconds);

}  // namespace flash_ladder
