#include "worker/diagnosis/tile_by_tile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "problem/problem.h"
#include "worker/check_sets.h"
#include "worker/diagnosis/blockwise.h"
#include "worker/diagnosis/diagnosis.h"
#include "worker/diagnosis/laboratory.h"

namespace flash_ladder {
namespace {

constexpr std::int64_t kEachTile = 8;     // this many cuts are one tile apart; later ones are further and further apart
constexpr std::size_t kMaxFindings = 20;  // how many are kept
constexpr std::int64_t kMaxProbedTiles = 3;  // for the launch that shows the layouts

std::optional<WrongElement> first_of(const WrongElements& wrong, const Reference& reference, const HostBuffer& output,
                                     const Tiling& tiling, std::int64_t held_columns) {
  if (wrong.rows.empty()) return std::nullopt;
  const AttentionProblem& problem = reference.problem;
  const WrongRow& at = wrong.rows.front();
  const std::int64_t column = wrong.first_column;
  return WrongElement{.batch = at.batch,
                      .head = at.head,
                      .row = at.row,
                      .column = column,
                      .got = element_to_float(
                          problem.dtype, output.data()[output_layout(problem).row(at.batch, at.head, at.row) + column]),
                      .expected = reference.row(at.batch, at.head, at.index)[column],
                      .bound = reference.bound[at.batch * problem.heads + at.head],
                      .holder = fragment_element(tiling, at.row, column % held_columns)};
}

// The largest |got - expected| / bound over the compared rows; a NaN counts as the largest.
double largest_error(const Reference& reference, const HostBuffer& output) {
  const AttentionProblem& problem = reference.problem;
  double largest = 0;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t head = 0; head < problem.heads; ++head)
      for (std::int64_t index = 0; index < reference.rows.count(); ++index) {
        const double* expected = reference.row(batch, head, index);
        const std::uint16_t* got =
            output.data() + output_layout(problem).row(batch, head, reference.rows.row(batch, head, index));
        for (std::int64_t d = 0; d < value_head_dim(problem); ++d) {
          const double error = std::abs(element_to_float(problem.dtype, got[d]) - expected[d]);
          if (std::isnan(error)) return error;
          largest = std::max(largest, error / reference.bound[batch * problem.heads + head]);
        }
      }
  return largest;
}

std::string hexadecimal(const std::uint16_t* elements, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += fmt::format("{:04x}", elements[i]);
  return text;
}

// A row of the output.
std::vector<double> row_of(const AttentionProblem& problem, const HostBuffer& output, std::int64_t batch,
                           std::int64_t head, std::int64_t row, std::int64_t columns) {
  const std::uint16_t* elements = output.data() + output_layout(problem).row(batch, head, row);
  std::vector<double> values(columns);
  for (std::int64_t d = 0; d < columns; ++d) values[d] = element_to_float(problem.dtype, elements[d]);
  return values;
}

// The register that holds an element of K or V as part of a fragment B of mma.m16n8k16: PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type". `n` and `k` count along B's columns and rows: key and column of head_dim for
// S = Q Kᵀ, the other way round for P V.
SeenLayout::Operand operand_of(std::int64_t n, std::int64_t k) {
  SeenLayout::Operand operand{};
  operand.mma_n = static_cast<int>(n / 8);
  operand.mma_k = static_cast<int>(k / 16);
  operand.lane = static_cast<int>(n % 8 * 4 + k % 8 / 2);
  operand.reg = static_cast<int>(k % 16 / 8);
  operand.half = static_cast<int>(k % 2);
  return operand;
}

class TileByTile {
 public:
  TileByTile(const AttentionProblem& problem, std::uint64_t seed, const Tiling& tiling, const Examine& examine,
             const Progress& progress)
      : problem_(problem),
        seed_(seed),
        tiling_(tiling),
        row_tile_(row_tile(problem, tiling.block_q)),
        launch_([this, &examine](const Inputs& inputs) { return note(examine(inputs)); }),
        progress_(progress),
        laboratory_(tiling_, launch_, progress_) {}
  TileByTile(const TileByTile&) = delete;
  TileByTile& operator=(const TileByTile&) = delete;

  DebugReport look(Distribution data, const ShownRow& shown) {
    seen_.problem = problem_;
    seen_.seed = seed_;
    seen_.block_q = tiling_.block_q;
    seen_.block_kv = tiling_.block_kv;
    seen_.step_kv = tiling_.step_kv;

    use(data);
    cut_keys();
    for (const Distribution other : {Distribution::ramp, Distribution::large_logit, Distribution::offset_mean}) {
      if (data != Distribution::normal || seen_.first_wrong() != nullptr) break;
      use_if_wrong(other);
    }
    seen_.inputs = to_string(distribution_);
    choose_row(shown);
    show_row();
    const bool faulted = std::ranges::any_of(seen_.cuts, &Cut::faulted);
    if (!faulted) {
      show_P();
      show_layouts();
      diagnose_last();
    }
    return std::move(seen_);
  }

 private:
  // A launch whose output is compared.
  struct Taken {
    Cut cut;
    std::optional<HostBuffer> output;
  };

  std::optional<HostBuffer> note(Examined examined) {
    findings_of_launch_ = std::ssize(examined.findings);
    for (Finding& finding : examined.findings) {
      const auto same = std::ranges::find_if(seen_.findings, [&](const Finding& known) {
        return known.kind == finding.kind && known.position == finding.position &&
               known.other_position == finding.other_position;
      });
      if (same != seen_.findings.end())
        same->count += finding.count;
      else if (seen_.findings.size() < kMaxFindings)
        seen_.findings.push_back(std::move(finding));
    }
    return std::move(examined.output);
  }

  void use(Distribution distribution) {
    distribution_ = distribution;
    inputs_ = make_inputs(problem_, distribution, Packing::separate, seed_, progress_);
  }

  Taken take(std::int64_t tiles) {
    Taken taken;
    taken.cut.tiles = tiles;
    taken.cut.keys = std::min(tiles * tiling_.block_kv, problem_.seq_len_kv);
    auto outcome = laboratory_.launch(with_first_keys(inputs_, taken.cut.keys), row_tile_);
    taken.cut.findings = findings_of_launch_;
    taken.cut.faulted = !outcome.output;
    if (taken.cut.faulted) return taken;
    taken.cut.wrong = outcome.wrong.wrong;
    taken.cut.compared = outcome.wrong.compared;
    taken.cut.of_bound = largest_error(outcome.reference, *outcome.output);
    taken.cut.first = first_of(outcome.wrong, outcome.reference, *outcome.output, tiling_, value_head_dim(problem_));
    taken.output = std::move(outcome.output);
    return taken;
  }

  std::int64_t tiles() const { return (problem_.seq_len_kv + tiling_.block_kv - 1) / tiling_.block_kv; }

  // Cuts after each tile; if there are many, bisects between the last right cut and the first wrong one.
  void cut_keys() {
    std::vector<Taken> taken;
    for (const std::int64_t count : cuts_of(tiles())) {
      taken.push_back(take(count));
      if (taken.back().cut.faulted) break;  // the fault destroys the GPU's context
    }
    const auto wrong = std::ranges::find_if(taken, [](const Taken& t) { return !t.cut.right(); });
    if (wrong != taken.end() && wrong != taken.begin() && !wrong->cut.faulted) {
      std::int64_t right = std::prev(wrong)->cut.tiles, first_wrong = wrong->cut.tiles;
      while (first_wrong - right > 1) {
        const std::int64_t middle = (right + first_wrong) / 2;
        taken.push_back(take(middle));
        (taken.back().cut.right() ? right : first_wrong) = middle;
      }
    }
    std::ranges::sort(taken, {}, [](const Taken& t) { return t.cut.tiles; });
    seen_.cuts.clear();
    outputs_.clear();
    for (Taken& t : taken) {
      seen_.cuts.push_back(std::move(t.cut));
      outputs_.push_back(std::move(t.output));
    }
  }

  // Tries all keys with other inputs; if the output is wrong, those inputs are shown.
  void use_if_wrong(Distribution other) {
    const Distribution before = distribution_;
    use(other);
    const bool right = take(tiles()).cut.right();
    if (right) {
      seen_.also_right.push_back(to_string(other));
      use(before);
      return;
    }
    seen_.also_right.insert(seen_.also_right.begin(), to_string(before));
    cut_keys();
  }

  void choose_row(const ShownRow& shown) {
    const Cut* wrong = seen_.first_wrong();
    if (wrong != nullptr && wrong->first) {
      seen_.batch = wrong->first->batch;
      seen_.head = wrong->first->head;
      seen_.row = wrong->first->row;
    }
    if (shown.head) seen_.head = *shown.head;
    if (shown.row) seen_.row = *shown.row;
  }

  void show_row() {
    const std::int64_t batch = seen_.batch, head = seen_.head, row = seen_.row, head_dim = problem_.head_dim,
                       head_dim_v = value_head_dim(problem_);
    seen_.holder = fragment_element(tiling_, row, 0);
    seen_.scale = softmax_scale(head_dim);
    seen_.Q = hexadecimal(inputs_.Q_row(batch, head, row), head_dim);
    for (std::int64_t key = 0; key < problem_.seq_len_kv; ++key) {
      seen_.K.push_back(hexadecimal(inputs_.K_row(batch, head, key), head_dim));
      seen_.V.push_back(hexadecimal(inputs_.V_row(batch, head, key), head_dim_v));
    }
    for (std::size_t i = 0; i < seen_.cuts.size(); ++i) {
      Cut& cut = seen_.cuts[i];
      const auto last = attend_blockwise(with_first_keys(inputs_, cut.keys), batch, head, row, tiling_.block_kv).back();
      cut.m = last.m;
      cut.r = last.r;
      cut.l = last.l;
      cut.O_expected = last.output();
      if (outputs_[i]) cut.O = row_of(problem_, *outputs_[i], batch, head, row, head_dim_v);
    }
  }

  const Cut& cut_to_show() const {
    const Cut* wrong = seen_.first_wrong();
    return wrong != nullptr ? *wrong : seen_.cuts.back();
  }

  // V is one-hot in the cut's last tile, so column c of O is P of the tile's key c, divided by l.
  void show_P() {
    if (tiling_.block_kv > value_head_dim(problem_)) return;  // O has fewer columns than the tile has keys
    const Cut& cut = cut_to_show();
    SeenP seen;
    seen.tile = cut.tiles - 1;
    seen.first_key = seen.tile * tiling_.block_kv;
    Inputs inputs = with_first_keys(inputs_, cut.keys);
    const BlockwiseStep step = attend_blockwise(inputs, seen_.batch, seen_.head, seen_.row, tiling_.block_kv).back();
    seen.S_expected = step.S;
    for (const double p : step.P) seen.P_expected.push_back(step.l > 0 ? p / step.l : 0);
    const std::uint16_t one = element_from_float(problem_.dtype, 1);
    for (std::int64_t batch = 0; batch < problem_.batch; ++batch)
      for (std::int64_t head = 0; head < num_kv_heads(problem_); ++head)
        for (std::int64_t key = 0; key < cut.keys; ++key) {
          const auto v = std::span(inputs.buffers[inputs.V_buffer].data() + inputs.V.row(batch, head, key),
                                   static_cast<std::size_t>(value_head_dim(problem_)));
          std::ranges::fill(v, 0);
          if (key >= seen.first_key) v[key - seen.first_key] = one;
        }
    const auto outcome = laboratory_.launch(std::move(inputs), row_tile_);
    if (outcome.output) {
      seen.P = row_of(problem_, *outcome.output, seen_.batch, seen_.head, seen_.row, std::ssize(step.P));
      seen.wrong = outcome.wrong.wrong;
      seen.compared = outcome.wrong.compared;
      seen.first = first_of(outcome.wrong, outcome.reference, *outcome.output, tiling_, tiling_.step_kv);
      if (seen.wrong > 0) seen.places = describe_places(outcome.wrong, problem_, tiling_);
    }
    seen_.P = std::move(seen);
  }

  void show_layouts() {
    const std::int64_t tiles = std::min(cut_to_show().tiles, kMaxProbedTiles);
    const auto probes = probe(problem_, Distribution::normal, tiling_, tiles, laboratory_);
    if (!probes) return;
    // Each is seen through the other, so at most one of them can be called wrong.
    const auto shows_wrong = [](const std::optional<Layout>& layout) {
      return layout && layout->wrong > 0 && layout->first->key_read >= 0;
    };
    // A wrong row sum changes the numbers that V shows.
    const bool V_shows = probes->ones || probes->ones_differ_in_a_row;
    const bool K_is_wrong = probes->uniform && shows_wrong(probes->S),
               V_is_wrong = !K_is_wrong && V_shows && shows_wrong(probes->PV);
    const auto add = [&](const std::optional<Layout>& layout, const char* tensor, bool is_wrong) {
      if (!layout || (layout->wrong > 0 && !is_wrong)) return;
      SeenLayout seen{.tensor = tensor, .elements = layout->elements, .wrong = layout->wrong, .text = {}, .first = {}};
      if (is_wrong) {
        seen.text = describe_layout(*layout, tensor);
        const auto [key, column, key_read, column_read] = *layout->first;
        const std::int64_t in_step = key % tiling_.step_kv;
        if (tiling_.has_fragments() && !layout->whole_rows) {
          seen.first = tensor[0] == 'K' ? operand_of(in_step, column) : operand_of(column, in_step);
          seen.first->key = layout->first_key + key;
          seen.first->column = column;
        }
      }
      seen_.layouts.push_back(std::move(seen));
    };
    add(probes->S, "K", K_is_wrong);
    add(probes->PV, "V", V_is_wrong);
  }

  // For the cut with all keys, or the first wrong one if that one is right.
  void diagnose_last() {
    const Cut* wrong = seen_.cuts.back().wrong > 0 ? &seen_.cuts.back() : seen_.first_wrong();
    if (wrong == nullptr || wrong->wrong == 0) return;
    const Inputs inputs = with_first_keys(inputs_, wrong->keys);
    const RowSelection rows{.seq_len = problem_.seq_len, .tile = row_tile_, .seed = 0};
    const Reference reference = make_reference(inputs, rows, progress_);
    const HostBuffer& output = *outputs_[wrong - seen_.cuts.data()];
    seen_.diagnosis = diagnose({inputs, distribution_, reference, output}, {}, tiling_, launch_, progress_);
  }

  const AttentionProblem& problem_;
  const std::uint64_t seed_;
  const Tiling& tiling_;
  const std::int64_t row_tile_;
  const Relaunch launch_;
  const Progress& progress_;
  const Laboratory laboratory_;
  Distribution distribution_ = Distribution::normal;
  Inputs inputs_;
  std::vector<std::optional<HostBuffer>> outputs_;  // outputs of the cuts
  std::int64_t findings_of_launch_ = 0;
  DebugReport seen_;
};

}  // namespace

std::vector<std::int64_t> cuts_of(std::int64_t tiles) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t count = 1; count < tiles; count += count < kEachTile ? 1 : count) cuts.push_back(count);
  cuts.push_back(tiles);
  return cuts;
}

DebugReport debug_tile_by_tile(const AttentionProblem& problem, Distribution data, std::uint64_t seed,
                               const Tiling& tiling, const ShownRow& shown, const Examine& examine,
                               const Progress& progress) {
  return TileByTile(problem, seed, tiling, examine, progress).look(data, shown);
}

}  // namespace flash_ladder
