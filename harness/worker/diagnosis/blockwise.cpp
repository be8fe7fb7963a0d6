#include "worker/diagnosis/blockwise.h"

#include <algorithm>

#include "problem/problem.h"

namespace flash_ladder {

std::vector<double> BlockwiseStep::output() const {
  std::vector<double> output(O.size());
  if (l > 0) std::ranges::transform(O, output.begin(), [&](double o) { return o / l; });
  return output;
}

std::vector<BlockwiseStep> attend_blockwise(const Inputs& inputs, std::int64_t batch, std::int64_t head,
                                            std::int64_t row, std::int64_t block_kv) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t num_keys = problem.seq_len_kv, head_dim = problem.head_dim, head_dim_v = value_head_dim(problem);
  const auto [begin, end] = visible_keys(problem, batch, row);
  const double scale = softmax_scale(head_dim);
  const auto number = [&](const std::uint16_t* elements, std::int64_t d) {
    return static_cast<double>(element_to_float(problem.dtype, elements[d]));
  };
  const std::uint16_t* q = inputs.Q_row(batch, head, row);
  std::vector<BlockwiseStep> steps;
  BlockwiseStep step;
  step.O.assign(head_dim_v, 0);
  for (std::int64_t first = 0; first < num_keys; first += block_kv) {
    step.first_key = first;
    step.S.assign(std::min(block_kv, num_keys - first), -INFINITY);
    for (std::int64_t key = std::max(first, begin); key < std::min(first + std::ssize(step.S), end); ++key) {
      double score = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) score += number(q, d) * number(inputs.K_row(batch, head, key), d);
      step.S[key - first] = scale * score;
    }
    const double m = std::max(step.m, *std::ranges::max_element(step.S));
    step.r = std::isinf(m) ? 1 : std::exp(step.m - m);  // as long as it sees no key there is nothing to rescale
    step.m = m;
    step.l *= step.r;
    for (double& o : step.O) o *= step.r;
    step.P.assign(step.S.size(), 0);
    for (std::size_t j = 0; j < step.S.size(); ++j) {
      if (std::isinf(step.S[j])) continue;
      step.P[j] = std::exp(step.S[j] - m);
      step.l += step.P[j];
      const std::uint16_t* v = inputs.V_row(batch, head, first + static_cast<std::int64_t>(j));
      for (std::int64_t d = 0; d < head_dim_v; ++d) step.O[d] += step.P[j] * number(v, d);
    }
    steps.push_back(step);
  }
  return steps;
}

}  // namespace flash_ladder
