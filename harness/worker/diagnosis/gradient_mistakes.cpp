#include "worker/diagnosis/gradient_mistakes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "problem/problem.h"
#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kSampledGradientRows = 6;
enum : std::size_t { k_dQ, k_dK, k_dV };  // as kGradientNames

double right_P(const BeforeP& x) { return std::exp(x.S - x.L); }
double right_dS(const BeforeP& x) { return right_P(x) * (x.dP - x.D); }

// Adds `of` times a row of 16-bit elements.
void add_row(std::vector<double>& sum, double of, const std::uint16_t* row, Dtype dtype) {
  for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += of * element_to_float(dtype, row[d]);
}

double dot_of_rows(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count, Dtype dtype) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += double{element_to_float(dtype, a[d])} * element_to_float(dtype, b[d]);
  return sum;
}

// Rows of a gradient of one head, some of them wrong.
struct SampledGradient {
  std::size_t which;
  std::int64_t batch, head;
  std::vector<WrongRow> rows;
};

SampledGradient sample_gradient(std::size_t which, const WrongElements& wrong) {
  SampledGradient sample{
      .which = which, .batch = wrong.rows.front().batch, .head = wrong.rows.front().head, .rows = {}};
  std::vector<WrongRow> of_head;
  for (const WrongRow& row : wrong.rows)
    if (row.batch == sample.batch && row.head == sample.head) of_head.push_back(row);
  const std::size_t count = std::min(of_head.size(), kSampledGradientRows);
  for (std::size_t i = 0; i < count; ++i)
    sample.rows.push_back(of_head[count == 1 ? 0 : i * (of_head.size() - 1) / (count - 1)]);
  return sample;
}

// Whether the mistake gives every element of the sampled rows, and would make one of them clearly wrong.
bool explains_gradient(const GradientMistake& mistake, const Inputs& inputs, const Reference& reference,
                       const HostBuffer& output, const SampledGradient& sample) {
  constexpr double kFarOffAtOnce = 16;  // tolerances of the first row: nearly all candidates are wrong guesses
  const AttentionProblem& problem = reference.problem;
  const double bound = reference.bound[sample.batch * problem.heads + sample.head];
  const auto overflows = [&](double value) {
    return !is_finite(problem.dtype, element_from_float(problem.dtype, static_cast<float>(value)));
  };
  double largest_right = 0, largest = 0;
  for (const WrongRow& at : sample.rows)
    for (std::int64_t d = 0; d < problem.head_dim; ++d)
      largest_right = std::max(largest_right, std::abs(reference.row(at.batch, at.head, at.index)[d]));
  bool is_clear = false;
  double farthest = 0, most_changed = 0;
  for (const WrongRow& at : sample.rows) {
    const auto mistaken = gradient_row_with(mistake, inputs, sample.which, at.batch, at.head, at.row);
    const double* right = reference.row(at.batch, at.head, at.index);
    const std::uint16_t* got = output.data() + output_layout(problem).row(at.batch, at.head, at.row);
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double value = element_to_float(problem.dtype, got[d]);
      if (overflows(mistaken[d]) && !std::isfinite(value)) {
        is_clear = is_clear || value == std::copysign(INFINITY, mistaken[d]);
        continue;
      }
      if (!std::isfinite(value) || overflows(mistaken[d])) return false;
      largest = std::max(largest, std::abs(mistaken[d]));
      farthest = std::max(farthest, std::abs(value - mistaken[d]));
      most_changed = std::max(most_changed, std::abs(value - right[d]));
    }
    // As in diagnosis.cpp, twice the bound for a right kernel. Larger numbers have larger errors.
    const double tolerance = 2 * bound * std::max(largest_right > 0 ? largest / largest_right : 1, 1.0);
    const bool is_last = &at == &sample.rows.back();
    if (farthest > (is_last ? 1 : kFarOffAtOnce) * tolerance) return false;
    if (is_last) is_clear = is_clear || most_changed > 4 * tolerance;
  }
  return is_clear;
}

void add_mistakes_of_dS(std::vector<GradientMistake>& mistakes) {
  const std::array<bool, 3> both{true, true, false};
  mistakes.push_back(
      {.name = "D_left_out", .text = "D is not subtracted from dP", .concerns = both, .dS = [](const BeforeP& x) {
         return right_P(x) * x.dP;
       }});
  mistakes.push_back(
      {.name = "D_added", .text = "D is added to dP, not subtracted", .concerns = both, .dS = [](const BeforeP& x) {
         return right_P(x) * (x.dP + x.D);
       }});
  mistakes.push_back({.name = "D_subtracted_from_P",
                      .text = "D is subtracted from P, not from dP",
                      .concerns = both,
                      .dS = [](const BeforeP& x) { return x.dP * (right_P(x) - x.D); }});
  mistakes.push_back({.name = "P_left_out",
                      .text = "dS is dP - D, without the factor P",
                      .concerns = both,
                      .dS = [](const BeforeP& x) { return x.dP - x.D; }});
  mistakes.push_back(
      {.name = "dP_takes_K", .text = "dP is a product with K, not with V", .concerns = both, .dP_takes_K = true});
  for (const std::size_t which : {k_dQ, k_dK}) {
    const std::string name(kGradientNames[which]);
    std::array<bool, 3> one{};
    one[which] = true;
    mistakes.push_back({.name = name + "_takes_P",
                        .text = name + " is a product with P, not with dS",
                        .concerns = one,
                        .dS = right_P});
  }
}

// Of S, of which every gradient is a function.
void add_mistakes_of_P(std::vector<GradientMistake>& mistakes) {
  const auto add = [&](std::string name, std::string text, std::function<double(const BeforeP&)> P) {
    mistakes.push_back({.name = std::move(name),
                        .text = std::move(text),
                        .concerns = {true, true, true},
                        .P = P,
                        .dS = [P](const BeforeP& x) { return P(x) * (x.dP - x.D); }});
  };
  add("L_left_out", "L is not subtracted from S", [](const BeforeP& x) { return std::exp(x.S); });
  add("scale_left_out", "the scores are not scaled", [](const BeforeP& x) { return std::exp(x.S / x.scale - x.L); });
  add("log2e_left_out", "2^(S - L) is computed in place of exp(S - L)",
      [](const BeforeP& x) { return std::exp2(x.S - x.L); });
}

// Of the loop over tiles of queries, which concern every gradient if the loop also computes dQ.
void add_mistakes_of_query_tiles(std::vector<GradientMistake>& mistakes, std::int64_t seq_len, std::int64_t block) {
  const std::array<bool, 3> all{true, true, true};
  const std::int64_t tiles = (seq_len + block - 1) / block;
  const auto in_first = [=](std::int64_t query) { return query % block; };
  mistakes.push_back({.name = "L_of_first_tile",
                      .text = "every tile of queries has the L of the first tile",
                      .concerns = all,
                      .row_of_L = in_first});
  mistakes.push_back({.name = "D_of_first_tile",
                      .text = "every tile of queries has the D of the first tile",
                      .concerns = {true, true, false},
                      .row_of_D = in_first});
  mistakes.push_back({.name = "last_query_tile_left_out",
                      .text = "the last tile of queries is left out",
                      .concerns = all,
                      .counts = [=](std::int64_t query, std::int64_t) { return query / block + 1 < tiles; }});
  mistakes.push_back({.name = "first_query_tile_left_out",
                      .text = "the first tile of queries is left out",
                      .concerns = all,
                      .counts = [=](std::int64_t query, std::int64_t) { return query >= block; }});
  mistakes.push_back({.name = "query_tile_before",
                      .text = "from the second tile of queries on, Q, dO, L and D are those of the tile before",
                      .concerns = all,
                      .row_of_all = [=](std::int64_t query) { return query < block ? query : query - block; }});
  if (tiles > 2)
    mistakes.push_back({.name = "query_tile_is_first",
                        .text = "Q, dO, L and D are always those of the first tile of queries",
                        .concerns = all,
                        .row_of_all = in_first});
}

}  // namespace

std::vector<GradientMistake> known_gradient_mistakes(const AttentionProblem& problem, std::int64_t block_q,
                                                     std::int64_t block_kv) {
  std::vector<GradientMistake> mistakes;
  add_mistakes_of_dS(mistakes);
  add_mistakes_of_P(mistakes);
  const double scale = softmax_scale(problem.head_dim);
  constexpr const char* kTakesInstead[] = {"K", "Q", "dO"};
  constexpr const char* kOther[] = {"V", "dO", "Q"};
  for (std::size_t which = 0; which < kGradientNames.size(); ++which) {
    const std::string name(kGradientNames[which]);
    std::array<bool, 3> one{};
    one[which] = true;
    const auto add = [&](const char* what, const std::string& text) -> GradientMistake& {
      mistakes.push_back({.name = name + what, .text = name + text, .concerns = one});
      return mistakes.back();
    };
    if (which == k_dV) {
      add("_scaled", " is multiplied by the scale of the scores").factor = scale;
      add("_takes_dS", " is a product with dS, not with P").P = right_dS;
    } else {
      add("_not_scaled", " is not multiplied by the scale of the scores").factor = 1 / scale;
      add("_scaled_twice", " is multiplied by the scale of the scores twice").factor = scale;
    }
    add("_negated", " has the opposite sign").factor = -1;
    add("_takes_other", " is a product with " + std::string(kOther[which]) + ", not with " + kTakesInstead[which])
        .takes_other = true;
    const bool sums_queries = which != k_dQ;
    const std::int64_t block = sums_queries ? block_q : block_kv;
    const std::int64_t rows = sums_queries ? problem.seq_len : problem.seq_len_kv, tiles = (rows + block - 1) / block;
    if (tiles < 2) continue;
    const std::string of = sums_queries ? "queries" : "keys";
    const auto only = [&](const char* what, const std::string& text, auto counts) {
      add(what, text).counts = [=](std::int64_t query, std::int64_t key) {
        return counts((sums_queries ? query : key) / block);
      };
    };
    only("_last_tile_left_out", " leaves out the last tile of " + of, [=](auto tile) { return tile + 1 < tiles; });
    only("_first_tile_left_out", " leaves out the first tile of " + of, [](auto tile) { return tile > 0; });
    only("_last_tile_alone", " has the last tile of " + of + " alone, as if each replaced the sum so far",
         [=](auto tile) { return tile + 1 == tiles; });
    only("_half_of_tiles", " is a sum over the first half of the tiles of " + of,
         [=](auto tile) { return 2 * tile < tiles; });
  }
  if (problem.seq_len > block_q) add_mistakes_of_query_tiles(mistakes, problem.seq_len, block_q);
  return mistakes;
}

std::vector<double> gradient_row_with(const GradientMistake& mistake, const Inputs& inputs, std::size_t which,
                                      std::int64_t batch, std::int64_t head, std::int64_t row) {
  const AttentionProblem& problem = inputs.problem;
  const GradientInputs& given = *inputs.gradients;
  const std::int64_t head_dim = problem.head_dim, sharing = problem.heads / num_kv_heads(problem);
  const double scale = inputs.scale();
  const bool rows_are_queries = which == k_dQ;
  std::vector<double> sum(head_dim);
  for (std::int64_t i = 0; i < (rows_are_queries ? 1 : sharing); ++i) {
    const std::int64_t of_Q = rows_are_queries ? head : head * sharing + i;
    const auto add = [&](std::int64_t query, std::int64_t key) {
      if (const auto [begin, end] = visible_keys(problem, batch, query); key < begin || key >= end) return;
      if (mistake.counts && !mistake.counts(query, key)) return;
      if (mistake.row_of_all) query = mistake.row_of_all(query);
      const std::uint16_t *Q = inputs.Q_row(batch, of_Q, query), *K = inputs.K_row(batch, of_Q, key),
                          *V = inputs.V_row(batch, of_Q, key),
                          *dO = given.dO.data() + given.dO_layout.row(batch, of_Q, query);
      const std::int64_t first = (batch * problem.heads + of_Q) * problem.seq_len;
      const BeforeP x{
          .S = scale * dot_of_rows(Q, K, head_dim, problem.dtype),
          .L = given.exact_log_sum_exp[first + (mistake.row_of_L ? mistake.row_of_L(query) : query)],
          .dP = which == k_dV && !mistake.P ? 0 : dot_of_rows(dO, mistake.dP_takes_K ? K : V, head_dim, problem.dtype),
          .D = given.exact_D[first + (mistake.row_of_D ? mistake.row_of_D(query) : query)],
          .scale = scale};
      if (which == k_dV)
        add_row(sum, mistake.P ? mistake.P(x) : right_P(x), mistake.takes_other ? Q : dO, problem.dtype);
      else if (which == k_dK)
        add_row(sum, mistake.dS ? mistake.dS(x) : right_dS(x), mistake.takes_other ? dO : Q, problem.dtype);
      else
        add_row(sum, mistake.dS ? mistake.dS(x) : right_dS(x), mistake.takes_other ? V : K, problem.dtype);
    };
    for (std::int64_t other = 0; other < (rows_are_queries ? problem.seq_len_kv : problem.seq_len); ++other)
      rows_are_queries ? add(row, other) : add(other, row);
  }
  const double factor = mistake.factor * (which == k_dV ? 1 : scale);
  for (double& value : sum) value *= factor;
  return sum;
}

std::vector<GradientMistake> gradient_mistakes_that_explain(const Inputs& inputs,
                                                            const std::array<Reference, 3>& references,
                                                            const std::vector<HostBuffer>& outputs,
                                                            std::int64_t block_q, std::int64_t block_kv,
                                                            const Progress& progress) {
  std::array<std::optional<SampledGradient>, 3> samples;
  for (std::size_t which = 0; which < samples.size(); ++which) {
    const Tiling tiling{.block_q = static_cast<int>(which == k_dQ ? block_q : block_kv)};
    const WrongElements wrong = find_wrong(references[which], outputs[which], tiling);
    if (wrong.wrong > 0) samples[which] = sample_gradient(which, wrong);
  }
  std::vector<GradientMistake> found;
  if (std::ranges::none_of(samples, [](const auto& sample) { return sample.has_value(); })) return found;
  const auto mistakes = known_gradient_mistakes(inputs.problem, block_q, block_kv);
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    if (progress) progress(static_cast<std::int64_t>(i), std::ssize(mistakes));
    const auto agrees = [&](std::size_t which) {
      return !samples[which] ||
             (mistakes[i].concerns[which] &&
              explains_gradient(mistakes[i], inputs, references[which], outputs[which], *samples[which]));
    };
    if (agrees(k_dQ) && agrees(k_dK) && agrees(k_dV)) found.push_back(mistakes[i]);
  }
  return found;
}

}  // namespace flash_ladder
