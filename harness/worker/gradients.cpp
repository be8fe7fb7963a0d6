#include "worker/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "problem/problem.h"
#include "worker/reference_cache.h"
#include "worker/row_times_matrix.h"
#include "worker/score_change.h"

namespace flash_ladder {
namespace {

constexpr std::int64_t kColumns = 64;  // converted at a time, as in reference.cpp
constexpr std::int64_t kRows = 64;     // in a unit of work

// head_dim, rounded up so that no loop has a tail; the added elements are 0.
std::int64_t padded_dim(std::int64_t head_dim) {
  return (head_dim + kRowTimesMatrixWidth - 1) / kRowTimesMatrixWidth * kRowTimesMatrixWidth;
}

float factor_of(OutputGradient output_gradient) {
  switch (output_gradient) {
    case OutputGradient::normal:
      return 1;
    case OutputGradient::large:
      return 4096;
    case OutputGradient::reduced:
      return 1.0f / 16;
    case OutputGradient::small:
      return 1e-4f;
  }
  throw std::logic_error("an OutputGradient without a factor");
}

float to_float(double x) { return static_cast<float>(x); }

std::span<std::byte> writable_bytes_of(HostBuffer& buffer) {
  return std::as_writable_bytes(std::span(buffer.data(), buffer.size()));
}

// dO is drawn as Q is, from another seed, and multiplied.
HostBuffer draw_dO(const AttentionProblem& problem, const TensorLayout& layout, float factor, std::uint64_t seed,
                   int threads) {
  AttentionProblem like_Q = problem;
  like_Q.seq_len_kv = 1;
  like_Q.lengths_kv.assign(problem.lengths_kv.size(), 1);
  like_Q.head_dim = value_head_dim(problem);
  like_Q.head_dim_v = 0;
  const Inputs drawn =
      make_inputs(like_Q, Distribution::normal, Packing::separate, hash(seed, 0x644f, 0, 0), {}, threads);
  HostBuffer dO(output_size(problem));
  const auto multiply = [&](std::int64_t work) {
    const std::int64_t batch = work / problem.heads, head = work % problem.heads;
    for (std::int64_t row = 0; row < num_rows(problem, batch); ++row) {
      const std::uint16_t* from = drawn.Q_row(batch, head, row);
      std::uint16_t* to = dO.data() + layout.row(batch, head, row);
      for (std::int64_t d = 0; d < like_Q.head_dim; ++d)
        to[d] = element_from_float(problem.dtype, factor * element_to_float(problem.dtype, from[d]));
    }
  };
  parallel_for(problem.batch * problem.heads, multiply, {}, threads);
  return dO;
}

// A row of one of the tensors of a head.
using Row = std::function<const std::uint16_t*(std::int64_t row)>;

// One head seen from one side. From the side of the queries, a row is a query and a column is a key; from the side of the
// keys, all matrices are transposed.
struct Side {
  const Inputs& inputs;
  std::int64_t batch, head;  // of Q
  bool rows_are_queries;
  std::int64_t num_columns;
  Row a, b;                           // of a row: Q and dO, or K and V
  Row A, B;                           // of a column: K and V, or Q and dO
  std::span<const KeyRange> visible;  // of each query

  bool is_visible(std::int64_t row, std::int64_t column) const {
    const KeyRange& keys = visible[rows_are_queries ? row : column];
    const std::int64_t key = rows_are_queries ? column : row;
    return keys.begin <= key && key < keys.end;
  }
};

// The gradients of some rows of a side, in one arithmetic: double for the reference, float for base. dQ and dK are not yet
// multiplied by the scale.
template <typename T>
struct GradientRows {
  GradientRows(std::int64_t rows, const AttentionProblem& problem)
      : of_a(rows * padded_dim(problem.head_dim)), of_b(rows * padded_dim(value_head_dim(problem))) {}

  std::vector<T> of_a, of_b;  // [rows][padded head_dim, or that of V]: dQ and nothing, or dK and dV
};

// The operands of one side in one arithmetic: some rows, and kColumns columns at a time.
template <typename T>
struct Operands {
  Operands(const Side& side, std::span<const std::int64_t> rows)
      : side(side),
        head_dim(side.inputs.problem.head_dim),
        head_dim_v(value_head_dim(side.inputs.problem)),
        padded(padded_dim(head_dim)),
        padded_v(padded_dim(head_dim_v)),
        a(rows.size() * padded),
        b(rows.size() * padded_v),
        A(kColumns * padded),
        B(kColumns * padded_v),
        A_transposed(padded * kColumns),
        B_transposed(padded_v * kColumns),
        converted(std::max(head_dim, head_dim_v)) {
    for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
      convert(side.a(rows[r]), head_dim, &a[r * padded], 1);
      convert(side.b(rows[r]), head_dim_v, &b[r * padded_v], 1);
    }
  }

  void convert_columns(std::int64_t first, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      convert(side.A(first + j), head_dim, &A[j * padded], 1);
      convert(side.B(first + j), head_dim_v, &B[j * padded_v], 1);
      convert(side.A(first + j), head_dim, &A_transposed[j], kColumns);
      convert(side.B(first + j), head_dim_v, &B_transposed[j], kColumns);
    }
  }
  void convert(const std::uint16_t* bits, std::int64_t count, T* to, std::int64_t stride) {
    elements_to_float(side.inputs.problem.dtype, bits, count, converted.data());
    for (std::int64_t d = 0; d < count; ++d) to[d * stride] = converted[d];
  }

  const Side& side;
  std::int64_t head_dim, head_dim_v, padded, padded_v;  // padded ones have no tail
  std::vector<T> a, b;                                  // [rows][padded] and [rows][padded_v]
  std::vector<T> A, B;                                  // [kColumns][padded] and [kColumns][padded_v]
  std::vector<T> A_transposed, B_transposed;
  std::vector<float> converted;
};

// Adds those of one head. L and D are those of the queries, and `round` rounds P and dS.
template <typename T, typename Round>
void add_gradients(GradientRows<T>& sum, const Side& side, std::span<const std::int64_t> rows, const T* L, const T* D,
                   const Round& round) {
  Operands<T> of(side, rows);
  const ScoreChange<T> change(side.inputs, side.batch, side.head);
  const DropoutMask mask(side.inputs.problem, side.batch, side.head);
  std::vector<T> P(kColumns), dS(kColumns);
  for (std::int64_t first = 0; first < side.num_columns; first += kColumns) {
    const std::int64_t columns = std::min(kColumns, side.num_columns - first);
    const auto sees_a_column = [&](std::int64_t row) {
      for (std::int64_t j = 0; j < columns; ++j)
        if (side.is_visible(row, first + j)) return true;
      return false;
    };
    if (std::ranges::none_of(rows, sees_a_column)) continue;
    of.convert_columns(first, columns);
    for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
      // P holds Q Kᵀ first, and dS holds dO Vᵀ.
      std::ranges::fill(P, 0);
      std::ranges::fill(dS, 0);
      for (std::int64_t j = 0; j < kColumns; j += kRowTimesMatrixWidth) {
        add_row_times_matrix(&P[j], &of.a[r * of.padded], &of.A_transposed[j], of.head_dim, kColumns);
        add_row_times_matrix(&dS[j], &of.b[r * of.padded_v], &of.B_transposed[j], of.head_dim_v, kColumns);
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        if (!side.is_visible(rows[r], first + j)) {
          P[j] = dS[j] = 0;
          continue;
        }
        const std::int64_t query = side.rows_are_queries ? rows[r] : first + j,
                           key = side.rows_are_queries ? first + j : rows[r];
        const T product = P[j], p = std::exp(change(product, query, key) - L[query]);
        const T kept = !mask.drops_any() ? 1 : mask.keeps(query, key) ? mask.template factor<T>() : 0;
        P[j] = round(kept * p);
        dS[j] = round(p * (kept * dS[j] - D[query]) * change.derivative(product));
      }
      for (std::int64_t d = 0; d < of.padded; d += kRowTimesMatrixWidth)
        add_row_times_matrix(&sum.of_a[r * of.padded + d], dS.data(), &of.A[d], columns, of.padded);
      for (std::int64_t d = 0; d < of.padded_v && !side.rows_are_queries; d += kRowTimesMatrixWidth)
        add_row_times_matrix(&sum.of_b[r * of.padded_v + d], P.data(), &of.B[d], columns, of.padded_v);
    }
  }
}

// A reference whose rows are not computed yet.
Reference empty_reference(const AttentionProblem& problem, std::size_t which, std::int64_t row_tile,
                          std::uint64_t seed) {
  Reference reference;
  reference.problem = problem_of_gradient(problem, which);
  const AttentionProblem& of = reference.problem;
  reference.rows = {.seq_len = of.seq_len, .tile = row_tile, .seed = seed};
  reference.output.resize(of.batch * of.heads * reference.rows.count() * of.head_dim);
  reference.bound.resize(of.batch * of.heads);
  return reference;
}

// D of base, in fp32 from the rounded O, by log_sum_exp_layout().
std::vector<float> make_base_D(const AttentionProblem& problem, const GradientInputs& given, int threads) {
  const std::int64_t heads = problem.heads, head_dim_v = value_head_dim(problem);
  const TensorLayout layout = log_sum_exp_layout(problem);
  std::vector<float> D(given.exact_D.size());
  const auto add = [&](std::int64_t work) {
    const std::int64_t batch = work / heads, head = work % heads;
    std::vector<float> O(head_dim_v), dO(head_dim_v);
    for (std::int64_t row = 0; row < num_queries(problem, batch); ++row) {
      elements_to_float(problem.dtype, given.O.data() + given.O_layout.row(batch, head, row), head_dim_v, O.data());
      elements_to_float(problem.dtype, given.dO.data() + given.dO_layout.row(batch, head, row), head_dim_v, dO.data());
      D[layout.row(batch, head, row)] = std::inner_product(O.begin(), O.end(), dO.begin(), 0.0f);
    }
  };
  parallel_for(problem.batch * heads, add, {}, threads);
  return D;
}

struct Largest {
  double error = 0, gradient = 0;
};

// Copies rows of a head into a reference, and finds out how large they are and how far away base is.
Largest keep(Reference& reference, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count,
             const std::vector<double>& exact, const std::vector<float>& base) {
  const std::int64_t head_dim = reference.problem.head_dim, padded = padded_dim(head_dim);
  const Dtype dtype = reference.problem.dtype;
  double* to =
      &reference.output[((batch * reference.problem.heads + head) * reference.rows.count() + first) * head_dim];
  Largest largest;
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const double value = exact[r * padded + d];
      const double error = std::abs(element_to_float(dtype, element_from_float(dtype, base[r * padded + d])) - value);
      if (!std::isfinite(error)) throw std::logic_error("a gradient is not finite: these inputs overflow the type");
      to[r * head_dim + d] = value;
      largest.error = std::max(largest.error, error);
      largest.gradient = std::max(largest.gradient, std::abs(value));
    }
  return largest;
}

std::int64_t groups_of(const Reference& reference) { return (reference.rows.count() + kRows - 1) / kRows; }

// Adds the gradients of some rows that depend on one head of Q, none of which is padding. `visible` is that of each query.
void add_head(GradientRows<double>& exact, GradientRows<float>& base, const Inputs& inputs,
              std::span<const KeyRange> visible, const std::vector<float>& base_D, bool rows_are_queries,
              std::int64_t batch, std::int64_t head, std::span<const std::int64_t> rows) {
  const AttentionProblem& problem = inputs.problem;
  const GradientInputs& given = *inputs.gradients;
  const Row Q_row = [&](std::int64_t row) { return inputs.Q_row(batch, head, row); };
  const Row K_row = [&](std::int64_t row) { return inputs.K_row(batch, head, row); };
  const Row V_row = [&](std::int64_t row) { return inputs.V_row(batch, head, row); };
  const Row dO_row = [&](std::int64_t row) { return given.dO.data() + given.dO_layout.row(batch, head, row); };
  const Side side{.inputs = inputs,
                  .batch = batch,
                  .head = head,
                  .rows_are_queries = rows_are_queries,
                  .num_columns = rows_are_queries ? num_keys(problem, batch) : num_queries(problem, batch),
                  .a = rows_are_queries ? Q_row : K_row,
                  .b = rows_are_queries ? dO_row : V_row,
                  .A = rows_are_queries ? K_row : Q_row,
                  .B = rows_are_queries ? V_row : dO_row,
                  .visible = visible};
  const std::int64_t of_head = log_sum_exp_layout(problem).row(batch, head, 0);
  add_gradients<double>(exact, side, rows, given.exact_log_sum_exp.data() + of_head, given.exact_D.data() + of_head,
                        [](double x) { return x; });
  add_gradients<float>(base, side, rows, given.log_sum_exp.data() + of_head, base_D.data() + of_head,
                       [&](float x) { return element_to_float(problem.dtype, element_from_float(problem.dtype, x)); });
}

// `largest` has the groups of rows of each (batch, head), and in them, at `which`, the reference's tensor.
void set_bounds(Reference& reference, std::span<const std::array<Largest, 2>> largest, std::size_t which) {
  const std::int64_t groups = groups_of(reference);
  for (std::int64_t i = 0; i < std::ssize(reference.bound); ++i) {
    Largest all;
    for (const std::array<Largest, 2>& group : largest.subspan(i * groups, groups)) {
      all.error = std::max(all.error, group[which].error);
      all.gradient = std::max(all.gradient, group[which].gradient);
    }
    reference.bound[i] = 2 * all.error + ulp(reference.problem.dtype, all.gradient);
  }
}

// Whether the problem has fields that only decoding uses.
bool is_of_decoding(const AttentionProblem& problem) {
  return problem.page_size != 0 || problem.append || problem.rotary_dim != 0 || problem.fp8_cache;
}

// Memory for O, L and D.
std::shared_ptr<GradientInputs> without_O(const AttentionProblem& problem, HostBuffer dO, TensorLayout dO_layout) {
  if (is_of_decoding(problem)) throw std::logic_error("gradients do not know extensions of a cache");
  auto result = std::make_shared<GradientInputs>();
  result->dO = std::move(dO);
  result->dO_layout = std::move(dO_layout);
  result->O_layout = output_layout(problem);
  result->O = HostBuffer(output_size(problem));
  const std::int64_t rows = total_rows(problem) * problem.heads;
  result->log_sum_exp.resize(rows);
  result->exact_log_sum_exp.resize(rows);
  result->exact_D.resize(rows);
  return result;
}

// O, L and D.
void compute_O(GradientInputs& result, const Inputs& inputs, const Progress& progress, int threads) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t heads = problem.heads, head_dim_v = value_head_dim(problem);
  const std::int64_t groups = (problem.seq_len + kRows - 1) / kRows;
  const TensorLayout layout = log_sum_exp_layout(problem);
  const std::uint16_t padding = element_from_float(problem.dtype, std::numeric_limits<float>::quiet_NaN());
  const auto attend = [&](std::int64_t work) {
    const std::int64_t batch = work / groups / heads, head = work / groups % heads, first = work % groups * kRows;
    std::vector<std::int64_t> rows(std::clamp<std::int64_t>(num_rows(problem, batch) - first, 0, kRows));
    std::iota(rows.begin(), rows.end(), first);
    const AttendedRows attended = attend_rows(inputs, batch, head, rows, /*with_base=*/false);
    for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
      const std::int64_t row = layout.row(batch, head, rows[r]);
      const std::uint16_t* dO = result.dO.data() + result.dO_layout.row(batch, head, rows[r]);
      std::uint16_t* O = result.O.data() + result.O_layout.row(batch, head, rows[r]);
      const bool is_padding = rows[r] >= num_queries(problem, batch);
      double D = 0;
      for (std::int64_t d = 0; d < head_dim_v; ++d) {
        const double exact = attended.exact[r * head_dim_v + d];
        O[d] = is_padding ? padding : element_from_float(problem.dtype, static_cast<float>(exact));
        if (!is_padding) D += element_to_float(problem.dtype, dO[d]) * exact;
      }
      result.exact_D[row] = D;
      result.exact_log_sum_exp[row] = attended.exact_log_sum_exp[r];
      result.log_sum_exp[row] = to_float(attended.exact_log_sum_exp[r]);
    }
  };
  parallel_for(problem.batch * heads * groups, attend, progress, threads);
}

}  // namespace

std::shared_ptr<const GradientInputs> make_gradient_inputs(const Inputs& inputs, Packing packing,
                                                           OutputGradient output_gradient, std::uint64_t seed,
                                                           const std::filesystem::path& cache, const Progress& progress,
                                                           int threads) {
  const AttentionProblem& problem = inputs.problem;
  TensorLayout dO_layout = output_layout(problem);
  if (packing == Packing::with_gaps) {
    dO_layout.row_stride = value_head_dim(problem);
    dO_layout.head_stride = (problem.packed ? total_rows(problem) : problem.seq_len) * dO_layout.row_stride;
  }
  HostBuffer dO = draw_dO(problem, dO_layout, factor_of(output_gradient), seed, threads);
  const auto result = without_O(problem, std::move(dO), std::move(dO_layout));
  const std::array cached{writable_bytes_of(result->O), std::as_writable_bytes(std::span(result->exact_log_sum_exp)),
                          std::as_writable_bytes(std::span(result->exact_D))};
  if (read_cached(cache, cached)) {
    std::ranges::transform(result->exact_log_sum_exp, result->log_sum_exp.begin(), to_float);
    return result;
  }
  compute_O(*result, inputs, progress, threads);
  write_cached(cache, std::vector<std::span<const std::byte>>(cached.begin(), cached.end()));
  return result;
}

std::shared_ptr<GradientInputs> complete_gradient_inputs(const Inputs& inputs, HostBuffer dO, const Progress& progress,
                                                         int threads) {
  auto result = without_O(inputs.problem, std::move(dO), output_layout(inputs.problem));
  compute_O(*result, inputs, progress, threads);
  return result;
}

std::optional<std::string> find_changed_input(const GradientInputs& before, const std::vector<HostBuffer>& after) {
  if (std::memcmp(before.dO.data(), after[0].data(), before.dO.bytes()) != 0) return "changed its input dO";
  if (std::memcmp(before.O.data(), after[1].data(), before.O.bytes()) != 0) return "changed its input O";
  if (std::memcmp(before.log_sum_exp.data(), after[2].data(), after[2].bytes()) != 0) return "changed its input L";
  return std::nullopt;
}

AttentionProblem problem_of_gradient(const AttentionProblem& problem, std::size_t which) {
  AttentionProblem of = problem;
  of.head_dim_v = 0;
  if (kGradientNames[which] == "dQ") return of;
  if (kGradientNames[which] == "dV") of.head_dim = value_head_dim(problem);
  of.heads = num_kv_heads(problem);
  of.kv_heads = 0;
  std::swap(of.seq_len, of.seq_len_kv);
  std::swap(of.lengths, of.lengths_kv);
  return of;
}

std::array<Reference, 3> make_gradient_references(const Inputs& inputs, std::int64_t row_tile, std::uint64_t seed,
                                                  const std::filesystem::path& cache, const Progress& progress,
                                                  int threads) {
  const AttentionProblem& problem = inputs.problem;
  const GradientInputs& given = *inputs.gradients;
  const std::int64_t heads = problem.heads, kv_heads = num_kv_heads(problem);
  std::array<Reference, 3> references{empty_reference(problem, 0, row_tile, seed),
                                      empty_reference(problem, 1, row_tile, seed),
                                      empty_reference(problem, 2, row_tile, seed)};
  Reference &dQ = references[0], &dK = references[1], &dV = references[2];
  std::vector<std::span<std::byte>> cached;
  for (Reference& reference : references)
    for (std::vector<double>* numbers : {&reference.bound, &reference.output})
      cached.push_back(std::as_writable_bytes(std::span(*numbers)));
  if (read_cached(cache, cached)) return references;

  const std::vector<float> base_D = make_base_D(problem, given, threads);
  std::vector<std::vector<KeyRange>> visible(problem.batch);  // to each query of a batch entry
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t query = 0; query < num_queries(problem, batch); ++query)
      visible[batch].push_back(visible_keys(problem, batch, query));

  // Work is a group of rows of dQ, or of dK and dV; those are sums over the heads of Q that share a head of K and V.
  const std::int64_t work_of_dQ = problem.batch * heads * groups_of(dQ);
  const std::int64_t all_work = work_of_dQ + problem.batch * kv_heads * groups_of(dK);
  std::vector<std::array<Largest, 2>> largest(all_work);  // of dQ alone, or of dK and dV
  const auto compute = [&](std::int64_t work) {
    const bool rows_are_queries = work < work_of_dQ;
    const Reference& reference = rows_are_queries ? dQ : dK;
    const std::int64_t groups = groups_of(reference), index = rows_are_queries ? work : work - work_of_dQ;
    const std::int64_t batch = index / groups / reference.problem.heads,
                       head = index / groups % reference.problem.heads, first = index % groups * kRows;
    std::vector<std::int64_t> rows;
    for (std::int64_t i = first; i < std::min(first + kRows, reference.rows.count()); ++i)
      rows.push_back(reference.rows.row(batch, head, i));

    const std::int64_t count = std::ssize(rows);
    GradientRows<double> exact(count, problem);
    GradientRows<float> base(count, problem);
    const std::int64_t sharing = rows_are_queries ? 1 : heads / kv_heads;
    const auto padding = std::ranges::lower_bound(rows, num_queries(reference.problem, batch));
    const std::span others(rows.begin(), padding);
    for (std::int64_t i = 0; i < sharing && !others.empty(); ++i)
      add_head(exact, base, inputs, visible[batch], base_D, rows_are_queries, batch, head * sharing + i, others);
    for (double& x : exact.of_a) x *= inputs.scale();
    for (float& x : base.of_a) x *= inputs.scale();
    if (rows_are_queries) {
      largest[work][0] = keep(dQ, batch, head, first, count, exact.of_a, base.of_a);
    } else {
      largest[work][0] = keep(dK, batch, head, first, count, exact.of_a, base.of_a);
      largest[work][1] = keep(dV, batch, head, first, count, exact.of_b, base.of_b);
    }
  };
  parallel_for(all_work, compute, progress, threads);

  const std::span all(largest);
  set_bounds(dQ, all.first(work_of_dQ), 0);
  set_bounds(dK, all.subspan(work_of_dQ), 0);
  set_bounds(dV, all.subspan(work_of_dQ), 1);
  write_cached(cache, std::vector<std::span<const std::byte>>(cached.begin(), cached.end()));
  return references;
}

}  // namespace flash_ladder
