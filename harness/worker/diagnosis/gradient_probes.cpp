#include "worker/diagnosis/gradient_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "problem/problem.h"
#include "worker/diagnosis/laboratory.h"
#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

using ProbedMatrix = GradientProbe::Matrix;
using ProbedOutput = GradientProbe::Output;

// The size of a one-hot element of Q or K, where the other of the two is not 0: scores of head_dim 128 then have about the usual
// size.
constexpr float kHot = 8;

HostBuffer copy_of(const HostBuffer& buffer) {
  HostBuffer copy(buffer.size());
  std::copy_n(buffer.data(), buffer.size(), copy.data());
  return copy;
}

std::int64_t sharing_of(const AttentionProblem& problem) { return problem.heads / num_kv_heads(problem); }

// A one-hot element, which differs from head to head, so that no head can stand in for another.
float hot(const GradientProbe& probe, std::int64_t batch, std::int64_t head) {
  const float usual = probe.matrix == ProbedMatrix::dP || probe.through == ProbedOutput::dV ? 1 : kHot;
  return usual * (1 + 0.25f * static_cast<float>((batch + head) % 4));
}

// By what an element of the output is divided. `head` is one of Q's.
double factor_of_probe(const GradientProbe& probe, const Inputs& inputs, std::int64_t batch, std::int64_t head) {
  const bool K_is_hot = probe.through == ProbedOutput::dQ;
  const double element = hot(probe, batch, K_is_hot ? head / sharing_of(inputs.problem) : head);
  return probe.through == ProbedOutput::dV ? element : element * inputs.scale();
}

using ElementRow = std::span<std::uint16_t>;  // [head_dim]

// Calls edit(batch, head, row, elements) for all rows of a tensor.
template <typename Edit>
void edit_rows(HostBuffer& buffer, const TensorLayout& layout, const AttentionProblem& problem, std::int64_t heads,
               std::int64_t rows, const Edit& edit) {
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t row = 0; row < rows; ++row)
        edit(batch, head, row, ElementRow(buffer.data() + layout.row(batch, head, row), problem.head_dim));
}

}  // namespace

std::string_view GradientProbe::matrix_name() const {
  return matrix == Matrix::P ? "P" : matrix == Matrix::dP ? "dP" : "dS";
}

std::vector<GradientProbe> gradient_probes() {
  return {{ProbedMatrix::P, ProbedOutput::dV},  {ProbedMatrix::P, ProbedOutput::dK},
          {ProbedMatrix::P, ProbedOutput::dQ},  {ProbedMatrix::dP, ProbedOutput::dK},
          {ProbedMatrix::dP, ProbedOutput::dQ}, {ProbedMatrix::dS, ProbedOutput::dK},
          {ProbedMatrix::dS, ProbedOutput::dQ}};
}

bool can_show(const GradientProbe& probe, const GradientTile& tile, std::int64_t head_dim) {
  return (probe.through == ProbedOutput::dQ ? tile.keys : tile.queries) <= head_dim;
}

Inputs inputs_of_probe(const GradientProbe& probe, const Inputs& inputs, const GradientTile& tile) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t sharing = sharing_of(problem), kv_heads = num_kv_heads(problem);
  const std::uint16_t one = element_from_float(problem.dtype, 1);
  const auto hot_in = [&](std::int64_t batch, std::int64_t head) {
    return element_from_float(problem.dtype, hot(probe, batch, head));
  };
  // Makes rows one-hot in the tile and 0 outside it.
  const auto one_hot = [](ElementRow elements, std::int64_t in_tile, std::int64_t size, std::uint16_t value) {
    std::ranges::fill(elements, 0);
    if (0 <= in_tile && in_tile < size) elements[in_tile] = value;
  };
  const auto hot_at_0 = [&](auto, auto, auto, ElementRow elements) { one_hot(elements, 0, 1, one); };
  const bool P_is_1 = probe.matrix == ProbedMatrix::dP,
             dP_is_1 = probe.matrix == ProbedMatrix::P && probe.through != ProbedOutput::dV;
  Inputs probed = with_first_keys(inputs, problem.seq_len_kv);
  HostBuffer &Q = probed.buffers[probed.Q_buffer], &K = probed.buffers[probed.K_buffer],
             &V = probed.buffers[probed.V_buffer];
  if (probe.through == ProbedOutput::dK || probe.S_is_0 || P_is_1)
    edit_rows(Q, probed.Q, problem, problem.heads, problem.seq_len,
              [&](std::int64_t batch, std::int64_t head, std::int64_t row, ElementRow elements) {
                one_hot(elements, row - tile.first_query, probe.through == ProbedOutput::dK ? tile.queries : 0,
                        hot_in(batch, head));
              });
  if (probe.through == ProbedOutput::dQ || P_is_1)
    edit_rows(K, probed.K, problem, kv_heads, problem.seq_len_kv,
              [&](std::int64_t batch, std::int64_t head, std::int64_t row, ElementRow elements) {
                one_hot(elements, row - tile.first_key, probe.through == ProbedOutput::dQ ? tile.keys : 0,
                        hot_in(batch, head));
              });
  if (dP_is_1) edit_rows(V, probed.V, problem, kv_heads, problem.seq_len_kv, hot_at_0);

  const GradientInputs& given = *inputs.gradients;
  HostBuffer dO = copy_of(given.dO);
  edit_rows(dO, given.dO_layout, problem, problem.heads, problem.seq_len,
            [&](std::int64_t batch, std::int64_t head, std::int64_t row, ElementRow elements) {
              if (probe.through == ProbedOutput::dV)
                one_hot(elements, row - tile.first_query, tile.queries, hot_in(batch, head));
              if (dP_is_1) one_hot(elements, 0, 1, one);
              if (head % sharing != tile.head % sharing) std::ranges::fill(elements, 0);
            });
  const auto gradients = complete_gradient_inputs(probed, std::move(dO));
  if (P_is_1 || dP_is_1) {  // D = 0
    std::fill_n(gradients->O.data(), gradients->O.size(), std::uint16_t{0});
    std::ranges::fill(gradients->exact_D, 0);
  }
  if (P_is_1 || probe.S_is_0)
    for (std::size_t i = 0; i < gradients->log_sum_exp.size(); ++i) {
      const std::int64_t query = static_cast<std::int64_t>(i) % problem.seq_len;
      gradients->log_sum_exp[i] = P_is_1 ? 0 : static_cast<float>(query % 61) / 16;
      gradients->exact_log_sum_exp[i] = gradients->log_sum_exp[i];
    }
  probed.gradients = gradients;
  return probed;
}

Inputs inputs_of_one_query(const Inputs& inputs, std::int64_t batch, std::int64_t head, std::int64_t query) {
  const AttentionProblem& problem = inputs.problem;
  const GradientInputs& given = *inputs.gradients;
  Inputs one = with_first_keys(inputs, problem.seq_len_kv);
  HostBuffer dO = copy_of(given.dO);
  std::fill_n(dO.data(), dO.size(), std::uint16_t{0});
  std::copy_n(given.dO.data() + given.dO_layout.row(batch, head, query), problem.head_dim,
              dO.data() + given.dO_layout.row(batch, head, query));
  one.gradients = complete_gradient_inputs(one, std::move(dO));
  return one;
}

ProbedElement element_of_probe(const GradientProbe& probe, const Inputs& inputs, const GradientOutcome& outcome,
                               const GradientTile& tile, std::int64_t batch, std::int64_t head, std::int64_t query,
                               std::int64_t key) {
  const auto which = static_cast<std::size_t>(probe.through);
  const bool rows_are_queries = probe.through == ProbedOutput::dQ;
  const Reference& reference = outcome.references[which];
  const std::int64_t of = rows_are_queries ? head : head / sharing_of(inputs.problem);
  const std::int64_t row = rows_are_queries ? query : key,
                     column = rows_are_queries ? key - tile.first_key : query - tile.first_query;
  const std::uint16_t got =
      (*outcome.outputs)[which].data()[output_layout(reference.problem).row(batch, of, row) + column];
  const double factor = factor_of_probe(probe, inputs, batch, head);
  return {.got = element_to_float(inputs.problem.dtype, got) / factor,
          .expected = reference.row(batch, of, row)[column] / factor,
          .bound = reference.bound[batch * reference.problem.heads + of] / factor};
}

SeenMatrix see_matrix(const GradientProbe& probe, const Inputs& inputs, const GradientOutcome& outcome,
                      const GradientTile& tile) {
  const AttentionProblem& problem = inputs.problem;
  SeenMatrix seen{.matrix = std::string(probe.matrix_name()),
                  .through = std::string(probe.output_name()),
                  .values = {},
                  .places = {}};
  Compared& values = seen.values;
  std::vector<bool> queries(tile.queries), keys(tile.keys);
  const std::int64_t sharing = sharing_of(problem);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = tile.head % sharing; head < problem.heads; head += sharing)
      for (std::int64_t i = 0; i < tile.queries; ++i)
        for (std::int64_t j = 0; j < tile.keys; ++j) {
          const std::int64_t query = tile.first_query + i, key = tile.first_key + j;
          const auto [got, expected, bound] = element_of_probe(probe, inputs, outcome, tile, batch, head, query, key);
          const double off = std::abs(got - expected);
          ++values.compared;
          values.of_bound =
              std::isnan(off) || std::isnan(values.of_bound) ? NAN : std::max(values.of_bound, off / bound);
          if (off <= bound) continue;
          ++values.wrong;
          queries[i] = keys[j] = true;
          if (!values.first)
            values.first = WrongElement{.batch = batch,
                                        .head = head,
                                        .row = query,
                                        .column = key,
                                        .got = got,
                                        .expected = expected,
                                        .bound = bound,
                                        .holder = {}};
        }
  if (values.wrong > 0) {
    const auto part = [](const char* of, const std::vector<bool>& wrong) {
      const auto set = describe_set(wrong);
      if (!set) return fmt::format("{} of {} {}", std::ranges::count(wrong, true), wrong.size(), of);
      return set->empty() ? fmt::format("all {}", of) : fmt::format("{} {}", of, *set);
    };
    seen.places = fmt::format("{} and {} of the tile", part("queries", queries), part("keys", keys));
  }
  return seen;
}

}  // namespace flash_ladder
