#include "worker/diagnosis/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "problem/problem.h"
#include "worker/diagnosis/mistakes.h"
#include "worker/diagnosis/pattern.h"
#include "worker/parallel.h"

namespace flash_ladder {
namespace {

constexpr std::int64_t kMaxSampledRows = 16;
constexpr double kFarOff = 16;               // tolerances of one row: a guess, seldom reached by more rows
constexpr std::int64_t kScoreFactors = 100;  // the approximate number to try
constexpr std::size_t kMaxNamed = 3;         // suggestions in the sentence; the JSON lists all

std::string sentence_of(const std::vector<std::string>& names, const char* between) {
  return fmt::format("{}", fmt::join(names, between));
}

// ---- Which known mistake produces this output ----

// Some wrong rows of one head.
struct Sample {
  std::int64_t batch, head;
  std::vector<std::int64_t> rows, indices;  // indices: as Reference::row() expects them
};

// Rows spread over the first wrong head, and rows of the last one.
std::vector<Sample> sample_rows(const WrongElements& wrong) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<WrongRow>> by_head;
  for (const WrongRow& row : wrong.rows) by_head[{row.batch, row.head}].push_back(row);
  std::vector<Sample> samples;
  const auto add = [&](const std::vector<WrongRow>& rows, std::int64_t most) {
    Sample sample{.batch = rows.front().batch, .head = rows.front().head, .rows = {}, .indices = {}};
    const std::int64_t count = std::min<std::int64_t>(std::ssize(rows), most);
    for (std::int64_t i = 0; i < count; ++i) {
      const WrongRow& row = rows[count == 1 ? 0 : i * (std::ssize(rows) - 1) / (count - 1)];
      sample.rows.push_back(row.row);
      sample.indices.push_back(row.index);
    }
    samples.push_back(std::move(sample));
  };
  add(by_head.begin()->second, kMaxSampledRows);
  if (by_head.size() > 1) add(by_head.rbegin()->second, kMaxSampledRows / 4);
  return samples;
}

// How far the output is from what the mistake would produce in the first rows of a sample; nullopt if that is not finite.
struct Fit {
  double tolerance, farthest;
  bool is_clear;  // the mistake makes a row clearly wrong
};

std::optional<Fit> fit(const Mistake& mistake, const WrongOutput& wrong, const Sample& sample, std::size_t rows,
                       const Tiling& tiling) {
  const AttentionProblem& problem = wrong.inputs.problem;
  const std::int64_t head_dim_v = value_head_dim(problem);
  const TensorLayout layout = output_layout(problem);
  const AttendedRows attended =
      attend_with(mistake, tiling, wrong.inputs, sample.batch, sample.head, std::span(sample.rows).first(rows));
  double error = 0, largest = 0;  // computed as for the bound of the reference
  for (std::size_t i = 0; i < attended.exact.size(); ++i) {
    error = std::max(error, std::abs(attended.base[i] - attended.exact[i]));
    largest = std::max(largest, std::abs(attended.exact[i]));
  }
  if (!std::isfinite(error) || !std::isfinite(largest)) return std::nullopt;
  // Twice the bound for a right kernel, because only some rows are examined, and their errors may be small by chance.
  const double bound = wrong.reference.bound[sample.batch * problem.heads + sample.head];
  Fit fit{.tolerance = 2 * std::max(bound, 2 * error + ulp(problem.dtype, largest)), .farthest = 0, .is_clear = false};
  for (std::size_t r = 0; r < rows; ++r) {
    const std::uint16_t* got = wrong.output.data() + layout.row(sample.batch, sample.head, sample.rows[r]);
    const double* right = wrong.reference.row(sample.batch, sample.head, sample.indices[r]);
    for (std::int64_t d = 0; d < head_dim_v; ++d) {
      const double value = element_to_float(problem.dtype, got[d]);
      const double off = std::abs(value - attended.exact[r * head_dim_v + d]);
      if (!std::isfinite(off)) return std::nullopt;
      fit.farthest = std::max(fit.farthest, off);
      fit.is_clear = fit.is_clear || std::abs(value - right[d]) > 4 * fit.tolerance;
    }
  }
  return fit;
}

// Whether the mistake produces the output in every element of the sampled rows, and would make it clearly wrong.
bool explains(const Mistake& mistake, const WrongOutput& wrong, const std::vector<Sample>& samples,
              const Tiling& tiling) {
  bool is_clear = false;
  for (const Sample& sample : samples) {
    if (mistake.of_one_head && &sample != &samples.front()) continue;
    // Nearly all candidates are wrong guesses, and are far off in any row.
    const auto first = fit(mistake, wrong, sample, 1, tiling);
    if (!first || first->farthest > kFarOff * first->tolerance) return false;
    const auto all = fit(mistake, wrong, sample, sample.rows.size(), tiling);
    if (!all || all->farthest > all->tolerance) return false;
    is_clear = is_clear || all->is_clear;
  }
  return is_clear;
}

// The best-fitting factor of the scores, from 1/64 to 64, to three digits; nullopt if none is close.
std::optional<Mistake> wrong_score_factor(const WrongOutput& wrong, const std::vector<Sample>& samples,
                                          const Tiling& tiling, const Progress& progress) {
  const Sample& sample = samples.front();
  const std::span rows = std::span(sample.rows).first(std::min<std::size_t>(sample.rows.size(), 2));
  const AttentionProblem& problem = wrong.inputs.problem;
  const std::int64_t head_dim_v = value_head_dim(problem);
  const TensorLayout layout = output_layout(problem);
  std::int64_t tried = 0;
  const auto distance = [&](double log_factor) {
    if (progress) progress(tried++, kScoreFactors);
    const Mistake mistake{.name = "", .text = "", .score_factor = std::exp2(log_factor)};
    const AttendedRows attended = attend_with(mistake, tiling, wrong.inputs, sample.batch, sample.head, rows);
    double sum = 0;
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::int64_t d = 0; d < head_dim_v; ++d) {
        const double got =
            element_to_float(problem.dtype, wrong.output.data()[layout.row(sample.batch, sample.head, rows[r]) + d]);
        sum += std::pow(got - attended.exact[r * head_dim_v + d], 2);
      }
    return sum;
  };
  double best = 0, least = distance(0);
  for (double step = 0.25, from = -6, to = 6; step > 1e-4; from = best - step, to = best + step, step /= 4)
    for (double x = from; x <= to; x += step)
      if (const double d = distance(x); d < least) best = x, least = d;
  const double factor = std::exp2(best);
  Mistake mistake{.name = "wrong_score_factor",
                  .text = fmt::format("every score is {:.3g} times what it should be", factor),
                  .score_factor = factor};
  if (std::abs(best) < 1e-3 || !explains(mistake, wrong, samples, tiling)) return std::nullopt;
  return mistake;
}

std::vector<Mistake> mistakes_that_explain(const WrongOutput& wrong, const std::vector<Sample>& samples,
                                           const Tiling& tiling, const Progress& progress) {
  std::vector<Mistake> known =
      known_mistakes(wrong.inputs.problem, tiling, samples.front().batch, samples.front().head);
  std::vector<char> fits(known.size());
  parallel_for(
      std::ssize(known), [&](std::int64_t i) { fits[i] = explains(known[i], wrong, samples, tiling); }, progress);
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < known.size(); ++i)
    if (fits[i]) mistakes.push_back(std::move(known[i]));
  if (!mistakes.empty()) return mistakes;
  if (auto mistake = wrong_score_factor(wrong, samples, tiling, progress)) mistakes.push_back(std::move(*mistake));
  return mistakes;
}

// ---- Parts of O ----

// The x that minimises |A x - b|, for few columns of many rows: uses the normal equations, without pivoting, because
// their matrix is positive definite. nullopt if the columns are linearly dependent.
std::optional<std::vector<double>> least_squares(const std::vector<std::vector<double>>& columns,
                                                 std::span<const double> b) {
  const std::size_t n = columns.size();
  std::vector<std::vector<double>> M(n, std::vector<double>(n + 1));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      M[i][j] = std::inner_product(columns[i].begin(), columns[i].end(), columns[j].begin(), 0.0);
    M[i][n] = std::inner_product(columns[i].begin(), columns[i].end(), b.begin(), 0.0);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (!(M[i][i] > 1e-9)) return std::nullopt;
    for (std::size_t row = 0; row < n; ++row) {
      if (row == i) continue;
      const double factor = M[row][i] / M[i][i];
      for (std::size_t j = i; j <= n; ++j) M[row][j] -= factor * M[i][j];
    }
  }
  std::vector<double> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = M[i][n] / M[i][i];
  return x;
}

// O is a sum of one part for each K/V tile. Returns a sentence if, in every sampled row, each part is the right one
// times a factor.
std::optional<std::string> describe_tile_factors(const WrongOutput& wrong, const std::vector<Sample>& samples,
                                                 const Tiling& tiling) {
  constexpr std::int64_t kMaxTiles = 8;
  const AttentionProblem& problem = wrong.inputs.problem;
  const std::int64_t tiles = (problem.seq_len_kv + tiling.block_kv - 1) / tiling.block_kv,
                     head_dim = value_head_dim(problem);
  if (tiles < 2 || tiles > kMaxTiles) return std::nullopt;
  struct Range {
    double least = INFINITY, most = -INFINITY;
  };
  std::vector<Range> ranges(tiles);
  for (const Sample& sample : samples) {
    const double bound = wrong.reference.bound[sample.batch * problem.heads + sample.head];
    // The output with a single tile: the tile's part of O is this output times the tile's share of the row sum.
    std::vector<AttendedRows> alone;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const auto counts = [=, block = tiling.block_kv](std::int64_t key) { return key / block == tile; };
      alone.push_back(attend_with({.counts = counts}, tiling, wrong.inputs, sample.batch, sample.head, sample.rows));
    }
    for (std::size_t r = 0; r < sample.rows.size(); ++r) {
      std::vector<std::vector<double>> columns;
      for (const AttendedRows& rows : alone)
        columns.emplace_back(rows.exact.begin() + r * head_dim, rows.exact.begin() + (r + 1) * head_dim);
      std::vector<double> got(head_dim);
      const std::uint16_t* output =
          wrong.output.data() + output_layout(problem).row(sample.batch, sample.head, sample.rows[r]);
      for (std::int64_t d = 0; d < head_dim; ++d) got[d] = element_to_float(problem.dtype, output[d]);
      const auto parts = least_squares(columns, got);
      const auto right =
          least_squares(columns, {wrong.reference.row(sample.batch, sample.head, sample.indices[r]), got.size()});
      if (!parts || !right) return std::nullopt;
      double largest = 1;
      for (const double part : *parts) largest = std::max(largest, std::abs(part));
      for (std::int64_t d = 0; d < head_dim; ++d) {
        double sum = 0;
        for (std::int64_t tile = 0; tile < tiles; ++tile) sum += (*parts)[tile] * columns[tile][d];
        if (!(std::abs(sum - got[d]) <= 2 * bound * largest)) return std::nullopt;
      }
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        if (!((*right)[tile] > 16 * bound)) continue;  // the part is too small to determine its factor
        const double factor = (*parts)[tile] / (*right)[tile];
        ranges[tile].least = std::min(ranges[tile].least, factor);
        ranges[tile].most = std::max(ranges[tile].most, factor);
      }
    }
  }
  std::vector<std::string> texts;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    if (ranges[tile].least > ranges[tile].most) continue;
    const std::string from = fmt::format("{:.2g}", ranges[tile].least), to = fmt::format("{:.2g}", ranges[tile].most);
    texts.push_back(fmt::format("tile {} times {}", tile, from == to ? from : from + " to " + to));
  }
  if (texts.empty()) return std::nullopt;
  return fmt::format("O is a sum of one part for each K/V tile, and each part is the right one times a factor: {}.",
                     sentence_of(texts, ", "));
}

// ---- Launches ----

// The number of K/V tiles from which the output is wrong.
struct Start {
  std::int64_t tiles;  // the smallest number that gave a wrong output
  std::string sentence;
};

Start find_start(const WrongOutput& wrong, const Tiling& tiling, Laboratory& laboratory, Diagnosis& diagnosis) {
  constexpr int kMaxBisections = 4;
  const std::int64_t tiles = (wrong.inputs.problem.seq_len_kv + tiling.block_kv - 1) / tiling.block_kv;
  if (tiles == 1)
    return {1,
            "There is only one K/V tile, so state carried from one tile to the next cannot be the "
            "cause."};
  std::vector<std::int64_t> right;
  std::int64_t faults = 0;  // faults with this many tiles; 0: does not fault
  const auto is_right = [&](std::int64_t count) {
    // Every row if that is little work; if the problem is large, only the rows that were compared.
    const auto outcome =
        laboratory.launch(with_first_keys(wrong.inputs, count * tiling.block_kv), wrong.reference.rows.tile);
    diagnosis.experiments.push_back({fmt::format("{} K/V tile{}", count, count == 1 ? "" : "s"), outcome.right()});
    if (outcome.right()) right.push_back(count);
    if (!outcome.output) faults = count;
    return outcome.right();
  };
  const bool first_is_right = is_right(1);
  if (faults) return {1, "Keys truncated: with the first K/V tile alone the kernel faults."};
  if (!first_is_right) return {1, "Keys truncated: the first K/V tile alone is wrong already."};
  std::int64_t first_wrong = tiles;
  for (int i = 0; i < kMaxBisections && first_wrong - right.back() > 1; ++i) {
    const std::int64_t middle = i == 0 ? 2 : (right.back() + first_wrong) / 2;
    if (!is_right(middle)) first_wrong = middle;
  }
  std::string list = std::to_string(right.front());
  for (std::size_t i = 1; i < right.size(); ++i)
    list += fmt::format("{}{}", i + 1 == right.size() ? " and " : ", ", right[i]);
  std::string sentence = fmt::format("Keys truncated: right with {} K/V tile{}, {} with {}", list,
                                     right.back() == 1 ? "" : "s", faults ? "a fault" : "wrong", first_wrong);
  if (first_wrong == 2)
    sentence += ". Suggests the state carried from one tile to the next: rescaling, a buffer, a prefetch";
  else if (first_wrong == 3)
    sentence += ". Suggests something that counts tiles: a buffer, a parity, the last of an odd number of tiles";
  return {first_wrong, sentence + "."};
}

// `rescales`: a rescaling happens before the output is wrong.
std::vector<std::string> describe_probes(const Probes& probes, bool rescales, Diagnosis& diagnosis) {
  diagnosis.experiments.push_back({"V = 1", probes.ones});
  diagnosis.experiments.push_back({"Q = 0", probes.uniform});
  diagnosis.experiments.push_back({"scores that depend only on the key", probes.scores_by_key});
  if (probes.S) diagnosis.experiments.push_back({"one-hot Q and V reveal S", probes.S->wrong == 0});
  if (probes.PV) diagnosis.experiments.push_back({"one-hot P reveals V", probes.PV->wrong == 0});
  std::vector<std::string> sentences;
  const bool mixes_rows = probes.uniform && !rescales;  // if all P are equal, it does not matter whose they are
  const std::string ones = probes.least_of_ones <= probes.most_of_ones
                               ? fmt::format("{:.3g} to {:.3g}", probes.least_of_ones, probes.most_of_ones)
                               : "NaN or infinite";
  if (!probes.ones)
    sentences.push_back(
        fmt::format("With V = 1 every O must be 1, but is {}. {}", ones,
                    mixes_rows ? "Suggests that rows are mixed up: fragments of P hold elements of other rows, or O is "
                                 "multiplied by the factor of another row."
                               : "Suggests row_sum, row_max or their rescaling: a row is not divided by the sum of the "
                                 "P that O adds up."));
  else if (!probes.uniform)
    sentences.push_back(
        "With Q = 0 all P are equal and O is the mean of V, but it is wrong. Suggests V (its copy, its "
        "fragments) or the store of O.");
  else if (!probes.scores_by_key)
    sentences.push_back(
        "O is right with Q = 0, when it is the mean of V, but wrong with scores that depend only on the key. "
        "Suggests that the P of one key is multiplied by the V of another, or that keys are mixed up in S.");
  else if (probes.S && probes.S->wrong > 0)
    sentences.push_back(
        "O is right with Q = 0, when it is the mean of V, and also with scores that depend only on the key. Suggests "
        "the fragments of Q or K: the order of head_dim, or of Q's rows, in S = Q Kᵀ.");
  // The probe that shows S uses V and the store of O, and the probe that shows V uses S, so only one of them can be
  // called wrong.
  const auto shows = [](const std::optional<Layout>& layout) {
    return layout && layout->wrong > 0 && layout->first->key_read >= 0;
  };
  if (probes.uniform && shows(probes.S))
    sentences.push_back("One-hot Q and V reveal S: " + describe_layout(*probes.S, "K") + ".");
  else if (shows(probes.PV))
    sentences.push_back("One-hot P reveals V: " + describe_layout(*probes.PV, "V") + ".");
  return sentences;
}

// ---- Input sets ----

std::optional<std::string> describe_sets(const std::vector<CheckedSet>& sets) {
  std::vector<std::string> right, wrong;
  for (const CheckedSet& set : sets) (set.right ? right : wrong).push_back(set.name);
  if (sets.size() < 2 || wrong.empty()) return std::nullopt;
  if (right.empty()) return "All input sets are wrong.";
  const auto is_right = [&](const char* name) { return std::find(right.begin(), right.end(), name) != right.end(); };
  const auto is_wrong = [&](const char* name) { return std::find(wrong.begin(), wrong.end(), name) != wrong.end(); };
  std::string text = fmt::format("Right: {}. Wrong: {}.", sentence_of(right, ", "), sentence_of(wrong, ", "));
  if (wrong.size() == 1 && is_wrong("the requested problem"))
    text += " Suggests something that depends on the sizes of the problem.";
  else if (wrong.size() == 1 && is_wrong("packed Q, K, V"))
    text += " Suggests the row strides: there, the rows of a tensor do not follow one another.";
  else if (is_right("normal inputs") && (is_wrong("ramp inputs") || is_wrong("large-logit inputs")))
    text += " Suggests row_max: it changes little with normal inputs, but much with those that are wrong.";
  else if (right.size() == 1 && is_right("ramp inputs"))
    text += " With ramp inputs only the last keys count.";
  return text;
}

}  // namespace

Diagnosis diagnose(const WrongOutput& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                   const Relaunch& launch, const Progress& progress) {
  Diagnosis diagnosis;
  const AttentionProblem& problem = wrong.inputs.problem;
  const WrongElements elements = find_wrong(wrong.reference, wrong.output, tiling);
  if (elements.wrong == 0) {
    if (elements.all_rows_compared)
      diagnosis.sentences.push_back(
          "Launched once more with the same inputs, it was right: the output changes from launch to launch, as with a race.");
    return diagnosis;
  }
  const WrongRow& first = elements.rows.front();
  diagnosis.first = fragment_element(tiling, first.row, elements.first_column);

  Laboratory laboratory(tiling, launch, progress);
  const Start start = find_start(wrong, tiling, laboratory, diagnosis);

  const auto samples = sample_rows(elements);
  std::vector<Mistake> mistakes = mistakes_that_explain(wrong, samples, tiling, progress);
  if (mistakes.size() > 1) {
    // A different shape may distinguish them: a single query tile, four K/V tiles.
    AttentionProblem other = problem;
    other.batch = std::min<std::int64_t>(problem.batch, 2);
    const std::int64_t group = problem.heads / num_kv_heads(problem);
    other.heads = group * std::min<std::int64_t>(num_kv_heads(problem), 3);
    if (problem.kv_heads != 0) other.kv_heads = other.heads / group;
    other.lengths.clear();
    other.lengths_kv.clear();
    other.seq_len = tiling.block_q;
    other.seq_len_kv = 4 * tiling.block_kv;
    const auto outcome = laboratory.launch(make_inputs(other, wrong.distribution, Packing::separate, 1));
    if (outcome.output && outcome.wrong.wrong > 0) {
      const WrongOutput again{outcome.inputs, wrong.distribution, outcome.reference, *outcome.output};
      const auto also = mistakes_that_explain(again, sample_rows(outcome.wrong), tiling, progress);
      const auto fits = [&](const Mistake& mistake) {
        return std::ranges::any_of(also, [&](const Mistake& m) { return m.name == mistake.name; });
      };
      if (std::ranges::any_of(mistakes, fits)) std::erase_if(mistakes, [&](const Mistake& m) { return !fits(m); });
    }
  }

  auto& sentences = diagnosis.sentences;
  if (!mistakes.empty()) {
    std::vector<std::string> texts;
    for (const Mistake& mistake : mistakes) {
      diagnosis.suggests.push_back(mistake.name);
      if (texts.size() < kMaxNamed) texts.push_back(mistake.text);
    }
    const bool one_head = std::ranges::any_of(mistakes, &Mistake::of_one_head);
    std::size_t rows = samples.front().rows.size();
    if (!one_head && samples.size() > 1) rows += samples.back().rows.size();
    sentences.push_back(
        fmt::format("Suggests: {}{}. Computed with that mistake, {} come out as here.", sentence_of(texts, "; or "),
                    mistakes.size() > kMaxNamed ? fmt::format("; or {} more", mistakes.size() - kMaxNamed) : "",
                    rows == 1 ? "the one wrong row does" : fmt::format("all {} wrong rows that were tried", rows)));
  } else {
    if (const auto factor = describe_factor(wrong.reference, wrong.output, elements))
      sentences.push_back(*factor);
    else if (const auto factors = describe_tile_factors(wrong, samples, tiling))
      sentences.push_back(*factors);
    constexpr std::int64_t kMaxProbedTiles = 3;
    const bool rescales = start.tiles > 1 || tiling.step_kv < tiling.block_kv;
    if (start.tiles <= kMaxProbedTiles)
      if (const auto probes = probe(problem, wrong.distribution, tiling, start.tiles, laboratory);
          probes && !probes->all_right())
        for (std::string& sentence : describe_probes(*probes, rescales, diagnosis))
          sentences.push_back(std::move(sentence));
  }
  sentences.push_back(describe_places(elements, problem, tiling));
  sentences.push_back(start.sentence);
  if (const auto text = describe_sets(sets)) sentences.push_back(*text);
  if (const auto& held = diagnosis.first)
    sentences.push_back(fmt::format(
        "The first wrong element, row {}, column {}, is O_rmem[{}][{}][{}] of lane {} of warp {}: mma_m, mma_n, D.",
        first.row, elements.first_column, held->mma_m, held->mma_n, held->reg, held->lane, held->warp));
  return diagnosis;
}

}  // namespace flash_ladder
