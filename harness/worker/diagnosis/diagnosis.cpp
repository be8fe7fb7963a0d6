#include "worker/diagnosis/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "worker/diagnosis/mistakes.h"
#include "worker/diagnosis/pattern.h"
#include "worker/parallel.h"

namespace flash_ladder {
namespace {

constexpr std::int64_t kMaxSampledRows = 16;
constexpr std::size_t kMaxNamed = 3;  // suggestions in the sentence; the JSON has all

std::string sentence_of(const std::vector<std::string>& names, const char* between) {
  return fmt::format("{}", fmt::join(names, between));
}

// ---- Which known mistake gives this output ----

// Some wrong rows of one head.
struct Sample {
  std::int64_t batch, head;
  std::vector<std::int64_t> rows, indices;  // indices: as Reference::row() wants them
};

// Rows of the first wrong head, spread over it, and of the last one.
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

// Whether the mistake gives the output in every element of the sampled rows, and that is not as good as right.
bool explains(const Mistake& mistake, const WrongOutput& wrong, const std::vector<Sample>& samples,
              const Tiling& tiling) {
  const AttentionProblem& problem = wrong.inputs.problem;
  const TensorLayout layout = output_layout(problem);
  bool tells = false;
  for (const Sample& sample : samples) {
    if (mistake.of_one_head && &sample != &samples.front()) continue;
    const AttendedRows attended = attend_with(mistake, tiling, wrong.inputs, sample.batch, sample.head, sample.rows);
    double error = 0, largest = 0;  // as the bound of the reference is made of
    for (std::size_t i = 0; i < attended.exact.size(); ++i) {
      error = std::max(error, std::abs(attended.base[i] - attended.exact[i]));
      largest = std::max(largest, std::abs(attended.exact[i]));
    }
    if (!std::isfinite(error) || !std::isfinite(largest)) return false;
    // Twice what a right kernel may be off: only some rows are looked at, and their errors may be small by chance.
    const double bound = wrong.reference.bound[sample.batch * problem.heads + sample.head];
    const double tolerance = 2 * std::max(bound, 2 * error + ulp(problem.dtype, largest));
    for (std::size_t r = 0; r < sample.rows.size(); ++r) {
      const std::uint16_t* got = wrong.output.data() + layout.row(sample.batch, sample.head, sample.rows[r]);
      const double* right = wrong.reference.row(sample.batch, sample.head, sample.indices[r]);
      for (std::int64_t d = 0; d < problem.head_dim; ++d) {
        const double value = element_to_float(problem.dtype, got[d]);
        if (!(std::abs(value - attended.exact[r * problem.head_dim + d]) <= tolerance)) return false;
        tells = tells || std::abs(value - right[d]) > 4 * tolerance;
      }
    }
  }
  return tells;
}

// The factor of the scores that fits best, from 1/64 to 64, to three digits; nullopt when none comes near.
std::optional<Mistake> wrong_score_factor(const WrongOutput& wrong, const std::vector<Sample>& samples,
                                          const Tiling& tiling) {
  const Sample& sample = samples.front();
  const std::span rows = std::span(sample.rows).first(std::min<std::size_t>(sample.rows.size(), 2));
  const AttentionProblem& problem = wrong.inputs.problem;
  const TensorLayout layout = output_layout(problem);
  const auto distance = [&](double log_factor) {
    const Mistake mistake{.name = "", .text = "", .score_factor = std::exp2(log_factor)};
    const AttendedRows attended = attend_with(mistake, tiling, wrong.inputs, sample.batch, sample.head, rows);
    double sum = 0;
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::int64_t d = 0; d < problem.head_dim; ++d) {
        const double got =
            element_to_float(problem.dtype, wrong.output.data()[layout.row(sample.batch, sample.head, rows[r]) + d]);
        sum += std::pow(got - attended.exact[r * problem.head_dim + d], 2);
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
                                           const Tiling& tiling) {
  std::vector<Mistake> known =
      known_mistakes(wrong.inputs.problem, tiling, samples.front().batch, samples.front().head);
  std::vector<char> fits(known.size());
  parallel_for(std::ssize(known), [&](std::int64_t i) { fits[i] = explains(known[i], wrong, samples, tiling); });
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < known.size(); ++i)
    if (fits[i]) mistakes.push_back(std::move(known[i]));
  if (!mistakes.empty()) return mistakes;
  if (auto mistake = wrong_score_factor(wrong, samples, tiling)) mistakes.push_back(std::move(*mistake));
  return mistakes;
}

// ---- Launches ----

// Launches and compares with the reference of all rows.
class Laboratory {
 public:
  Laboratory(const Tiling& tiling, const Launch& launch) : tiling_(tiling), launch_(launch) {}

  struct Outcome {
    Inputs inputs;
    Reference reference;
    std::optional<HostBuffer> output;  // nullopt: the launch faulted
    WrongElements wrong;
    bool right() const { return output && wrong.wrong == 0; }
  };
  Outcome launch(Inputs inputs, std::int64_t row_tile = 1) {
    const RowSelection rows{.seq_len = inputs.problem.seq_len, .tile = row_tile, .seed = 0};
    Reference reference = make_reference(inputs, rows);
    auto output = launch_(inputs);
    WrongElements wrong;
    if (output) wrong = find_wrong(reference, *output, tiling_);
    return {std::move(inputs), std::move(reference), std::move(output), std::move(wrong)};
  }

 private:
  const Tiling& tiling_;
  const Launch& launch_;
};

// The same queries with the first `num_keys` keys alone, each tensor in a buffer of its own.
Inputs with_first_keys(const Inputs& inputs, std::int64_t num_keys) {
  Inputs fewer;
  fewer.problem = inputs.problem;
  fewer.problem.seq_len_kv = num_keys;
  const auto [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = fewer.problem;
  fewer.Q = contiguous_layout(seq_len, heads, head_dim);
  fewer.K = fewer.V = contiguous_layout(num_keys, heads, head_dim);
  fewer.K_buffer = 1;
  fewer.V_buffer = 2;
  const struct {
    const std::uint16_t* (Inputs::*row)(std::int64_t, std::int64_t, std::int64_t) const;
    const TensorLayout& layout;
    std::int64_t rows;
  } tensors[] = {
      {&Inputs::Q_row, fewer.Q, seq_len}, {&Inputs::K_row, fewer.K, num_keys}, {&Inputs::V_row, fewer.V, num_keys}};
  for (const auto& tensor : tensors) {
    HostBuffer buffer(batch * tensor.layout.batch_stride);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t row = 0; row < tensor.rows; ++row)
        for (std::int64_t head = 0; head < heads; ++head)
          std::copy_n((inputs.*tensor.row)(b, head, row), head_dim, buffer.data() + tensor.layout.row(b, head, row));
    fewer.buffers.push_back(std::move(buffer));
  }
  return fewer;
}

// With how many K/V tiles it starts to be wrong.
struct Start {
  std::int64_t tiles;  // the fewest that were wrong
  std::string sentence;
};

Start find_start(const WrongOutput& wrong, const Tiling& tiling, Laboratory& laboratory, Diagnosis& diagnosis) {
  constexpr int kMaxBisections = 3;
  const std::int64_t tiles = (wrong.inputs.problem.seq_len_kv + tiling.block_kv - 1) / tiling.block_kv;
  if (tiles == 1) return {1, "There is only one K/V tile, so nothing that one tile leaves to the next is to blame."};
  std::vector<std::int64_t> right;
  const auto is_right = [&](std::int64_t count) {
    // Every row, where that is little work; the rows that were compared, where the problem is large.
    const auto outcome =
        laboratory.launch(with_first_keys(wrong.inputs, count * tiling.block_kv), wrong.reference.rows.tile);
    diagnosis.experiments.push_back({fmt::format("{} K/V tile{}", count, count == 1 ? "" : "s"), outcome.right()});
    if (outcome.right()) right.push_back(count);
    return outcome.right();
  };
  if (!is_right(1)) return {1, "Keys truncated: the first K/V tile alone is wrong already."};
  std::int64_t first_wrong = tiles;
  for (int i = 0; i < kMaxBisections && first_wrong - right.back() > 1; ++i) {
    const std::int64_t middle = i == 0 ? 2 : (right.back() + first_wrong) / 2;
    if (!is_right(middle)) first_wrong = middle;
  }
  std::string sentence = fmt::format("Keys truncated: right with {} K/V tile{}, wrong with {}",
                                     fmt::join(right, " and "), right.back() == 1 ? "" : "s", first_wrong);
  if (first_wrong == 2)
    sentence += ". Suggests what one tile leaves to the next: rescaling, a buffer, a copy ahead";
  else if (first_wrong == 3)
    sentence += ". Suggests something that counts tiles: a buffer, a parity, the last tile of an odd number";
  return {first_wrong, sentence + "."};
}

// One launch of many small experiments, each a head of its own, of one query tile.
struct Probes {
  static constexpr int kClasses = 16;
  bool normal = true;   // as the checks
  bool ones = true;     // V = 1: every O is 1, whatever Q and K are
  bool uniform = true;  // Q = 0: O is the mean of V, whatever K is
  bool scores_by_key =
      true;  // Q = 1, and K the same in all columns: scores do not depend on the order of head_dim, nor on rows of Q
  std::vector<bool> V_keys, K_keys;  // [kClasses]: wrong when only keys ≡ i modulo 16 are not 0
  std::vector<bool> columns;         // [kClasses]: wrong when Q is 0 but for the i-th sixteenth of head_dim
  double least_of_ones = 0, most_of_ones = 0;
  std::string columns_of_uniform;  // which columns of O are wrong with Q = 0
};

std::optional<Probes> probe(const AttentionProblem& problem, const Tiling& tiling, std::int64_t tiles,
                            Laboratory& laboratory) {
  constexpr int kClasses = Probes::kClasses;
  enum Batch { kVKeys, kKKeys, kColumns, kOthers, kBatches };
  enum Other { kOnes, kUniform, kScoresByKey, kNormal };
  const AttentionProblem probed{.batch = kBatches,
                                .heads = kClasses,
                                .seq_len = tiling.block_q,
                                .seq_len_kv = tiles * tiling.block_kv,
                                .head_dim = problem.head_dim,
                                .dtype = problem.dtype};
  Inputs inputs = make_inputs(probed, Distribution::normal, Packing::separate, 0);
  const std::uint16_t one = element_from_float(probed.dtype, 1);
  const auto row_of = [&](int buffer, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const TensorLayout& layout = buffer == inputs.Q_buffer ? inputs.Q : inputs.K;
    return std::span(inputs.buffers[buffer].data() + layout.row(batch, head, row), probed.head_dim);
  };
  for (std::int64_t head = 0; head < kClasses; ++head) {
    for (std::int64_t row = 0; row < probed.seq_len; ++row) {
      std::ranges::fill(row_of(inputs.Q_buffer, kVKeys, head, row), 0);
      const auto q = row_of(inputs.Q_buffer, kColumns, head, row);
      for (std::int64_t d = 0; d < probed.head_dim; ++d)
        if (d * kClasses / probed.head_dim != head) q[d] = 0;
      if (head == kUniform) std::ranges::fill(row_of(inputs.Q_buffer, kOthers, head, row), 0);
      if (head == kScoresByKey) std::ranges::fill(row_of(inputs.Q_buffer, kOthers, head, row), one);
    }
    for (std::int64_t key = 0; key < probed.seq_len_kv; ++key) {
      if (key % kClasses != head) {
        std::ranges::fill(row_of(inputs.V_buffer, kVKeys, head, key), 0);
        std::ranges::fill(row_of(inputs.K_buffer, kKKeys, head, key), 0);
      }
      if (head == kOnes) std::ranges::fill(row_of(inputs.V_buffer, kOthers, head, key), one);
      const auto k = row_of(inputs.K_buffer, kOthers, head, key);
      if (head == kScoresByKey)  // of the size that scores usually have
        std::ranges::fill(k, element_from_float(probed.dtype, element_to_float(probed.dtype, k[0]) /
                                                                  std::sqrt(static_cast<float>(probed.head_dim))));
    }
  }
  const auto outcome = laboratory.launch(std::move(inputs));
  if (!outcome.output) return std::nullopt;
  const auto wrong = [&](int batch, int head) {
    return static_cast<bool>(outcome.wrong.heads[batch * kClasses + head]);
  };
  Probes probes;
  probes.ones = !wrong(kOthers, kOnes);
  probes.uniform = !wrong(kOthers, kUniform);
  probes.scores_by_key = !wrong(kOthers, kScoresByKey);
  for (int head = kNormal; head < kClasses; ++head) probes.normal = probes.normal && !wrong(kOthers, head);
  for (int i = 0; i < kClasses; ++i) {
    probes.V_keys.push_back(wrong(kVKeys, i));
    probes.K_keys.push_back(wrong(kKKeys, i));
    probes.columns.push_back(wrong(kColumns, i));
  }
  const TensorLayout layout = output_layout(probed);
  probes.least_of_ones = INFINITY, probes.most_of_ones = -INFINITY;
  for (std::int64_t row = 0; row < probed.seq_len; ++row)
    for (std::int64_t d = 0; d < probed.head_dim; ++d) {
      const double value = element_to_float(probed.dtype, outcome.output->data()[layout.row(kOthers, kOnes, row) + d]);
      probes.least_of_ones = std::min(probes.least_of_ones, value);
      probes.most_of_ones = std::max(probes.most_of_ones, value);
    }
  return probes;
}

bool any(const std::vector<bool>& set) { return std::find(set.begin(), set.end(), true) != set.end(); }

// "; those 8–15 modulo 16 are" where some of the classes are right.
std::string which(const std::vector<bool>& wrong, const char* format_all, const char* before) {
  if (!any(wrong)) return "";
  const auto set = describe_set(wrong);
  if (!set) return fmt::format("{} {} of 16 classes modulo 16", before, std::count(wrong.begin(), wrong.end(), true));
  if (set->empty()) return format_all;
  return fmt::format("{} {}{}", before, *set, set->find("modulo") == std::string::npos ? " modulo 16" : "");
}

std::vector<std::string> describe_probes(const Probes& probes, Diagnosis& diagnosis) {
  diagnosis.experiments.push_back({"V = 1", probes.ones});
  diagnosis.experiments.push_back({"Q = 0", probes.uniform});
  diagnosis.experiments.push_back({"scores that depend on the key alone", probes.scores_by_key});
  diagnosis.experiments.push_back({"Q = 0, V of a sixteenth of the keys", !any(probes.V_keys)});
  diagnosis.experiments.push_back({"K of a sixteenth of the keys", !any(probes.K_keys)});
  diagnosis.experiments.push_back({"Q of a sixteenth of head_dim", !any(probes.columns)});
  std::vector<std::string> sentences;
  const bool V_wrong = !probes.uniform || any(probes.V_keys);
  if (!probes.ones)
    sentences.push_back(fmt::format(
        "With V = 1 every O must be 1, and is {:.3g} to {:.3g}: the row sums are not those of the P that O adds up. Suggests "
        "row_sum, row_max or their rescaling.",
        probes.least_of_ones, probes.most_of_ones));
  if (V_wrong)
    sentences.push_back(fmt::format(
        "With Q = 0 all P are equal and O is the mean of V: that is wrong{}. Suggests V (its copy, its fragments) or the store "
        "of O.",
        which(probes.V_keys, " whichever keys of V are not 0", ", by V's keys")));
  else
    sentences.push_back(
        "With Q = 0, when O is the mean of V, it is right: V, its fragments and the store of O are not it.");
  if (!V_wrong && probes.ones) {
    std::string text;
    if (probes.scores_by_key)
      text =
          "With scores that depend on the key alone O is right, too: what is wrong is the order of head_dim, or of Q's rows, "
          "in S = Q Kᵀ";
    else
      text = "With scores that depend on the key alone O is wrong: the P of a key meets the V of another, or S is off";
    const std::string keys = which(probes.K_keys, "", "wrong for K's keys"),
                      columns = which(probes.columns, "", "wrong for eighths of every 64 columns");
    sentences.push_back(text + (keys.empty() ? "" : "; " + keys) + ".");
    if (any(probes.columns) && !columns.empty()) {
      std::vector<std::string> chunks;
      for (int i = 0; i < Probes::kClasses; ++i)
        if (probes.columns[i]) chunks.push_back(std::to_string(i));
      sentences.push_back(fmt::format("With Q = 0 but for one sixteenth of head_dim, it is wrong for sixteenths {}.",
                                      sentence_of(chunks, ", ")));
    }
  }
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
    text += " Suggests something that goes by the sizes of the problem.";
  else if (wrong.size() == 1 && is_wrong("packed Q, K, V"))
    text += " Suggests the row strides: there, the rows of a tensor do not follow one another.";
  else if (is_right("normal inputs") && (is_wrong("ramp inputs") || is_wrong("large-logit inputs")))
    text += " Suggests row_max: it moves little with normal inputs, and much with those that are wrong.";
  else if (right.size() == 1 && is_right("ramp inputs"))
    text += " With ramp inputs nothing but the last keys counts.";
  return text;
}

}  // namespace

Diagnosis diagnose(const WrongOutput& wrong, const std::vector<CheckedSet>& sets, const Tiling& tiling,
                   const Launch& launch) {
  Diagnosis diagnosis;
  const AttentionProblem& problem = wrong.inputs.problem;
  const WrongElements elements = find_wrong(wrong.reference, wrong.output, tiling);
  if (elements.wrong == 0) return diagnosis;
  const WrongRow& first = elements.rows.front();
  diagnosis.first = fragment_element(tiling, first.row, elements.first_column);

  Laboratory laboratory(tiling, launch);
  const Start start = find_start(wrong, tiling, laboratory, diagnosis);

  const auto samples = sample_rows(elements);
  std::vector<Mistake> mistakes = mistakes_that_explain(wrong, samples, tiling);
  if (mistakes.size() > 1) {
    // Another shape may tell them apart: a single query tile, four K/V tiles.
    AttentionProblem other = problem;
    other.batch = std::min<std::int64_t>(problem.batch, 2);
    other.heads = std::min<std::int64_t>(problem.heads, 3);
    other.seq_len = tiling.block_q;
    other.seq_len_kv = 4 * tiling.block_kv;
    const auto outcome = laboratory.launch(make_inputs(other, Distribution::normal, Packing::separate, 1));
    if (outcome.output && outcome.wrong.wrong > 0) {
      const WrongOutput again{outcome.inputs, outcome.reference, *outcome.output};
      const auto also = mistakes_that_explain(again, sample_rows(outcome.wrong), tiling);
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
    std::size_t rows = 0;
    for (const Sample& sample : samples) rows += sample.rows.size();
    sentences.push_back(
        fmt::format("Suggests: {}{}. Computed with that mistake, {} come out as here.", sentence_of(texts, "; or "),
                    mistakes.size() > kMaxNamed ? fmt::format("; or {} more", mistakes.size() - kMaxNamed) : "",
                    rows == 1 ? "the one wrong row does" : fmt::format("all {} wrong rows that were tried", rows)));
  } else {
    if (const auto factor = describe_factor(wrong.reference, wrong.output, elements)) sentences.push_back(*factor);
    const bool normal_is_right =
        std::ranges::any_of(sets, [](const CheckedSet& set) { return set.name == "normal inputs" && set.right; });
    // The probes are small problems with normal inputs: they say nothing of what only others show.
    constexpr std::int64_t kMaxProbedTiles = 3;
    if (!normal_is_right && start.tiles <= kMaxProbedTiles) {
      if (const auto probes = probe(problem, tiling, start.tiles, laboratory)) {
        if (!probes->normal || !probes->ones || !probes->uniform)
          for (std::string& sentence : describe_probes(*probes, diagnosis)) sentences.push_back(std::move(sentence));
      }
    }
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
