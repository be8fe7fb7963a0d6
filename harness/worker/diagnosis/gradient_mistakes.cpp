#include "worker/diagnosis/gradient_mistakes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "philox.h"
#include "problem/problem.h"
#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kSampledGradientRows = 6;
enum : std::size_t { k_dQ, k_dK, k_dV };  // as kGradientNames

double capped(const BeforeP& x, double score) {
  return x.softcap == 0 ? score : x.softcap * std::tanh(score / x.softcap);
}
double S(const BeforeP& x) {
  return capped(x, x.scale * x.product) - x.alibi * static_cast<double>(std::abs(x.distance));
}
// The derivative of S with respect to scale · product.
double slope(const BeforeP& x) {
  return x.softcap == 0 ? 1 : 1 - std::pow(std::tanh(x.scale * x.product / x.softcap), 2);
}
// exp(S - L), from which dropout makes the P of dV.
double weight(const BeforeP& x) { return std::exp(S(x) - x.L); }
double right_P(const BeforeP& x) { return x.kept * weight(x); }
double right_dS(const BeforeP& x) { return weight(x) * (x.kept * x.dP - x.D) * slope(x); }

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
      if (std::isnan(mistaken[d]) && std::isnan(value)) {
        is_clear = true;
        continue;
      }
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
         return weight(x) * x.kept * x.dP * slope(x);
       }});
  mistakes.push_back(
      {.name = "D_added", .text = "D is added to dP, not subtracted", .concerns = both, .dS = [](const BeforeP& x) {
         return weight(x) * (x.kept * x.dP + x.D) * slope(x);
       }});
  mistakes.push_back({.name = "D_subtracted_from_P",
                      .text = "D is subtracted from P, not from dP",
                      .concerns = both,
                      .dS = [](const BeforeP& x) { return x.kept * x.dP * (weight(x) - x.D) * slope(x); }});
  mistakes.push_back({.name = "P_left_out",
                      .text = "dS is dP - D, without the factor P",
                      .concerns = both,
                      .dS = [](const BeforeP& x) { return (x.kept * x.dP - x.D) * slope(x); }});
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
void add_mistakes_of_P(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  const auto add = [&](std::string name, std::string text, std::function<double(const BeforeP&)> weight) {
    mistakes.push_back({.name = std::move(name),
                        .text = std::move(text),
                        .concerns = {true, true, true},
                        .P = [weight](const BeforeP& x) { return x.kept * weight(x); },
                        .dS = [weight](const BeforeP& x) { return weight(x) * (x.kept * x.dP - x.D) * slope(x); }});
  };
  add("L_left_out", "L is not subtracted from S", [](const BeforeP& x) { return std::exp(S(x)); });
  add("scale_left_out", "the scores are not scaled", [](const BeforeP& x) {
    BeforeP unscaled = x;
    unscaled.scale = 1;
    return weight(unscaled);
  });
  add("log2e_left_out", "2^(S - L) is computed in place of exp(S - L)",
      [](const BeforeP& x) { return std::exp2(S(x) - x.L); });
  if (problem.softcap > 0)
    add("softcap_left_out", "the scores are not capped", [](const BeforeP& x) {
      BeforeP without = x;
      without.softcap = 0;
      return weight(without);
    });
  if (!problem.alibi) return;
  add("alibi_left_out", "ALiBi is left out of the scores", [](const BeforeP& x) {
    BeforeP without = x;
    without.alibi = 0;
    return weight(without);
  });
  add("alibi_added", "ALiBi is added to the scores, not subtracted", [](const BeforeP& x) {
    BeforeP added = x;
    added.alibi = -x.alibi;
    return weight(added);
  });
}

// Of the derivative of the softcap, which is a factor of dS.
void add_mistakes_of_softcap(std::vector<GradientMistake>& mistakes) {
  const auto add = [&](std::string name, std::string text, std::function<double(const BeforeP&)> slope) {
    mistakes.push_back({.name = std::move(name),
                        .text = std::move(text),
                        .concerns = {true, true, false},
                        .dS = [slope](const BeforeP& x) { return weight(x) * (x.kept * x.dP - x.D) * slope(x); }});
  };
  add("softcap_derivative_left_out", "dS lacks the derivative of the softcap, 1 - tanh²",
      [](const BeforeP&) { return 1.0; });
  add("softcap_derivative_not_squared", "the derivative of the softcap is 1 - tanh, not 1 - tanh²",
      [](const BeforeP& x) { return 1 - std::tanh(x.scale * x.product / x.softcap); });
  add("softcap_derivative_of_capped", "the derivative of the softcap takes the tanh of the capped score",
      [](const BeforeP& x) { return 1 - std::pow(std::tanh(capped(x, x.scale * x.product) / x.softcap), 2); });
  add("softcap_derivative_not_divided",
      "the derivative of the softcap takes the square of the capped score, not of tanh",
      [](const BeforeP& x) { return 1 - std::pow(capped(x, x.scale * x.product), 2); });
  add("softcap_derivative_after_alibi", "the derivative of the softcap takes the score from which ALiBi is subtracted",
      [](const BeforeP& x) { return 1 - std::pow(S(x) / x.softcap, 2); });
}

// Of the distance and the slope of ALiBi, on which every gradient depends.
void add_mistakes_of_alibi(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  const std::array<bool, 3> all{true, true, true};
  mistakes.push_back({.name = "alibi_not_aligned",
                      .text = "the distance of ALiBi is that of key and query, not of the key that is aligned with it",
                      .concerns = all,
                      .distance = [](std::int64_t query, std::int64_t key) { return query - key; }});
  mistakes.push_back({.name = "alibi_aligned_by_sizes",
                      .text = "the distance of ALiBi takes seq_len and seq_len_kv, not the lengths of the sequence",
                      .concerns = all,
                      .distance = [more = problem.seq_len_kv - problem.seq_len](std::int64_t query, std::int64_t key) {
                        return query + more - key;
                      }});
  const std::int64_t sharing = problem.heads / num_kv_heads(problem);
  mistakes.push_back(
      {.name = "alibi_of_first_head",
       .text = sharing > 1 ? "the slope of ALiBi is that of the first head of a group"
                           : "the slope of ALiBi is that of the first head",
       .concerns = all,
       .head_of_slope = [=](std::int64_t, std::int64_t head) { return sharing > 1 ? head / sharing * sharing : 0; }});
}

void add_mistakes_of_dropout(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  const std::array<bool, 3> all{true, true, true}, of_dS{true, true, false}, of_dV{false, false, true};
  const auto add = [&](std::string name, std::string text, const std::array<bool, 3>& concerns,
                       std::function<double(const BeforeP&)> P, std::function<double(const BeforeP&)> dS) {
    mistakes.push_back({.name = std::move(name),
                        .text = std::move(text),
                        .concerns = concerns,
                        .P = std::move(P),
                        .dS = std::move(dS)});
  };
  const auto mask = [](const BeforeP& x) { return x.kept > 0 ? 1.0 : 0.0; };
  const auto dS_of = [](const BeforeP& x, double dP) { return weight(x) * (dP - x.D) * slope(x); };
  const auto without = [=](const BeforeP& x) { return dS_of(x, x.dP); };
  const auto mask_alone = [=](const BeforeP& x) { return dS_of(x, mask(x) * x.dP); };
  const auto P_mask_alone = [=](const BeforeP& x) { return mask(x) * weight(x); };
  add("dropout_left_out", "dropout is left out", all, weight, without);
  add("dropout_not_in_dP", "dP is not dropped", of_dS, {}, without);
  add("dropout_not_in_dV", "the P of dV is not dropped", of_dV, weight, {});
  add("dropout_not_scaled", "kept weights are not divided by the probability that they are kept", all, P_mask_alone,
      mask_alone);
  add("dropout_not_scaled_in_dP", "dP is not divided by the probability that a weight is kept", of_dS, {}, mask_alone);
  add("dropout_not_scaled_in_dV", "dV is not divided by the probability that a weight is kept", of_dV, P_mask_alone,
      {});
  add("dropout_of_dS", "dS is dropped, not dP: D must be subtracted from dropped elements, too", of_dS, {},
      [=](const BeforeP& x) { return x.kept * dS_of(x, x.dP); });
  add("dropout_of_P_and_dP", "dS takes the dropped P, not exp(S - L), beside the dropped dP", of_dS, {},
      [=](const BeforeP& x) { return x.kept * dS_of(x, x.kept * x.dP); });
  const auto of_mask = [&](std::string name, std::string text, auto head) {
    mistakes.push_back(
        {.name = std::move(name), .text = std::move(text), .concerns = all, .head_of_mask = std::move(head)});
  };
  of_mask("mask_of_head", "the mask of dropout is the same in all batch entries",
          [](std::int64_t, std::int64_t head) { return head; });
  if (num_kv_heads(problem) != problem.heads)
    of_mask("mask_of_kv_head", "the mask of dropout is that of the head of K and V",
            [kv_heads = num_kv_heads(problem), sharing = problem.heads / num_kv_heads(problem)](
                std::int64_t batch, std::int64_t head) { return batch * kv_heads + head / sharing; });
  mistakes.push_back({.name = "mask_transposed",
                      .text = "the mask of dropout is transposed: query and key are exchanged",
                      .concerns = all,
                      .mask_is_transposed = true});
  constexpr double kMostScores = 1 << 18;  // of a head, each of which costs a product for each row of dK
  if (1.0 * problem.seq_len * problem.seq_len_kv <= kMostScores)
    mistakes.push_back({.name = "D_without_dropout",
                        .text = "D is that of an O without dropout",
                        .concerns = of_dS,
                        .D_lacks_dropout = true});
}

// Of the lengths of sequences, from which a kernel computes which keys a query sees.
void add_mistakes_of_lengths(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  const std::array<bool, 3> all{true, true, true};
  const auto add = [&](std::string name, std::string text, auto visible) {
    mistakes.push_back({.name = std::move(name), .text = std::move(text), .concerns = all, .visible = visible});
  };
  add("aligned_by_sizes", "the mask is aligned by seq_len and seq_len_kv, not by the lengths of the sequence",
      [](const AttentionProblem& of, std::int64_t batch, std::int64_t query) -> KeyRange {
        if (query >= num_queries(of, batch)) return {.begin = 0, .end = 0};
        AttentionProblem whole = of;
        whole.lengths = whole.lengths_kv = {};
        const auto [begin, end] = visible_keys(whole, batch, query);
        const std::int64_t keys = num_keys(of, batch);
        return {.begin = std::min(begin, keys), .end = std::min(end, keys)};
      });
  if (problem.packed) return;  // rows beyond a sequence's end are another one's
  add("keys_of_padding", "keys of padding are seen",
      [](const AttentionProblem& of, std::int64_t batch, std::int64_t query) -> KeyRange {
        const auto [begin, end] = visible_keys(of, batch, query);
        return {.begin = begin, .end = begin < end && end == num_keys(of, batch) ? of.seq_len_kv : end};
      });
  add("queries_of_padding", "queries of padding count",
      [](const AttentionProblem& of, std::int64_t batch, std::int64_t query) -> KeyRange {
        if (query < num_queries(of, batch)) return visible_keys(of, batch, query);
        return {.begin = 0, .end = num_keys(of, batch)};
      });
  if (problem.batch > 1)
    add("lengths_of_first_entry", "every batch entry has the lengths of the first",
        [](const AttentionProblem& of, std::int64_t, std::int64_t query) { return visible_keys(of, 0, query); });
  if (problem.batch > 1)
    add("lengths_of_entry_before", "every batch entry but the first has the lengths of the one before",
        [](const AttentionProblem& of, std::int64_t batch, std::int64_t query) {
          return visible_keys(of, std::max<std::int64_t>(batch - 1, 0), query);
        });
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

// One head of Q as a kernel with a mistake sees it.
class MistakenHead {
 public:
  MistakenHead(const GradientMistake& mistake, const Inputs& inputs, std::int64_t batch, std::int64_t head)
      : mistake_(mistake),
        inputs_(inputs),
        batch_(batch),
        head_(head),
        layout_of_L_(log_sum_exp_layout(inputs.problem)),
        Ds_without_dropout_(inputs.problem.seq_len) {}

  const std::uint16_t* Q(std::int64_t query) const { return inputs_.Q_row(batch_, head_, query); }
  const std::uint16_t* K(std::int64_t key) const { return inputs_.K_row(batch_, head_, key); }
  const std::uint16_t* V(std::int64_t key) const { return inputs_.V_row(batch_, head_, key); }
  const std::uint16_t* dO(std::int64_t query) const {
    return inputs_.gradients->dO.data() + inputs_.gradients->dO_layout.row(batch_, head_, query);
  }

  bool counts(std::int64_t query, std::int64_t key) const {
    const auto [begin, end] = mistake_.visible ? mistake_.visible(inputs_.problem, batch_, query)
                                               : visible_keys(inputs_.problem, batch_, query);
    return key >= begin && key < end && (!mistake_.counts || mistake_.counts(query, key));
  }

  BeforeP before_P(std::int64_t query, std::int64_t key, bool with_dP) const {
    const AttentionProblem& problem = inputs_.problem;
    const GradientInputs& given = *inputs_.gradients;
    const auto row_of = [&](const auto& other) {
      return layout_of_L_.row(batch_, head_, other ? other(query) : query);
    };
    BeforeP x{.product = dot_of_rows(Q(query), K(key), mistake_.terms_of_S > 0 ? mistake_.terms_of_S : problem.head_dim,
                                     problem.dtype),
              .L = given.exact_log_sum_exp[row_of(mistake_.row_of_L)],
              .dP = with_dP ? dP(query, key) : 0,
              .D = given.exact_D[row_of(mistake_.row_of_D)],
              .scale = inputs_.scale(),
              .softcap = problem.softcap,
              .distance = mistake_.distance ? mistake_.distance(query, key)
                                            : query + num_keys(problem, batch_) - num_queries(problem, batch_) - key};
    if (problem.alibi)
      x.alibi = inputs_.alibi_slopes[mistake_.head_of_slope ? mistake_.head_of_slope(batch_, head_) : head_];
    if (const int keep = dropout_keep(problem.dropout_p); keep < 256) {
      const std::int64_t head =
          mistake_.head_of_mask ? mistake_.head_of_mask(batch_, head_) : batch_ * problem.heads + head_;
      const bool exchanged = mistake_.mask_is_transposed;
      const bool kept =
          is_kept(static_cast<std::uint64_t>(problem.dropout_seed), static_cast<std::uint32_t>(problem.dropout_offset),
                  static_cast<int>(head), static_cast<int>(exchanged ? key : query),
                  static_cast<int>(exchanged ? query : key), keep);
      x.kept = kept ? 256.0 / keep : 0;
    }
    if (mistake_.D_lacks_dropout && with_dP) x.D = D_without_dropout(query);
    return x;
  }

 private:
  double dP(std::int64_t query, std::int64_t key) const {
    const std::int64_t terms = mistake_.terms_of_dP > 0 ? mistake_.terms_of_dP : value_head_dim(inputs_.problem);
    return dot_of_rows(dO(query), mistake_.dP_takes_K ? K(key) : V(key), terms, inputs_.problem.dtype);
  }
  // The sum of P dP over the keys that the query sees.
  double D_without_dropout(std::int64_t query) const {
    std::optional<double>& D = Ds_without_dropout_[query];
    if (D) return *D;
    static const GradientMistake kNone;
    const MistakenHead right(kNone, inputs_, batch_, head_);
    const auto [begin, end] = visible_keys(inputs_.problem, batch_, query);
    D = 0;
    for (std::int64_t key = begin; key < end; ++key) {
      const BeforeP x = right.before_P(query, key, true);
      *D += weight(x) * x.dP;
    }
    return *D;
  }

  const GradientMistake& mistake_;
  const Inputs& inputs_;
  std::int64_t batch_, head_;
  TensorLayout layout_of_L_;
  mutable std::vector<std::optional<double>> Ds_without_dropout_;  // [seq_len]: those that were asked for
};

// One size in place of the other, where the rows are long enough.
void add_mistakes_of_head_dims(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  if (problem.head_dim < problem.head_dim_v)
    mistakes.push_back({.name = "dP_sums_head_dim",
                        .text = "dP sums only the first head_dim elements of dO and V, of which rows have head_dim_v",
                        .concerns = {true, true, false},
                        .terms_of_dP = problem.head_dim});
  else
    mistakes.push_back({.name = "S_sums_head_dim_v",
                        .text = "S sums only the first head_dim_v elements of Q and K, of which rows have head_dim",
                        .concerns = {true, true, true},
                        .terms_of_S = problem.head_dim_v});
}

// Mistakes of the fields that a problem has beyond masks.
void add_mistakes_of_fields(std::vector<GradientMistake>& mistakes, const AttentionProblem& problem) {
  if (problem.head_dim_v != 0) add_mistakes_of_head_dims(mistakes, problem);
  if (problem.softcap > 0) add_mistakes_of_softcap(mistakes);
  if (problem.alibi) add_mistakes_of_alibi(mistakes, problem);
  if (problem.dropout_p > 0) add_mistakes_of_dropout(mistakes, problem);
  if (!problem.lengths.empty() || !problem.lengths_kv.empty()) add_mistakes_of_lengths(mistakes, problem);
}

}  // namespace

std::vector<GradientMistake> known_gradient_mistakes(const AttentionProblem& problem, std::int64_t block_q,
                                                     std::int64_t block_kv) {
  std::vector<GradientMistake> mistakes;
  add_mistakes_of_dS(mistakes);
  add_mistakes_of_P(mistakes, problem);
  add_mistakes_of_fields(mistakes, problem);
  const bool rows_are_alike = problem.head_dim_v == 0;  // so that one of V can take the place of one of K
  if (rows_are_alike)
    mistakes.push_back({.name = "dP_takes_K",
                        .text = "dP is a product with K, not with V",
                        .concerns = {true, true, false},
                        .dP_takes_K = true});
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
    if (rows_are_alike)
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
  const std::int64_t sharing = problem.heads / num_kv_heads(problem);
  const bool rows_are_queries = which == k_dQ;
  std::vector<double> sum(which == k_dV ? value_head_dim(problem) : problem.head_dim);
  for (std::int64_t i = 0; i < (rows_are_queries ? 1 : sharing); ++i) {
    const MistakenHead of(mistake, inputs, batch, rows_are_queries ? head : head * sharing + i);
    const auto add = [&](std::int64_t query, std::int64_t key) {
      if (!of.counts(query, key)) return;
      if (mistake.row_of_all) query = mistake.row_of_all(query);
      const BeforeP x = of.before_P(query, key, which != k_dV || mistake.P);
      const bool other = mistake.takes_other;
      if (which == k_dV)
        add_row(sum, mistake.P ? mistake.P(x) : right_P(x), other ? of.Q(query) : of.dO(query), problem.dtype);
      else if (which == k_dK)
        add_row(sum, mistake.dS ? mistake.dS(x) : right_dS(x), other ? of.dO(query) : of.Q(query), problem.dtype);
      else
        add_row(sum, mistake.dS ? mistake.dS(x) : right_dS(x), other ? of.V(key) : of.K(key), problem.dtype);
    };
    const std::int64_t others = rows_are_queries ? num_rows_kv(problem, batch) : num_rows(problem, batch);
    for (std::int64_t other = 0; other < others; ++other) rows_are_queries ? add(row, other) : add(other, row);
  }
  const double factor = mistake.factor * (which == k_dV ? 1 : double{inputs.scale()});
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
