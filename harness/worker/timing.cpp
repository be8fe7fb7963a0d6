#include "worker/timing.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace flash_ladder {

Milliseconds summarise(std::vector<double> milliseconds) {
  if (milliseconds.empty()) throw std::logic_error("no times to summarise");
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto quantile = [&](double fraction) {
    const double position = fraction * (std::ssize(milliseconds) - 1);
    const std::size_t below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, milliseconds.size() - 1);
    return std::lerp(milliseconds[below], milliseconds[above], position - below);
  };
  return {.median = quantile(0.5), .p10 = quantile(0.1), .p90 = quantile(0.9)};
}

double tflops(const AttentionProblem& problem, double milliseconds, const Products& products) {
  return floating_point_operations(problem, products) / (milliseconds * 1e-3) * 1e-12;
}

}  // namespace flash_ladder
