#include "worker/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "problem/problem.h"

namespace flash_ladder {

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

}  // namespace flash_ladder
