#include "worker/diagnosis/gradient_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "problem/problem.h"
#include "worker/check_sets.h"
#include "worker/diagnosis/gradient_mistakes.h"
#include "worker/diagnosis/gradient_probes.h"
#include "worker/diagnosis/gradient_verdict.h"
#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kMaxGradientFindings = 20;  // how many are kept

Tiling tiling_of_rows(const Tiling& tiling, std::size_t which) {
  return {.block_q = which == 0 ? tiling.block_q : tiling.block_kv, .num_warps = tiling.num_warps};
}

// The largest |got - expected| / bound of the selected rows, and the first wrong element.
Compared compare_gradient(const Reference& reference, const HostBuffer& output, const WrongElements& wrong) {
  const AttentionProblem& problem = reference.problem;
  Compared values{.wrong = wrong.wrong, .compared = wrong.compared, .first = {}};
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t index = 0; index < reference.rows.count(); ++index) {
        const std::int64_t row = reference.rows.row(batch, head, index);
        const std::uint16_t* got = output.data() + output_layout(problem).row(batch, head, row);
        const double* expected = reference.row(batch, head, index);
        const double bound = reference.bound[batch * problem.heads + head];
        for (std::int64_t d = 0; d < problem.head_dim; ++d) {
          const double value = element_to_float(problem.dtype, got[d]), off = std::abs(value - expected[d]);
          values.of_bound =
              std::isnan(off) || std::isnan(values.of_bound) ? NAN : std::max(values.of_bound, off / bound);
          if (off <= bound || values.first) continue;
          values.first = WrongElement{.batch = batch,
                                      .head = head,
                                      .row = row,
                                      .column = d,
                                      .got = value,
                                      .expected = expected[d],
                                      .bound = bound,
                                      .holder = {}};
        }
      }
  return values;
}

class GradientSteps {
 public:
  GradientSteps(const AttentionProblem& problem, std::uint64_t seed, const Tiling& tiling,
                const ExamineGradients& examine, const Progress& progress)
      : problem_(problem), seed_(seed), tiling_(tiling), examine_(examine), progress_(progress) {}
  GradientSteps(const GradientSteps&) = delete;
  GradientSteps& operator=(const GradientSteps&) = delete;

  GradientReport look(Distribution data, const ShownRow& shown) {
    seen_.problem = problem_;
    seen_.seed = seed_;
    seen_.block_q = tiling_.block_q;
    seen_.block_kv = tiling_.block_kv;
    distribution_ = data;
    cut();
    for (const Distribution other : {Distribution::ramp, Distribution::large_logit, Distribution::offset_mean}) {
      if (data != Distribution::normal || seen_.first_wrong() != nullptr) break;
      use_if_wrong(other);
    }
    seen_.inputs = to_string(distribution_);
    choose_tile(shown);
    if (faulted_) return std::move(seen_);
    see_matrices(shown);
    show_cuts();
    return std::move(seen_);
  }

 private:
  // ---- Launches ----

  Inputs inputs_for(const AttentionProblem& problem) const {
    Inputs inputs = make_inputs(problem, distribution_, Packing::separate, seed_, progress_);
    // As for the check's sets, whose designed scores would make gradients overflow.
    const auto size = distribution_ == Distribution::adversarial ? OutputGradient::reduced : OutputGradient::normal;
    inputs.gradients = make_gradient_inputs(inputs, Packing::separate, size, seed_, {}, progress_);
    return inputs;
  }

  GradientOutcome launch(const Inputs& inputs, std::int64_t row_tile = 1) {
    GradientOutcome outcome{.references = make_gradient_references(inputs, row_tile, 0, {}, progress_), .outputs = {}};
    ExaminedGradients examined = examine_(inputs);
    findings_of_launch_ = std::ssize(examined.findings);
    for (Finding& finding : examined.findings) {
      const auto same = std::ranges::find_if(seen_.findings, [&](const Finding& known) {
        return known.kind == finding.kind && known.position == finding.position &&
               known.other_position == finding.other_position;
      });
      if (same != seen_.findings.end())
        same->count += finding.count;
      else if (seen_.findings.size() < kMaxGradientFindings)
        seen_.findings.push_back(std::move(finding));
    }
    outcome.outputs = std::move(examined.outputs);
    faulted_ = faulted_ || !outcome.outputs;
    return outcome;
  }

  // ---- Cuts ----

  AttentionProblem problem_of(const GradientCut& cut) const {
    AttentionProblem problem = problem_;
    (cut.of == "queries" ? problem.seq_len : problem.seq_len_kv) = cut.rows;
    return problem;
  }

  void take(const char* of, std::int64_t tiles) {
    const bool of_queries = of == std::string_view("queries");
    GradientCut cut{.of = of,
                    .tiles = tiles,
                    .rows = of_queries ? std::min(tiles * tiling_.block_q, problem_.seq_len)
                                       : std::min(tiles * tiling_.block_kv, problem_.seq_len_kv),
                    .gradients = {}};
    const AttentionProblem problem = problem_of(cut);
    auto outcome = launch(inputs_for(problem), row_tile(problem_, tiling_.block_q));
    cut.faulted = !outcome.outputs;
    cut.findings = findings_of_launch_;
    if (!cut.faulted)
      for (std::size_t which = 3; which-- > 0;) {
        if ((which == 0) == of_queries) continue;  // dQ is a sum over keys, dK and dV over queries
        const Reference& reference = outcome.references[which];
        const HostBuffer& output = (*outcome.outputs)[which];
        const WrongElements wrong = find_wrong(reference, output, tiling_of_rows(tiling_, which));
        cut.gradients.push_back({.name = std::string(kGradientNames[which]),
                                 .values = compare_gradient(reference, output, wrong),
                                 .expected = {},
                                 .got = {}});
      }
    seen_.cuts.push_back(std::move(cut));
    outcomes_.push_back(std::move(outcome));
  }

  void cut() {
    const auto take_all = [&](const char* of, std::int64_t rows, std::int64_t block) {
      for (const std::int64_t tiles : cuts_of((rows + block - 1) / block)) {
        if (faulted_) return;  // a fault destroys the GPU's context
        take(of, tiles);
      }
    };
    seen_.cuts.clear();
    outcomes_.clear();
    take_all("queries", problem_.seq_len, tiling_.block_q);
    take_all("keys", problem_.seq_len_kv, tiling_.block_kv);
  }

  // Tries the whole problem with other inputs; if a gradient is wrong, those inputs are shown.
  void use_if_wrong(Distribution other) {
    const Distribution before = std::exchange(distribution_, other);
    const GradientOutcome outcome = launch(inputs_for(problem_), row_tile(problem_, tiling_.block_q));
    const auto is_right = [&](std::size_t which) {
      return find_wrong(outcome.references[which], (*outcome.outputs)[which], tiling_of_rows(tiling_, which)).wrong ==
             0;
    };
    if (outcome.outputs && findings_of_launch_ == 0 && is_right(0) && is_right(1) && is_right(2)) {
      seen_.also_right.push_back(to_string(other));
      distribution_ = before;
      return;
    }
    seen_.also_right.insert(seen_.also_right.begin(), to_string(before));
    faulted_ = false;
    cut();
  }

  // ---- What is shown ----

  std::int64_t sharing() const { return problem_.heads / num_kv_heads(problem_); }

  void choose_tile(const ShownRow& shown) {
    if (const GradientCut* wrong = seen_.first_wrong()) {
      for (const auto& gradient : wrong->gradients) {
        const auto& first = gradient.values.first;
        if (!first) continue;
        const bool of_queries = gradient.name == "dQ";
        seen_.batch = first->batch;
        seen_.head = of_queries ? first->head : first->head * sharing();
        (of_queries ? seen_.query : seen_.key) = first->row;
        (of_queries ? seen_.key : seen_.query) =
            of_queries ? (wrong->tiles - 1) * tiling_.block_kv : (wrong->tiles - 1) * tiling_.block_q;
        break;
      }
    }
    if (shown.head) seen_.head = *shown.head;
    if (shown.row) seen_.query = *shown.row;
    seen_.query_tile = seen_.query / tiling_.block_q;
    seen_.key_tile = seen_.key / tiling_.block_kv;
  }

  GradientTile tile_in(const AttentionProblem& problem) const {
    const std::int64_t first_query = seen_.query_tile * tiling_.block_q, first_key = seen_.key_tile * tiling_.block_kv;
    return {.first_query = first_query,
            .queries = std::min<std::int64_t>(tiling_.block_q, problem.seq_len - first_query),
            .first_key = first_key,
            .keys = std::min<std::int64_t>(tiling_.block_kv, problem.seq_len_kv - first_key),
            .head = seen_.head};
  }

  void see_matrices(const ShownRow& shown) {
    // The first wrong cut is shown, unless the query that was asked for is outside it.
    const GradientCut* wrong = seen_.first_wrong();
    const AttentionProblem problem =
        wrong != nullptr && seen_.query < problem_of(*wrong).seq_len ? problem_of(*wrong) : problem_;
    const Inputs inputs = inputs_for(problem);
    const GradientTile tile = tile_in(problem);
    std::map<std::string, std::pair<GradientProbe, GradientOutcome>> probed;  // "dP through dQ"
    for (const GradientProbe& probe : gradient_probes()) {
      if (!can_show(probe, tile, problem.head_dim)) continue;
      auto outcome = launch(inputs_of_probe(probe, inputs, tile));
      if (faulted_) return;
      seen_.matrices.push_back(see_matrix(probe, inputs, outcome, tile));
      probed.emplace(fmt::format("{} through {}", probe.matrix_name(), probe.output_name()),
                     std::pair(probe, std::move(outcome)));
    }
    choose_query_and_key(shown);
    const auto outcome = launch(inputs);
    if (faulted_) return;
    for (std::size_t which = 3; which-- > 0;) see_gradient(which, outcome, tile);
    for (SeenMatrix& seen : seen_.matrices)
      if (seen.values.first)
        seen.shown = *seen.values.first;
      else if (const auto found = probed.find(fmt::format("{} through {}", seen.matrix, seen.through));
               found != probed.end())
        seen.shown = element_at(found->second.first, inputs, found->second.second, tile, seen_.key);
    judge(inputs, tile);
    show_query(inputs, tile, probed);
    diagnose_last(inputs, outcome);
  }

  WrongElement element_at(const GradientProbe& probe, const Inputs& inputs, const GradientOutcome& outcome,
                          const GradientTile& tile, std::int64_t key) const {
    const auto [got, expected, bound] =
        element_of_probe(probe, inputs, outcome, tile, seen_.batch, seen_.head, seen_.query, key);
    return {.batch = seen_.batch,
            .head = seen_.head,
            .row = seen_.query,
            .column = key,
            .got = got,
            .expected = expected,
            .bound = bound,
            .holder = {}};
  }

  // The first wrong element of the first matrix that has one.
  void choose_query_and_key(const ShownRow& shown) {
    const auto wrong =
        std::ranges::find_if(seen_.matrices, [](const SeenMatrix& seen) { return seen.values.first.has_value(); });
    if (wrong == seen_.matrices.end() || shown.row || shown.head) return;
    seen_.batch = wrong->values.first->batch;
    seen_.head = wrong->values.first->head;
    seen_.query = wrong->values.first->row;
    seen_.key = wrong->values.first->column;
  }

  // dQ, dK or dV in the tile.
  void see_gradient(std::size_t which, const GradientOutcome& outcome, const GradientTile& tile) {
    const Reference& reference = outcome.references[which];
    const HostBuffer& output = (*outcome.outputs)[which];
    const AttentionProblem& problem = reference.problem;
    const bool of_queries = which == 0;
    const std::int64_t first = of_queries ? tile.first_query : tile.first_key,
                       rows = of_queries ? tile.queries : tile.keys,
                       head = of_queries ? seen_.head : seen_.head / sharing();
    SeenMatrix seen{.matrix = std::string(kGradientNames[which]),
                    .through = std::string(kGradientNames[which]),
                    .values = {},
                    .places = {}};
    WrongElements wrong = find_wrong(reference, output, tiling_of_rows(tiling_, which));
    if (wrong.wrong > 0)
      seen.places = describe_places(wrong, problem, tiling_of_rows(tiling_, which), of_queries ? "query" : "key");
    const double bound = reference.bound[seen_.batch * problem.heads + head];
    for (std::int64_t row = first; row < first + rows; ++row)
      for (std::int64_t d = 0; d < problem.head_dim; ++d) {
        const std::uint16_t bits = output.data()[output_layout(problem).row(seen_.batch, head, row) + d];
        const WrongElement element{.batch = seen_.batch,
                                   .head = head,
                                   .row = row,
                                   .column = d,
                                   .got = element_to_float(problem.dtype, bits),
                                   .expected = reference.row(seen_.batch, head, row)[d],
                                   .bound = bound,
                                   .holder = {}};
        const double off = std::abs(element.got - element.expected);
        Compared& values = seen.values;
        ++values.compared;
        values.of_bound = std::isnan(off) || std::isnan(values.of_bound) ? NAN : std::max(values.of_bound, off / bound);
        if (d == 0 && row == (of_queries ? seen_.query : seen_.key)) seen.shown = element;
        if (off <= bound) continue;
        ++values.wrong;
        if (!values.first) values.first = element;
      }
    seen_.matrices.push_back(std::move(seen));
  }

  void judge(const Inputs& inputs, const GradientTile& tile) {
    const auto P_is_wrong_where_S_is_0 = [&]() -> std::optional<bool> {
      const GradientProbe probe{
          .matrix = GradientProbe::Matrix::P, .through = GradientProbe::Output::dV, .S_is_0 = true};
      if (!can_show(probe, tile, inputs.problem.head_dim)) return std::nullopt;
      const auto outcome = launch(inputs_of_probe(probe, inputs, tile));
      return !outcome.outputs || see_matrix(probe, inputs, outcome, tile).values.wrong > 0;
    };
    verdict_ = judge_matrices(seen_.matrices, P_is_wrong_where_S_is_0);
    if (verdict_) seen_.first_step = verdict_->step;
  }

  void show_query(const Inputs& inputs, const GradientTile& tile,
                  const std::map<std::string, std::pair<GradientProbe, GradientOutcome>>& probed) {
    const AttentionProblem& problem = inputs.problem;
    const GradientInputs& given = *inputs.gradients;
    const std::int64_t batch = seen_.batch, head = seen_.head, query = seen_.query, head_dim = problem.head_dim;
    const std::int64_t of_query = (batch * problem.heads + head) * problem.seq_len + query;
    seen_.scale = inputs.scale();
    seen_.L = given.exact_log_sum_exp[of_query];
    seen_.D = given.exact_D[of_query];
    const auto number_at = [&](const std::uint16_t* row, std::int64_t d) {
      return double{element_to_float(problem.dtype, row[d])};
    };
    const std::uint16_t *Q = inputs.Q_row(batch, head, query),
                        *dO = given.dO.data() + given.dO_layout.row(batch, head, query);
    // dS of this query from dK, at the column where Q is largest.
    std::int64_t column = 0;
    for (std::int64_t d = 0; d < head_dim; ++d)
      if (std::abs(number_at(Q, d)) > std::abs(number_at(Q, column))) column = d;
    const auto alone = launch(inputs_of_one_query(inputs, batch, head, query));
    const auto seen_through = [&](const char* name, std::int64_t key) {
      const auto found = probed.find(name);
      if (found == probed.end()) return std::nan("");
      return element_at(found->second.first, inputs, found->second.second, tile, key).got;
    };
    const auto is_wrong = [&](const char* matrix, const char* through) {
      return std::ranges::any_of(seen_.matrices, [&](const SeenMatrix& seen) {
        return seen.matrix == matrix && seen.through == through && seen.values.wrong > 0;
      });
    };
    const char* shows_dP = is_wrong("dP", "dQ") && !is_wrong("dP", "dK") ? "dP through dK" : "dP through dQ";
    const KeyRange visible = visible_keys(problem, batch, query);
    for (std::int64_t key = tile.first_key; key < tile.first_key + tile.keys; ++key) {
      QueryAndKey pair{.key = key};
      for (std::int64_t d = 0; d < head_dim; ++d) {
        pair.S_expected += seen_.scale * number_at(Q, d) * number_at(inputs.K_row(batch, head, key), d);
        pair.dP_expected += number_at(dO, d) * number_at(inputs.V_row(batch, head, key), d);
      }
      if (visible.begin <= key && key < visible.end) {
        pair.P_expected = std::exp(pair.S_expected - seen_.L);
        pair.dS_expected = pair.P_expected * (pair.dP_expected - seen_.D);
      }
      pair.P = seen_through("P through dV", key);
      pair.S = std::log(pair.P) + seen_.L;
      pair.dP = seen_through(shows_dP, key);
      const AttentionProblem& of_keys = alone.references[1].problem;
      pair.dS =
          alone.outputs
              ? element_to_float(
                    problem.dtype,
                    (*alone.outputs)[1].data()[output_layout(of_keys).row(batch, head / sharing(), key) + column]) /
                    (seen_.scale * number_at(Q, column))
              : std::nan("");
      seen_.keys.push_back(pair);
    }
  }

  void show_cuts() {
    for (std::size_t i = 0; i < seen_.cuts.size(); ++i) {
      GradientCut& cut = seen_.cuts[i];
      for (auto& gradient : cut.gradients) {
        const std::size_t which = std::ranges::find(kGradientNames, gradient.name) - kGradientNames.begin();
        const std::int64_t row = which == 0 ? seen_.query : seen_.key,
                           head = which == 0 ? seen_.head : seen_.head / sharing();
        const Reference& reference = outcomes_[i].references[which];
        if (row >= reference.problem.seq_len) continue;
        std::int64_t index = 0;
        while (index < reference.rows.count() && reference.rows.row(seen_.batch, head, index) != row) ++index;
        if (index == reference.rows.count()) continue;  // not among the compared rows of a large problem
        const double* expected = reference.row(seen_.batch, head, index);
        gradient.expected.assign(expected, expected + problem_.head_dim);
        const std::uint16_t* got =
            (*outcomes_[i].outputs)[which].data() + output_layout(reference.problem).row(seen_.batch, head, row);
        for (std::int64_t d = 0; d < problem_.head_dim; ++d)
          gradient.got.push_back(element_to_float(problem_.dtype, got[d]));
      }
    }
  }

  bool is_right_after_all(std::string_view of) const {
    bool right = true;
    for (const GradientCut& cut : seen_.cuts)
      if (cut.of == of) right = cut.wrong() == 0;
    return right;
  }

  // The whole problem, or the cut that is shown if that is right.
  void diagnose_last(const Inputs& shown, const GradientOutcome& outcome_of_shown) {
    const bool all_are_right = is_right_after_all("queries") && is_right_after_all("keys");
    const Inputs all = all_are_right ? Inputs{} : inputs_for(problem_);
    const GradientOutcome& outcome = all_are_right ? outcome_of_shown : outcomes_.back();
    Diagnosis diagnosis = describe_wrong_gradients(
        {all_are_right ? shown : all, distribution_, outcome.references, *outcome.outputs}, tiling_, progress_);
    if (verdict_)
      diagnosis.sentences.insert(diagnosis.sentences.begin() + !diagnosis.suggests.empty(), verdict_->sentence);
    for (const char* of : {"queries", "keys"})
      if (const auto start = describe_start(seen_.cuts, of)) diagnosis.sentences.push_back(*start);
    for (const SeenMatrix& seen : seen_.matrices)
      if (seen.matrix != seen.through)
        diagnosis.experiments.push_back(
            {fmt::format("{} through {}", seen.matrix, seen.through), seen.values.wrong == 0});
    if (!seen_.right() && !diagnosis.sentences.empty()) seen_.diagnosis = std::move(diagnosis);
  }

  const AttentionProblem& problem_;
  const std::uint64_t seed_;
  const Tiling& tiling_;
  const ExamineGradients& examine_;
  const Progress& progress_;
  Distribution distribution_ = Distribution::normal;
  std::int64_t findings_of_launch_ = 0;
  bool faulted_ = false;
  std::vector<GradientOutcome> outcomes_;  // of the cuts
  std::optional<GradientVerdict> verdict_;
  GradientReport seen_;
};

// The same kind of problem with few tiles.
AttentionProblem few_tiles(const AttentionProblem& problem, const Tiling& tiling) {
  AttentionProblem few = problem;
  const std::int64_t group = problem.heads / num_kv_heads(problem);
  few.batch = 1;
  few.heads = group * std::min<std::int64_t>(num_kv_heads(problem), 2);
  if (problem.kv_heads != 0) few.kv_heads = few.heads / group;
  // The last tile stays as full as it is.
  const auto shorter = [](std::int64_t length, std::int64_t block, std::int64_t tiles) {
    const std::int64_t rest = length % block;
    return std::min(length, tiles * block - (rest == 0 ? 0 : block - rest));
  };
  few.seq_len = shorter(problem.seq_len, tiling.block_q, 4);
  few.seq_len_kv = shorter(problem.seq_len_kv, tiling.block_kv, 2);
  return few;
}

// What a smaller problem of the same kind shows.
void add_experiments(Diagnosis& diagnosis, const WrongGradients& wrong, const Tiling& tiling,
                     const ExamineGradients& examine, const Progress& progress) {
  auto& sentences = diagnosis.sentences;
  const AttentionProblem few = few_tiles(wrong.inputs.problem, tiling);
  const GradientReport seen = debug_gradients(few, wrong.distribution, 0, tiling, {}, examine, progress);
  if (seen.diagnosis && seen.first_step) {
    const auto& more = seen.diagnosis->sentences;
    sentences.insert(sentences.begin() + !diagnosis.suggests.empty(), more[!seen.diagnosis->suggests.empty()]);
    diagnosis.experiments = seen.diagnosis->experiments;
    for (const char* of : {"queries", "keys"})
      if (const auto start = describe_start(seen.cuts, of)) sentences.push_back(*start);
  } else if (seen.right()) {
    sentences.push_back(fmt::format(
        "The gradients of a smaller problem ({}), with each tensor in a buffer of its own, are right: suggests "
        "something that depends on the sizes of the problem, or on its strides.",
        describe(few)));
  }
}

}  // namespace

GradientReport debug_gradients(const AttentionProblem& problem, Distribution data, std::uint64_t seed,
                               const Tiling& tiling, const ShownRow& shown, const ExamineGradients& examine,
                               const Progress& progress) {
  return GradientSteps(problem, seed, tiling, examine, progress).look(data, shown);
}

Diagnosis diagnose_gradients(const WrongGradients& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                             const ExamineGradients& examine, const Progress& progress) {
  Diagnosis diagnosis = describe_wrong_gradients(wrong, tiling, progress);
  if (diagnosis.sentences.empty()) {
    diagnosis.sentences.push_back(
        "Launched once more with the same inputs, it was right: the output changes from launch to launch, as with a race.");
    return diagnosis;
  }
  if (examine) add_experiments(diagnosis, wrong, tiling, examine, progress);
  auto& sentences = diagnosis.sentences;
  std::vector<std::string> right, not_right;
  for (const CheckedSet& set : sets) (set.right ? right : not_right).push_back(set.name);
  if (sets.size() > 1 && right.empty()) sentences.push_back("All input sets are wrong.");
  if (!right.empty() && !not_right.empty())
    sentences.push_back(fmt::format("Right: {}. Wrong: {}.", fmt::join(right, ", "), fmt::join(not_right, ", ")));
  return diagnosis;
}

}  // namespace flash_ladder
