#include "worker/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "problem/problem.h"
#include "worker/row_times_matrix.h"
#include "worker/score_change.h"

namespace flash_ladder {
namespace {

constexpr std::int64_t kWidth = kRowTimesMatrixWidth;
constexpr std::int64_t kKeys = 64;  // keys converted at a time: K and V in double and float stay in the L2
static_assert(kKeys % kWidth == 0);

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The whole computation in one arithmetic: double for the reference, float for base.
template <typename T>
struct Attention {
  std::int64_t keys, head_dim, head_dim_v;  // rounded up, so that no loop has a tail; the added elements are 0
  std::vector<T> Q;                         // [rows][head_dim]
  std::vector<T> S;                         // [rows][keys], later P
  std::vector<T> O;                         // [rows][head_dim_v]
  std::vector<T> K_transposed, V;           // [head_dim][kKeys] and [kKeys][head_dim_v]
  bool in_8_bits;                           // adds products as a tensor core does whose factors have 8 bits

  Attention(std::int64_t rows, std::int64_t keys, std::int64_t head_dim, std::int64_t head_dim_v,
            bool in_8_bits = false)
      : keys(keys),
        head_dim(head_dim),
        head_dim_v(head_dim_v),
        Q(rows * head_dim),
        S(rows * keys),
        O(rows * head_dim_v),
        K_transposed(head_dim * kKeys),
        V(kKeys * head_dim_v),
        in_8_bits(in_8_bits) {}

  // out += a B for `count` rows, 1 or kRowsTimesMatrixHeight, and kWidth columns.
  void add(T* out, std::int64_t out_stride, const T* a, std::int64_t a_stride, std::int64_t count, const T* B,
           std::int64_t depth, std::int64_t stride) const {
    if constexpr (std::is_same_v<T, float>)
      if (in_8_bits) {
        for (std::int64_t i = 0; i < count; ++i)
          add_row_times_matrix_of_8_bits(out + i * out_stride, a + i * a_stride, B, depth, stride);
        return;
      }
    if (count == 1)
      add_row_times_matrix(out, a, B, depth, stride);
    else
      add_rows_times_matrix(out, out_stride, a, a_stride, B, depth, stride);
  }

  // S[row][first_key …] = Q[row] · K, for the keys in K_transposed and `count` rows, 1 or kRowsTimesMatrixHeight.
  void add_scores(std::int64_t row, std::int64_t count, std::int64_t first_key) {
    for (std::int64_t j = 0; j < kKeys; j += kWidth)
      add(&S[row * keys + first_key + j], keys, &Q[row * head_dim], head_dim, count, &K_transposed[j], head_dim, kKeys);
  }
  // S[row] becomes P = exp(S - m), rounded by `round`, where `change` makes S of query `query` from a product, and m is the largest
  // score of the row; keys that the row does not see have P = 0. Returns the sum of P. L = m + log l takes the sum l from before
  // the rounding. With a sink, both sums contain it.
  template <typename Round>
  T softmax(std::int64_t row, const KeyRange& visible, const float* sink, T& log_sum_exp, const ScoreChange<T>& change,
            std::int64_t query, const Round& round) {
    T* P = &S[row * keys];
    for (std::int64_t key = visible.begin; key < visible.end; ++key) P[key] = change(P[key], query, key);
    const bool sees_a_key = visible.begin < visible.end;
    const T max = sees_a_key ? *std::max_element(P + visible.begin, P + visible.end) : 0;
    const T of_sink = sink != nullptr && sees_a_key ? std::exp(*sink - max) : 0;
    T l = of_sink;
    for (std::int64_t key = visible.begin; key < visible.end; ++key) {
      P[key] = std::exp(P[key] - max);
      l += P[key];
      P[key] = round(P[key]);
    }
    std::fill(P, P + visible.begin, 0);
    std::fill(P + visible.end, P + keys, 0);
    log_sum_exp = sees_a_key ? max + std::log(l) : -std::numeric_limits<T>::infinity();
    return std::accumulate(P, P + keys, of_sink);
  }
  // Sets the weights of the row that dropout drops to 0: those of query `query`.
  void drop(std::int64_t row, const KeyRange& visible, const DropoutMask& mask, std::int64_t query) {
    for (std::int64_t key = visible.begin; key < visible.end; ++key)
      if (!mask.keeps(query, key)) S[row * keys + key] = 0;
  }
  // O[row] += P[row][first_key …] · V, for as many rows.
  void add_output(std::int64_t row, std::int64_t count, std::int64_t first_key) {
    for (std::int64_t d = 0; d < head_dim_v; d += kWidth)
      add(&O[row * head_dim_v + d], head_dim_v, &S[row * keys + first_key], keys, count, &V[d], kKeys, head_dim_v);
  }
};

// A row of Q or K in both arithmetics: `elements` become those for base, rounded to the type if they are rotated.
void convert(const Inputs& inputs, std::int64_t batch, bool is_rotated, float* elements, double* exact) {
  const std::int64_t head_dim = inputs.problem.head_dim;
  std::copy_n(elements, head_dim, exact);
  if (!is_rotated) return;
  rotate(inputs, batch, exact);
  rotate(inputs, batch, elements);
  const Dtype dtype = inputs.problem.dtype;
  for (std::int64_t d = 0; d < inputs.problem.rotary_dim; ++d)
    elements[d] = element_to_float(dtype, element_from_float(dtype, elements[d]));
}

// Calls visit(row, count) for the rows that see one of the kKeys keys from first_key on, with a count of kRowsTimesMatrixHeight or
// 1. Where several rows are visited at once, it is enough that one of them sees a key.
template <typename Visit>
void for_each_row_that_sees(std::span<const KeyRange> visible, std::int64_t first_key, const Visit& visit) {
  const auto sees = [&](const KeyRange& keys) { return keys.begin < first_key + kKeys && keys.end > first_key; };
  const std::int64_t num_rows = std::ssize(visible);
  for (std::int64_t row = 0, count; row < num_rows; row += count) {
    count = row + kRowsTimesMatrixHeight <= num_rows ? kRowsTimesMatrixHeight : 1;
    if (std::ranges::any_of(visible.subspan(row, count), sees)) visit(row, count);
  }
}

std::vector<KeyRange> visible_to_each(const AttentionProblem& problem, std::int64_t batch,
                                      std::span<const std::int64_t> rows) {
  std::vector<KeyRange> visible;
  for (const std::int64_t row : rows) visible.push_back(visible_keys(problem, batch, row));
  return visible;
}

// The keys from the first that a row sees, rounded down to a multiple of kKeys, to the last. Of the others, S and P stay 0.
KeyRange seen_by_any(std::span<const KeyRange> visible) {
  KeyRange all{std::numeric_limits<std::int64_t>::max(), 0};
  for (const KeyRange& keys : visible) {
    if (keys.begin >= keys.end) continue;
    all.begin = std::min(all.begin, keys.begin / kKeys * kKeys);
    all.end = std::max(all.end, keys.end);
  }
  return all;
}

// Rows of one head that are processed together, so that each key is converted once for all of them: as many as keep S
// small.
std::int64_t rows_at_a_time(std::int64_t seq_len_kv) { return std::clamp<std::int64_t>((1 << 20) / seq_len_kv, 1, 64); }

}  // namespace

std::int64_t RowSelection::row(std::int64_t batch, std::int64_t head, std::int64_t index) const {
  const std::int64_t first = index * tile;
  const std::int64_t size = std::min(tile, seq_len - first);
  return first + static_cast<std::int64_t>(hash(seed, 0x726f77, batch, head, index) % size);
}

AttendedRows attend_rows(const Inputs& inputs, std::int64_t batch, std::int64_t head,
                         std::span<const std::int64_t> rows, bool with_base) {
  const std::int64_t num_rows = std::ssize(rows), num_keys = flash_ladder::num_keys(inputs.problem, batch),
                     head_dim = inputs.problem.head_dim, head_dim_v = value_head_dim(inputs.problem);
  const std::int64_t padded_keys = round_up(num_keys, kKeys), padded_dim = round_up(head_dim, kWidth),
                     padded_dim_v = round_up(head_dim_v, kWidth);
  const Dtype dtype = inputs.problem.dtype;
  Attention<double> exact(num_rows, padded_keys, padded_dim, padded_dim_v);
  Attention<float> base(num_rows, padded_keys, padded_dim, padded_dim_v, dtype == Dtype::e4m3);
  std::vector<float> converted(head_dim);
  std::vector<double> exact_row(head_dim);
  const bool rotates = inputs.problem.rotary_dim != 0;

  for (std::int64_t r = 0; r < num_rows; ++r) {
    if (rows[r] >= num_queries(inputs.problem, batch)) continue;  // padding, or not in memory at all
    elements_to_float(dtype, inputs.Q_row(batch, head, rows[r]), head_dim, &base.Q[r * padded_dim]);
    convert(inputs, batch, rotates, &base.Q[r * padded_dim], &exact.Q[r * padded_dim]);
  }

  const std::vector<KeyRange> visible = visible_to_each(inputs.problem, batch, rows);
  const auto [begin, end] = seen_by_any(visible);
  // S = Q Kᵀ.
  for (std::int64_t first_key = begin; first_key < end; first_key += kKeys) {
    for (std::int64_t key = 0; key < std::min(kKeys, num_keys - first_key); ++key) {
      elements_to_float(dtype, inputs.K_row(batch, head, first_key + key), head_dim, converted.data());
      convert(inputs, batch, rotates && first_key + key == num_keys - 1, converted.data(), exact_row.data());
      for (std::int64_t d = 0; d < head_dim; ++d) exact.K_transposed[d * kKeys + key] = exact_row[d];
      if (!with_base) continue;
      for (std::int64_t d = 0; d < head_dim; ++d) base.K_transposed[d * kKeys + key] = converted[d];
    }
    for_each_row_that_sees(visible, first_key, [&](std::int64_t row, std::int64_t count) {
      exact.add_scores(row, count, first_key);
      if (with_base) base.add_scores(row, count, first_key);
    });
  }

  AttendedRows result{.exact = std::vector<double>(num_rows * head_dim_v),
                      .base = std::vector<float>(with_base ? num_rows * head_dim_v : 0),
                      .exact_log_sum_exp = std::vector<double>(num_rows),
                      .base_log_sum_exp = std::vector<float>(with_base ? num_rows : 0)};
  const float* sink = inputs.problem.sinks ? &inputs.sinks[head] : nullptr;
  const ScoreChange<double> exact_change(inputs, batch, head);
  const ScoreChange<float> base_change(inputs, batch, head);
  const DropoutMask mask(inputs.problem, batch, head);
  std::vector<double> exact_sum(num_rows);
  std::vector<float> base_sum(num_rows);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    exact_sum[r] = exact.softmax(r, visible[r], sink, result.exact_log_sum_exp[r], exact_change, rows[r],
                                 [](double P) { return P; });
    if (with_base)
      base_sum[r] = base.softmax(r, visible[r], sink, result.base_log_sum_exp[r], base_change, rows[r],
                                 [&](float P) { return round_P(dtype, P, rows[r]); });
    if (!mask.drops_any()) continue;
    exact.drop(r, visible[r], mask, rows[r]);
    if (with_base) base.drop(r, visible[r], mask, rows[r]);
  }

  // O = P V divided by the sum of all P, and by the probability that a weight is kept; 0 if the row sees no key, and the sum is 0.
  for (std::int64_t first_key = begin; first_key < end; first_key += kKeys) {
    for (std::int64_t key = 0; key < std::min(kKeys, num_keys - first_key); ++key) {
      float* V = &base.V[key * padded_dim_v];
      elements_to_float(dtype, inputs.V_row(batch, head, first_key + key), head_dim_v, V);
      std::copy_n(V, head_dim_v, &exact.V[key * padded_dim_v]);
    }
    for_each_row_that_sees(visible, first_key, [&](std::int64_t row, std::int64_t count) {
      exact.add_output(row, count, first_key);
      if (with_base) base.add_output(row, count, first_key);
    });
  }
  for (std::int64_t r = 0; r < num_rows; ++r)
    for (std::int64_t d = 0; d < head_dim_v; ++d) {
      const bool sees_a_key = exact_sum[r] > 0;  // the largest has P = 1
      result.exact[r * head_dim_v + d] =
          sees_a_key ? exact.O[r * padded_dim_v + d] / exact_sum[r] * mask.factor<double>() : 0.0;
      if (!with_base) continue;
      const float quotient = sees_a_key ? base.O[r * padded_dim_v + d] / base_sum[r] * mask.factor<float>() : 0.0f;
      result.base[r * head_dim_v + d] = element_to_float(dtype, element_from_float(dtype, quotient));
    }
  return result;
}

Reference make_reference(const Inputs& inputs, const RowSelection& rows, const Progress& progress, int threads) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t count = rows.count(), heads_in_all = problem.batch * problem.heads,
                     head_dim_v = value_head_dim(problem);
  Reference reference;
  reference.problem = problem;
  reference.rows = rows;
  reference.output.resize(heads_in_all * count * head_dim_v);
  reference.bound.resize(heads_in_all);
  reference.log_sum_exp.resize(heads_in_all * count);
  reference.log_sum_exp_bound.resize(heads_in_all);

  // A head may be split into several units of work, so that even a single head keeps all cores busy.
  const std::int64_t group = rows_at_a_time(problem.seq_len_kv), groups = (count + group - 1) / group;
  struct Largest {
    double error = 0, output = 0, log_error = 0, log = 0;
  };
  std::vector<Largest> largest(heads_in_all * groups);
  const auto attend = [&](std::int64_t work) {
    const std::int64_t batch = work / groups / problem.heads, head = work / groups % problem.heads;
    const std::int64_t first = work % groups * group, end = std::min(first + group, count);
    std::vector<std::int64_t> selected;
    for (std::int64_t index = first; index < end; ++index) selected.push_back(rows.row(batch, head, index));
    const AttendedRows attended = attend_rows(inputs, batch, head, selected);
    double* output = &reference.output[((batch * problem.heads + head) * count + first) * head_dim_v];
    for (std::int64_t i = 0; i < std::ssize(attended.exact); ++i) {
      const double exact = attended.exact[i], error = std::abs(attended.base[i] - exact);
      if (!std::isfinite(error)) throw std::logic_error("the reference is not finite: these inputs overflow the type");
      output[i] = exact;
      largest[work].error = std::max(largest[work].error, error);
      largest[work].output = std::max(largest[work].output, std::abs(exact));
    }
    for (std::int64_t i = 0; i < end - first; ++i) {
      const double exact = attended.exact_log_sum_exp[i];
      reference.log_sum_exp[(batch * problem.heads + head) * count + first + i] = exact;
      if (!std::isfinite(exact)) continue;  // sees no key
      largest[work].log_error = std::max(largest[work].log_error, std::abs(attended.base_log_sum_exp[i] - exact));
      largest[work].log = std::max(largest[work].log, std::abs(exact));
    }
  };
  parallel_for(heads_in_all * groups, attend, progress, threads);

  for (std::int64_t i = 0; i < heads_in_all; ++i) {
    Largest all;
    for (std::int64_t g = 0; g < groups; ++g) {
      all.error = std::max(all.error, largest[i * groups + g].error);
      all.output = std::max(all.output, largest[i * groups + g].output);
      all.log_error = std::max(all.log_error, largest[i * groups + g].log_error);
      all.log = std::max(all.log, largest[i * groups + g].log);
    }
    reference.bound[i] = 2 * all.error + ulp(problem.dtype, all.output);
    reference.log_sum_exp_bound[i] =
        2 * all.log_error + std::ldexp(std::max(1.0, all.log), -18) + std::ldexp(problem.softcap, -22);
  }
  return reference;
}

}  // namespace flash_ladder
