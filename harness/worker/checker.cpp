#include "worker/checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "problem/problem.h"
#include "worker/parallel.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kMaxMismatches = 8;
constexpr std::int64_t kMaxMapColumns = 64;
constexpr std::int64_t kMaxMapLines = 16;
constexpr std::uint32_t kUnwrittenFloat = std::uint32_t{kPoison} << 16 | kPoison;

// The larger of two errors; a NaN is larger than any number.
double worse(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

// What was found in one head.
struct HeadFindings {
  double max_abs_error = 0;
  std::int64_t compared = 0, outside_bound = 0, not_finite = 0, unwritten = 0;
  std::vector<Mismatch> mismatches;  // `expected` is NaN if the row was not compared
  std::vector<bool> wrong_tiles;

  bool wrong() const { return outside_bound + not_finite + unwritten > 0; }
};

HeadFindings check_head(const Reference& reference, const HostBuffer& output, std::int64_t batch, std::int64_t head,
                        std::int64_t block_q) {
  const AttentionProblem& problem = reference.problem;
  const TensorLayout layout = output_layout(problem);
  const double bound = reference.bound[batch * problem.heads + head];
  HeadFindings found;
  found.wrong_tiles.resize((problem.seq_len + block_q - 1) / block_q);

  const std::int64_t head_dim_v = value_head_dim(problem);
  std::int64_t next_selected = 0;  // index of the first selected row that is at or after `row`
  for (std::int64_t row = 0; row < num_rows(problem, batch); ++row) {
    const std::uint16_t* got = output.data() + layout.row(batch, head, row);
    const double* expected = nullptr;
    if (next_selected < reference.rows.count() && reference.rows.row(batch, head, next_selected) == row)
      expected = reference.row(batch, head, next_selected++);
    if (expected != nullptr) found.compared += head_dim_v;

    for (std::int64_t column = 0; column < head_dim_v; ++column) {
      const std::uint16_t bits = got[column];
      const bool finite = is_finite(problem.dtype, bits);
      bool wrong = !finite;
      if (bits == kPoison)
        ++found.unwritten;
      else if (!finite)
        ++found.not_finite;
      if (expected != nullptr) {
        const double error = std::abs(element_to_float(problem.dtype, bits) - expected[column]);
        found.max_abs_error = worse(found.max_abs_error, error);
        if (finite && !(error <= bound)) {
          wrong = true;
          ++found.outside_bound;
        }
      } else if (!finite) {
        found.max_abs_error = worse(found.max_abs_error, std::abs(element_to_float(problem.dtype, bits)));
      }
      if (!wrong) continue;
      found.wrong_tiles[row / block_q] = true;
      if (found.mismatches.size() < kMaxMismatches)
        found.mismatches.push_back(
            {.batch = batch,
             .head = head,
             .row = row,
             .column = column,
             .got = element_to_float(problem.dtype, bits),
             .expected = expected != nullptr ? expected[column] : std::numeric_limits<double>::quiet_NaN()});
    }
  }
  return found;
}

// One line per head, with one character per query tile, or per several if there are many.
std::string draw_tile_map(const AttentionProblem& problem, const std::vector<HeadFindings>& heads,
                          std::int64_t block_q) {
  const std::int64_t num_tiles = std::ssize(heads.front().wrong_tiles);
  const std::int64_t tiles_per_column = (num_tiles + kMaxMapColumns - 1) / kMaxMapColumns;
  std::string map = fmt::format("X wrong, . right; {} queries per column\n", tiles_per_column * block_q);
  const bool all = std::ssize(heads) <= kMaxMapLines;  // otherwise only the heads with something wrong
  std::int64_t lines = 0, left_out = 0;
  for (std::int64_t i = 0; i < std::ssize(heads); ++i) {
    if (!all && !heads[i].wrong()) continue;
    if (lines == kMaxMapLines) {
      ++left_out;
      continue;
    }
    ++lines;
    std::string line;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      if (tile % tiles_per_column == 0) line += '.';
      if (heads[i].wrong_tiles[tile]) line.back() = 'X';
    }
    map += fmt::format("batch {:2} head {:2}  {}\n", i / problem.heads, i % problem.heads, line);
  }
  if (left_out > 0) map += fmt::format("and {} more heads with wrong tiles\n", left_out);
  return map;
}

std::string place(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
  return fmt::format("batch {}, head {}, row {}, column {}", batch, head, row, column);
}

struct Position {
  std::int64_t batch, head, row, column;
};

// The row of a log-sum-exp: of element i of [batch][heads][seq_len], or of [heads][total].
Position row_of_log_sum_exp(const AttentionProblem& problem, std::int64_t i) {
  if (!problem.packed) {
    const std::int64_t in_all = i / problem.seq_len;
    return {in_all / problem.heads, in_all % problem.heads, i % problem.seq_len, 0};
  }
  const std::vector<std::int64_t> first = first_rows(problem);
  const std::int64_t row = i % first.back();
  const std::int64_t batch = std::upper_bound(first.begin(), first.end(), row) - first.begin() - 1;
  return {batch, i / first.back(), row - first[batch], 0};
}

std::string place_of_row(const AttentionProblem& problem, std::int64_t i) {
  const auto [batch, head, row, column] = row_of_log_sum_exp(problem, i);
  return fmt::format("batch {}, head {}, row {}", batch, head, row);
}

// The first element at which two buffers of the same layout differ.
std::optional<Position> first_difference(const std::uint16_t* a, const std::uint16_t* b, const TensorLayout& layout,
                                         const AttentionProblem& problem, std::int64_t heads, std::int64_t head_dim,
                                         std::int64_t (*rows_of)(const AttentionProblem&, std::int64_t batch),
                                         int threads) {
  std::vector<std::optional<Position>> found(problem.batch * heads);
  const auto compare = [&](std::int64_t i) {
    const std::int64_t batch = i / heads, head = i % heads;
    for (std::int64_t row = 0; row < rows_of(problem, batch) && !found[i]; ++row) {
      const std::uint16_t* row_a = a + layout.row(batch, head, row);
      const std::uint16_t* row_b = b + layout.row(batch, head, row);
      if (std::memcmp(row_a, row_b, head_dim * sizeof(std::uint16_t)) == 0) continue;
      const std::int64_t column = std::mismatch(row_a, row_a + head_dim, row_b).first - row_a;
      found[i] = {batch, head, row, column};
    }
  };
  parallel_for(std::ssize(found), compare, {}, threads);
  for (const auto& position : found)
    if (position) return position;
  return std::nullopt;
}

}  // namespace

Verdict check_output(const Inputs& inputs, const Reference& reference, const HostBuffer& output, std::int64_t block_q,
                     int threads) {
  Verdict verdict = check_gradient(reference, output, block_q, threads);
  for (Mismatch& mismatch : verdict.mismatches)
    if (std::isnan(mismatch.expected)) {
      const std::int64_t row[] = {mismatch.row};
      mismatch.expected = attend_rows(inputs, mismatch.batch, mismatch.head, row).exact[mismatch.column];
    }
  return verdict;
}

Verdict check_gradient(const Reference& reference, const HostBuffer& output, std::int64_t block, int threads) {
  const AttentionProblem& problem = reference.problem;
  std::vector<HeadFindings> heads(problem.batch * problem.heads);
  parallel_for(
      std::ssize(heads),
      [&](std::int64_t i) { heads[i] = check_head(reference, output, i / problem.heads, i % problem.heads, block); },
      {}, threads);

  Verdict verdict;
  std::int64_t compared = 0, outside_bound = 0, not_finite = 0, unwritten = 0;
  double bound_of_worst = 0, error_of_worst = 0;
  for (std::int64_t i = 0; i < std::ssize(heads); ++i) {
    const HeadFindings& head = heads[i];
    compared += head.compared;
    outside_bound += head.outside_bound;
    not_finite += head.not_finite;
    unwritten += head.unwritten;
    verdict.max_abs_error = worse(verdict.max_abs_error, head.max_abs_error);
    const double relative_error = head.max_abs_error / reference.bound[i];
    if (!std::isnan(verdict.relative_error) && !(relative_error <= verdict.relative_error)) {
      bound_of_worst = reference.bound[i];
      error_of_worst = head.max_abs_error;
    }
    verdict.relative_error = worse(verdict.relative_error, relative_error);
    for (const Mismatch& mismatch : head.mismatches)
      if (verdict.mismatches.size() < kMaxMismatches) verdict.mismatches.push_back(mismatch);
  }
  if (verdict.mismatches.empty()) return verdict;

  verdict.tile_map = draw_tile_map(problem, heads, block);

  std::vector<std::string> parts;
  if (unwritten > 0)
    parts.push_back(fmt::format("{} of {} elements were never written", unwritten, output_size(problem)));
  if (not_finite > 0)
    parts.push_back(fmt::format("{} of {} elements are NaN or infinite", not_finite, output_size(problem)));
  if (outside_bound > 0) {
    std::string worst;
    if (std::isfinite(error_of_worst))
      worst = fmt::format(", by up to {:.3g} where {:.3g} is allowed", error_of_worst, bound_of_worst);
    parts.push_back(fmt::format("{} of {} compared elements are off{}", outside_bound, compared, worst));
  }
  const Mismatch& first = verdict.mismatches.front();
  verdict.reason = fmt::format("{}; the first at {}", fmt::join(parts, "; "),
                               place(first.batch, first.head, first.row, first.column));
  return verdict;
}

std::optional<std::string> find_guard_damage(const std::string& buffer, std::span<const std::uint16_t> before,
                                             std::span<const std::uint16_t> after) {
  const auto changed = [](std::uint16_t bits) { return bits != kGuard; };
  const auto count_before = std::count_if(before.begin(), before.end(), changed);
  const auto count_after = std::count_if(after.begin(), after.end(), changed);
  std::vector<std::string> parts;
  if (count_before > 0) {  // in the band before the buffer, the nearest element is the last
    const auto nearest = std::find_if(before.rbegin(), before.rend(), changed) - before.rbegin();
    parts.push_back(
        fmt::format("{} elements before the start of {}, the nearest {} before it", count_before, buffer, nearest + 1));
  }
  if (count_after > 0) {
    const auto nearest = std::find_if(after.begin(), after.end(), changed) - after.begin();
    parts.push_back(
        fmt::format("{} elements past the end of {}, the nearest {} past it", count_after, buffer, nearest + 1));
  }
  if (parts.empty()) return std::nullopt;
  return fmt::format("wrote out of bounds: {}", fmt::join(parts, " and "));
}

std::optional<std::string> find_changed_input(const Inputs& before, const std::vector<HostBuffer>& after, int threads) {
  const AttentionProblem& problem = before.problem;
  struct Part {
    const char* name;
    const TensorLayout& layout;
    int buffer;
    std::int64_t heads, head_dim;
    std::int64_t (*rows_of)(const AttentionProblem&, std::int64_t batch);
  };
  const std::int64_t kv_heads = num_kv_heads(problem);
  const auto no_rows = [](const AttentionProblem&, std::int64_t) -> std::int64_t { return 0; };
  const auto rows_of_cache = problem.append ? +no_rows : &num_rows_kv;
  for (const Part& part : {Part{"Q", before.Q, before.Q_buffer, problem.heads, problem.head_dim, num_rows},
                           Part{"K", before.K, before.K_buffer, kv_heads, problem.head_dim, rows_of_cache},
                           Part{"V", before.V, before.V_buffer, kv_heads, value_head_dim(problem), rows_of_cache}}) {
    const std::uint16_t* was = before.buffers[part.buffer].data();
    const std::uint16_t* is = after[part.buffer].data();
    const auto found =
        first_difference(was, is, part.layout, problem, part.heads, part.head_dim, part.rows_of, threads);
    if (!found) continue;
    const std::int64_t element = part.layout.row(found->batch, found->head, found->row) + found->column;
    return fmt::format("changed its input {}: first at {}, from {} to {}", part.name,
                       place(found->batch, found->head, found->row, found->column),
                       element_to_float(problem.dtype, was[element]), element_to_float(problem.dtype, is[element]));
  }
  return std::nullopt;
}

std::optional<std::string> find_wrong_append(const Inputs& before, const std::vector<HostBuffer>& after) {
  const AttentionProblem& problem = before.problem;
  const std::int64_t kv_heads = num_kv_heads(problem), head_dim = problem.head_dim;
  for (const bool is_V : {false, true}) {
    const char* name = is_V ? "V" : "K";
    const TensorLayout& layout = is_V ? before.V : before.K;
    const int buffer = is_V ? before.V_buffer : before.K_buffer;
    const std::uint16_t* is = after[buffer].data();
    std::vector<std::uint16_t> expected(before.buffers[buffer].data(),
                                        before.buffers[buffer].data() + before.buffers[buffer].size());
    for (std::int64_t i = 0; i < problem.batch * kv_heads; ++i) {
      const std::int64_t batch = i / kv_heads, head = i % kv_heads, row = num_keys(problem, batch) - 1;
      const std::int64_t offset = layout.row(batch, head, row);
      std::vector<double> exact(head_dim), bound(head_dim);
      for (std::int64_t d = 0; d < head_dim; ++d) exact[d] = element_to_float(problem.dtype, expected[offset + d]);
      if (!is_V && problem.rotary_dim != 0) {
        const double largest = std::abs(*std::ranges::max_element(exact, {}, [](double x) { return std::abs(x); }));
        rotate(before, batch, exact.data());
        for (std::int64_t d = 0; d < problem.rotary_dim; ++d)
          bound[d] = ulp(problem.dtype, exact[d]) / 2 + std::ldexp(largest, -21);
      }
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const double got = element_to_float(problem.dtype, is[offset + d]);
        if (!(std::abs(got - exact[d]) <= bound[d]))
          return fmt::format("the new row of {} is wrong in the cache: first at {}, {} instead of {}", name,
                             place(batch, head, row, d), got, exact[d]);
        expected[offset + d] = is[offset + d];
      }
    }
    const auto [was, changed] = std::ranges::mismatch(expected, std::span(is, expected.size()));
    if (was != expected.end())
      return fmt::format("changed {} beside the new rows: first at element {} of its memory, from {} to {}", name,
                         was - expected.begin(), element_to_float(problem.dtype, *was),
                         element_to_float(problem.dtype, *changed));
  }
  return std::nullopt;
}

std::optional<std::string> find_difference(const AttentionProblem& problem, const HostBuffer& first,
                                           const HostBuffer& second, int threads) {
  const TensorLayout layout = output_layout(problem);
  const auto found = first_difference(first.data(), second.data(), layout, problem, problem.heads,
                                      value_head_dim(problem), num_rows, threads);
  if (!found) return std::nullopt;
  const std::int64_t element = layout.row(found->batch, found->head, found->row) + found->column;
  return fmt::format("two launches with the same inputs differ: first at {}, {} and {} (bits 0x{:04x} and 0x{:04x})",
                     place(found->batch, found->head, found->row, found->column),
                     element_to_float(problem.dtype, first.data()[element]),
                     element_to_float(problem.dtype, second.data()[element]), first.data()[element],
                     second.data()[element]);
}

std::optional<std::string> find_difference(const AttentionProblem& problem, std::span<const float> first,
                                           std::span<const float> second) {
  for (std::size_t i = 0; i < first.size(); ++i)
    if (std::bit_cast<std::uint32_t>(first[i]) != std::bit_cast<std::uint32_t>(second[i]))
      return fmt::format("two launches with the same inputs differ: first in the log-sum-exp at {}, {} and {}",
                         place_of_row(problem, static_cast<std::int64_t>(i)), first[i], second[i]);
  return std::nullopt;
}

std::optional<std::string> find_wrong_log_sum_exp(const Reference& reference, std::span<const float> got) {
  const AttentionProblem& problem = reference.problem;
  const std::int64_t count = reference.rows.count();
  std::int64_t wrong = 0, unwritten = 0;
  std::string first;
  double largest_error = 0, its_bound = 0;
  for (std::int64_t i = 0; i < std::ssize(got); ++i) {
    const auto [batch, head, row, column] = row_of_log_sum_exp(problem, i);
    const std::int64_t in_all = batch * problem.heads + head;
    const std::int64_t index = row / reference.rows.tile;
    const bool is_selected = reference.rows.row(batch, head, index) == row;
    const auto [begin, end] = visible_keys(problem, batch, row);
    const bool sees_a_key = begin < end;
    const double expected = is_selected ? reference.log_sum_exp[in_all * count + index] : got[i];
    const double bound = reference.log_sum_exp_bound[in_all], error = std::abs(got[i] - expected);
    const bool right = sees_a_key ? std::isfinite(got[i]) && error <= bound : std::isinf(got[i]) && got[i] < 0;
    if (right) continue;
    if (wrong++ == 0)
      first = fmt::format("{}: {}{}", place_of_row(problem, i), got[i],
                          is_selected  ? fmt::format(" instead of {:.9g}", expected)
                          : sees_a_key ? ""
                                       : " instead of -inf");
    if (std::bit_cast<std::uint32_t>(got[i]) == kUnwrittenFloat) ++unwritten;
    if (std::isfinite(error) && error > largest_error) {
      largest_error = error;
      its_bound = bound;
    }
  }
  if (wrong == 0) return std::nullopt;
  std::string how;
  if (unwritten > 0) how += fmt::format(", {} of them were never written", unwritten);
  if (largest_error > 0) how += fmt::format(", by up to {:.3g} where {:.3g} is allowed", largest_error, its_bound);
  return fmt::format("the log-sum-exp of {} of {} rows is wrong{}; the first at {}", wrong, got.size(), how, first);
}

}  // namespace flash_ladder
