#include "worker/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "problem/problem.h"
#include "worker/gradients.h"

namespace flash_ladder {
namespace {

// A copy of the gradients' inputs that can be changed.
std::shared_ptr<GradientInputs> copy_of(const GradientInputs& from) {
  const auto copied = [](const HostBuffer& buffer) {
    HostBuffer copy(buffer.size());
    std::copy_n(buffer.data(), buffer.size(), copy.data());
    return copy;
  };
  return std::make_shared<GradientInputs>(GradientInputs{.dO = copied(from.dO),
                                                         .O = copied(from.O),
                                                         .dO_layout = from.dO_layout,
                                                         .O_layout = from.O_layout,
                                                         .log_sum_exp = from.log_sum_exp,
                                                         .exact_log_sum_exp = from.exact_log_sum_exp,
                                                         .exact_D = from.exact_D});
}

}  // namespace

void spoil_every_other(Inputs& inputs, std::int64_t first) {
  const AttentionProblem& problem = inputs.problem;
  const std::uint16_t nan = element_from_float(problem.dtype, std::numeric_limits<float>::quiet_NaN());
  const struct {
    const TensorLayout& layout;
    HostBuffer& buffer;
    std::int64_t heads, head_dim;
    std::int64_t (*rows_of)(const AttentionProblem&, std::int64_t batch);
  } parts[] = {
      {inputs.Q, inputs.buffers[inputs.Q_buffer], problem.heads, problem.head_dim, num_rows},
      {inputs.K, inputs.buffers[inputs.K_buffer], num_kv_heads(problem), problem.head_dim, num_rows_kv},
      {inputs.V, inputs.buffers[inputs.V_buffer], num_kv_heads(problem), value_head_dim(problem), num_rows_kv}};
  for (const auto& [layout, buffer, heads, head_dim, rows_of] : parts)
    for (std::int64_t batch = first; batch < problem.batch; batch += 2)
      for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t row = 0; row < rows_of(problem, batch); ++row)
          std::fill_n(buffer.data() + layout.row(batch, head, row), head_dim, nan);
  if (!inputs.gradients) return;
  const std::shared_ptr<GradientInputs> gradients = copy_of(*inputs.gradients);
  const TensorLayout of_L = log_sum_exp_layout(problem);
  const std::int64_t head_dim_v = value_head_dim(problem);
  for (std::int64_t batch = first; batch < problem.batch; batch += 2)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t row = 0; row < num_rows(problem, batch); ++row) {
        std::fill_n(gradients->dO.data() + gradients->dO_layout.row(batch, head, row), head_dim_v, nan);
        std::fill_n(gradients->O.data() + gradients->O_layout.row(batch, head, row), head_dim_v, nan);
        gradients->log_sum_exp[of_L.row(batch, head, row)] = std::numeric_limits<float>::quiet_NaN();
      }
  inputs.gradients = gradients;
}

std::optional<std::string> find_influence(const AttentionProblem& problem, const HostBuffer& output,
                                          const HostBuffer& beside_nan, std::int64_t first) {
  const TensorLayout layout = output_layout(problem);
  const std::int64_t head_dim_v = value_head_dim(problem);
  for (std::int64_t batch = 1 - first; batch < problem.batch; batch += 2)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t row = 0; row < num_rows(problem, batch); ++row) {
        const std::uint16_t *a = output.data() + layout.row(batch, head, row),
                            *b = beside_nan.data() + layout.row(batch, head, row);
        const std::int64_t column = std::mismatch(a, a + head_dim_v, b).first - a;
        if (column == head_dim_v) continue;
        return fmt::format(
            "a packed sequence changes when its neighbours become NaN: first at batch {}, head {}, row {}, column {}, "
            "from {} to {}",
            batch, head, row, column, element_to_float(problem.dtype, a[column]),
            element_to_float(problem.dtype, b[column]));
      }
  return std::nullopt;
}

void restore_spoilt(const AttentionProblem& problem, HostBuffer& beside_nan, const HostBuffer& output,
                    std::int64_t first) {
  const TensorLayout layout = output_layout(problem);
  for (std::int64_t batch = first; batch < problem.batch; batch += 2)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t row = 0; row < num_rows(problem, batch); ++row) {
        const std::int64_t at = layout.row(batch, head, row);
        std::copy_n(output.data() + at, value_head_dim(problem), beside_nan.data() + at);
      }
}

}  // namespace flash_ladder
