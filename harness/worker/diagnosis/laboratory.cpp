#include "worker/diagnosis/laboratory.h"

#include <algorithm>
#include <span>
#include <utility>

#include "problem/problem.h"

namespace flash_ladder {

Laboratory::Outcome Laboratory::launch(Inputs inputs, std::int64_t row_tile) const {
  const RowSelection rows{.seq_len = inputs.problem.seq_len, .tile = row_tile, .seed = 0};
  Reference reference = make_reference(inputs, rows, progress_);
  auto output = launch_(inputs);
  WrongElements wrong;
  if (output) wrong = find_wrong(reference, *output, tiling_);
  return {std::move(inputs), std::move(reference), std::move(output), std::move(wrong)};
}

Inputs with_first_keys(const Inputs& inputs, std::int64_t num_keys) {
  AttentionProblem problem = inputs.problem;
  problem.seq_len_kv = num_keys;
  for (std::int64_t& length : problem.lengths_kv) length = std::min(length, num_keys);
  Inputs fewer = memory_for(problem, Packing::separate);
  const struct {
    const TensorLayout &from, &to;
    int from_buffer, to_buffer;
    std::int64_t heads, head_dim;
    std::int64_t (*rows_of)(const AttentionProblem&, std::int64_t batch);
  } tensors[] = {
      {inputs.Q, fewer.Q, inputs.Q_buffer, fewer.Q_buffer, problem.heads, problem.head_dim, num_rows},
      {inputs.K, fewer.K, inputs.K_buffer, fewer.K_buffer, num_kv_heads(problem), problem.head_dim, num_rows_kv},
      {inputs.V, fewer.V, inputs.V_buffer, fewer.V_buffer, num_kv_heads(problem), value_head_dim(problem), num_rows_kv},
  };
  for (const auto& tensor : tensors)
    for (std::int64_t b = 0; b < problem.batch; ++b)
      for (std::int64_t row = 0; row < tensor.rows_of(problem, b); ++row)
        for (std::int64_t head = 0; head < tensor.heads; ++head)
          std::copy_n(inputs.buffers[tensor.from_buffer].data() + tensor.from.row(b, head, row), tensor.head_dim,
                      fewer.buffers[tensor.to_buffer].data() + tensor.to.row(b, head, row));
  return fewer;
}

std::optional<Probes> probe(const AttentionProblem& problem, Distribution distribution, const Tiling& tiling,
                            std::int64_t tiles, const Laboratory& laboratory) {
  if (problem.head_dim_v != 0) return std::nullopt;  // the probes write as many columns of V as of K
  enum { kOnes, kUniform, kScoresByKey, kFirstOfLayout };
  const LayoutReader reader(problem.head_dim, tiling.block_kv, tiles);
  const AttentionProblem probed{
      .batch = 1,
      .heads = kFirstOfLayout + reader.heads(),
      .seq_len = (problem.head_dim + tiling.block_q - 1) / tiling.block_q * tiling.block_q,  // one row for each column
      .seq_len_kv = tiles * tiling.block_kv,
      .head_dim = problem.head_dim,
      .dtype = problem.dtype};
  Inputs inputs = make_inputs(probed, distribution, Packing::separate, 0);
  const std::uint16_t one = element_from_float(probed.dtype, 1);
  const auto row_of = [&](int buffer, std::int64_t head, std::int64_t row) {
    const TensorLayout& layout = buffer == inputs.Q_buffer ? inputs.Q : inputs.K;
    return std::span(inputs.buffers[buffer].data() + layout.row(0, head, row), probed.head_dim);
  };
  for (std::int64_t row = 0; row < probed.seq_len; ++row) {
    std::ranges::fill(row_of(inputs.Q_buffer, kUniform, row), 0);
    std::ranges::fill(row_of(inputs.Q_buffer, kScoresByKey, row), one);
  }
  for (std::int64_t key = 0; key < probed.seq_len_kv; ++key) {
    std::ranges::fill(row_of(inputs.V_buffer, kOnes, key), one);
    const auto k = row_of(inputs.K_buffer, kScoresByKey, key);
    const float value = element_to_float(probed.dtype, k[0]) / std::sqrt(static_cast<float>(probed.head_dim));
    std::ranges::fill(k, element_from_float(probed.dtype, value));  // scores of the usual magnitude
  }
  reader.write(inputs, kFirstOfLayout);
  const auto outcome = laboratory.launch(std::move(inputs));
  if (!outcome.output) return std::nullopt;
  Probes probes{.ones = !outcome.wrong.heads[kOnes],
                .uniform = !outcome.wrong.heads[kUniform],
                .scores_by_key = !outcome.wrong.heads[kScoresByKey],
                .S = reader.read_S(probed, *outcome.output, kFirstOfLayout),
                .PV = reader.read_PV(probed, *outcome.output, kFirstOfLayout)};
  for (std::int64_t row = 0; row < probed.seq_len; ++row) {
    double least = INFINITY, most = -INFINITY;
    for (std::int64_t d = 0; d < probed.head_dim; ++d) {
      const double value =
          element_to_float(probed.dtype, outcome.output->data()[output_layout(probed).row(0, kOnes, row) + d]);
      least = std::min(least, value);
      most = std::max(most, value);
    }
    probes.least_of_ones = std::min(probes.least_of_ones, least);
    probes.most_of_ones = std::max(probes.most_of_ones, most);
    probes.ones_differ_in_a_row = probes.ones_differ_in_a_row || most - least > 2 * outcome.reference.bound[kOnes];
  }
  return probes;
}

}  // namespace flash_ladder
