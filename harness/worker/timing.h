// Derives the reported figures from the times of single launches.
#pragma once

#include <vector>

#include "problem/problem.h"
#include "results/result.h"

namespace flash_ladder {

/// The median, 10th and 90th percentile, interpolated between the two nearest times. Needs at least one time.
Milliseconds summarise(std::vector<double> milliseconds);

/// TFLOP/s of one launch that takes this long: floating_point_operations() divided by the time.
double tflops(const AttentionProblem& problem, double milliseconds, const Products& products = {});

}  // namespace flash_ladder
