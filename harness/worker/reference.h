// The expected output, and how far from it a correct kernel may be.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/problem.h"
#include "problem/problem.h"
#include "worker/inputs.h"
#include "worker/parallel.h"

namespace flash_ladder {

/// The rows of the output that are compared with the reference, for each (batch, head): one out of every `tile` rows,
/// drawn from the seed. With tile 1 these are all rows.
struct RowSelection {
  std::int64_t seq_len = 0;
  std::int64_t tile = 1;
  std::uint64_t seed = 0;

  /// The number of selected rows of one head.
  std::int64_t count() const { return (seq_len + tile - 1) / tile; }
  /// The selected row of tile `index`.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t index) const;
};

/// Attention in float64, and the bound derived from correct rounding. A row sees the keys of visible_keys(); a row that
/// sees no key is 0, and so are rows of padding.
struct Reference {
  AttentionProblem problem;
  RowSelection rows;
  std::vector<double> output;  // [batch][heads][rows.count()][head_dim_v]
  // [batch][heads]: 2 · max|base - output| + one ulp of the type at max|output|, over the selected rows. A kernel's
  // element is right if it is at most this far from `output`.
  std::vector<double> bound;
  // [batch][heads][rows.count()]: L = m + log l, as ExtendedArgs::log_sum_exp receives it.
  std::vector<double> log_sum_exp;
  // [batch][heads]: 2 · max|base - L| + 2^-18 · max(1, max|L|), over the selected rows that see a key. fp32 has 24 bits. The other six
  // are for tensor cores, which truncate their sums, and for an exponential and a logarithm that are not exact. With softcap, a
  // score is softcap · tanh(…), and 2^-22 · softcap is added: a tanh of fast exponentials, 1 - 2 / (exp(2x) + 1), has an error of
  // about 2^-22 even where it is close to 0.
  std::vector<double> log_sum_exp_bound;

  /// The head_dim_v elements of a selected row.
  const double* row(std::int64_t batch, std::int64_t head, std::int64_t index) const {
    return output.data() + ((batch * problem.heads + head) * rows.count() + index) * value_head_dim(problem);
  }
};

/// Some rows of one head, computed in two ways.
struct AttendedRows {
  std::vector<double> exact;  // [row][head_dim_v], float64 from end to end
  // [row][head_dim_v], attention with the rounding of a good kernel: S in fp32, P = exp(S - rowmax) rounded to the input
  // type (round_P), the sums of P and of P V in fp32, their quotient rounded to the output's type. In e4m3, Q Kᵀ and P V are sums of
  // a tensor core: add_row_times_matrix_of_8_bits().
  std::vector<float> base;
  // [row], L: in float64, and in fp32 from S in fp32. -inf if the row sees no key.
  std::vector<double> exact_log_sum_exp = {};
  std::vector<float> base_log_sum_exp = {};
};
/// Without base, its two members are empty, and a third of the time is saved.
AttendedRows attend_rows(const Inputs& inputs, std::int64_t batch, std::int64_t head,
                         std::span<const std::int64_t> rows, bool with_base = true);

/// The reference for all selected rows. Work: 2 · (head_dim + head_dim_v) multiplications per selected row and key.
Reference make_reference(const Inputs& inputs, const RowSelection& rows, const Progress& progress = {},
                         int threads = 0);

}  // namespace flash_ladder
