#include "worker/diagnosis/pattern.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "worker/checker.h"

namespace flash_ladder {
namespace {

using Set = std::vector<bool>;

bool all(const Set& set) { return std::find(set.begin(), set.end(), false) == set.end(); }

std::vector<std::int64_t> members(const Set& set) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < std::ssize(set); ++i)
    if (set[i]) found.push_back(i);
  return found;
}

bool has_period(const Set& set, std::int64_t period) {
  for (std::int64_t i = period; i < std::ssize(set); ++i)
    if (set[i] != set[i - period]) return false;
  return true;
}

bool is_half(const Set& rows, int half) {
  for (std::int64_t i = 0; i < std::ssize(rows); ++i)
    if (rows[i] != (i / 8 % 2 == half)) return false;
  return true;
}

// The units of `size` neighbours that make up the set; empty if a unit is only partly in it, or if it contains all of them.
std::vector<std::int64_t> whole_units(const Set& set, std::int64_t size) {
  std::vector<std::int64_t> units;
  for (std::int64_t first = 0; first < std::ssize(set); first += size) {
    for (std::int64_t i = first; i < first + size; ++i)
      if (set[i] != set[first]) return {};
    if (set[first]) units.push_back(first / size);
  }
  return std::ssize(units) * size == std::ssize(set) ? std::vector<std::int64_t>{} : units;
}

std::string describe_rows(const Set& rows, const Tiling& tiling, const char* row) {
  if (all(rows)) return "all rows";
  const auto ranges = describe_set(rows);
  std::string text = ranges ? fmt::format("rows {}", *ranges)
                            : fmt::format("{} of the {} rows of a {} tile", members(rows).size(), rows.size(), row);
  if (ranges && ranges->find("modulo") == std::string::npos)
    text += fmt::format(" of a {} tile of {}", row, tiling.block_q);
  if (!tiling.has_fragments()) return text;
  if (is_half(rows, 0)) return text + " (half 0 of every mma tile: registers D[0] and D[1])";
  if (is_half(rows, 1)) return text + " (half 1 of every mma tile: registers D[2] and D[3])";
  const auto warps = whole_units(rows, tiling.rows_per_warp());
  if (!warps.empty())
    return text + fmt::format(" ({} {} of {})", warps.size() == 1 ? "warp" : "warps", fmt::join(warps, ", "),
                              tiling.num_warps);
  const auto tiles = whole_units(Set(rows.begin(), rows.begin() + tiling.rows_per_warp()), 16);
  if (tiles.size() == 1 && has_period(rows, tiling.rows_per_warp()))
    text += fmt::format(" (mma_m {} of every warp)", tiles.front());
  return text;
}

std::string describe_columns(const Set& columns, const Tiling& tiling) {
  if (all(columns)) return "all columns";
  const auto ranges = describe_set(columns);
  if (!ranges) return fmt::format("{} of {} columns", members(columns).size(), columns.size());
  std::string text = fmt::format("columns {}", *ranges);
  if (!tiling.has_fragments() || !has_period(columns, 8)) return text;
  const Set eight(columns.begin(), columns.begin() + 8);
  if (has_period(eight, 2)) return text + (eight[0] ? " (registers D[0] and D[2])" : " (registers D[1] and D[3])");
  const auto lanes = whole_units(eight, 2);
  if (!lanes.empty()) text += fmt::format(" (lanes {} modulo 4)", fmt::join(lanes, ", "));
  return text;
}

std::string describe_heads(const Set& heads, const AttentionProblem& problem) {
  if (heads.size() == 1) return "";
  if (all(heads)) return "all heads";
  Set batch_entries(problem.batch), numbers(problem.heads);
  for (const std::int64_t i : members(heads)) batch_entries[i / problem.heads] = numbers[i % problem.heads] = true;
  const auto in_batch = members(batch_entries), in_heads = members(numbers);
  if (in_batch.size() * in_heads.size() != members(heads).size())
    return fmt::format("{} of {} heads", members(heads).size(), heads.size());
  std::vector<std::string> parts;
  if (!all(numbers))
    parts.push_back(
        fmt::format("{} {}", in_heads.size() == 1 ? "head" : "heads", describe_set(numbers).value_or("some")));
  if (!all(batch_entries))
    parts.push_back(fmt::format("batch {} {}", in_batch.size() == 1 ? "entry" : "entries",
                                describe_set(batch_entries).value_or("some")));
  else if (problem.batch > 1)
    parts.push_back("every batch entry");
  return fmt::format("{}", fmt::join(parts, " of "));
}

// "query tile 3 of 4"; `row` is "query" or "key".
std::string describe_tiles(const Set& tiles, const char* row) {
  if (tiles.size() == 1) return "";
  if (all(tiles)) return fmt::format("all {} tiles", row);
  const auto wrong = members(tiles);
  const auto ranges = describe_set(tiles);
  if (!ranges) return fmt::format("{} of {} {} tiles", wrong.size(), tiles.size(), row);
  return fmt::format("{} {} {} of {}", row, wrong.size() == 1 ? "tile" : "tiles", *ranges, tiles.size());
}

// Fits one factor to a group of elements, by least squares, if there is one: each element may deviate from it by as
// much as from the reference.
class FactorFit {
 public:
  void add(double got, double expected, double bound) {
    elements_.push_back({got, expected, bound});
    got_times_expected_ += got * expected;
    expected_squared_ += expected * expected;
  }
  std::optional<double> factor() const {
    const double factor = got_times_expected_ / expected_squared_;
    if (!std::isfinite(factor)) return std::nullopt;
    bool telling = false;  // an element must be far from 0, or any factor would fit
    for (const auto& [got, expected, bound] : elements_) {
      if (!(std::abs(got - factor * expected) <= bound * std::max(1.0, std::abs(factor)))) return std::nullopt;
      telling = telling || std::abs(expected) > 8 * bound;
    }
    return telling ? std::optional(factor) : std::nullopt;
  }

 private:
  struct Pair {
    double got, expected, bound;
  };
  std::vector<Pair> elements_;
  double got_times_expected_ = 0, expected_squared_ = 0;
};

// "0.5", or "0.41 to 0.97".
std::string describe_range(double least, double most) {
  const std::string from = fmt::format("{:.3g}", least), to = fmt::format("{:.3g}", most);
  return from == to ? from : from + " to " + to;
}

// The smallest and the largest of the factors, if every group has one.
std::optional<std::string> common_range(const std::vector<FactorFit>& fits) {
  double least = INFINITY, most = -INFINITY;
  for (const FactorFit& fit : fits) {
    const auto factor = fit.factor();
    if (!factor) return std::nullopt;
    least = std::min(least, *factor);
    most = std::max(most, *factor);
  }
  return describe_range(least, most);
}

}  // namespace

WrongElements find_wrong(const Reference& reference, const HostBuffer& output, const Tiling& tiling) {
  const AttentionProblem& problem = reference.problem;
  const TensorLayout layout = output_layout(problem);
  WrongElements found;
  found.heads.resize(problem.batch * problem.heads);
  found.q_tiles.resize((problem.seq_len + tiling.block_q - 1) / tiling.block_q);
  found.tile_rows.resize(tiling.block_q);
  found.columns.resize(value_head_dim(problem));
  found.all_rows_compared = reference.rows.count() == problem.seq_len;

  const auto for_each_row = [&](const auto& visit) {
    for (std::int64_t batch = 0; batch < problem.batch; ++batch)
      for (std::int64_t head = 0; head < problem.heads; ++head)
        for (std::int64_t index = 0; index < reference.rows.count(); ++index) {
          const std::int64_t row = reference.rows.row(batch, head, index);
          if (row < num_rows(problem, batch)) visit(WrongRow{batch, head, row, index});
        }
  };
  for_each_row([&](const WrongRow& at) {
    const double* expected = reference.row(at.batch, at.head, at.index);
    const double bound = reference.bound[at.batch * problem.heads + at.head];
    const std::uint16_t* got = output.data() + layout.row(at.batch, at.head, at.row);
    found.compared += value_head_dim(problem);
    bool row_is_wrong = false;
    for (std::int64_t column = 0; column < value_head_dim(problem); ++column) {
      const double value = element_to_float(problem.dtype, got[column]);
      if (std::abs(value - expected[column]) <= bound) continue;
      if (found.wrong++ == 0) found.first_column = column;
      if (got[column] == kPoison)
        ++found.unwritten;
      else if (!std::isfinite(value))
        ++found.not_finite;
      row_is_wrong = found.columns[column] = true;
    }
    if (!row_is_wrong) return;
    found.heads[at.batch * problem.heads + at.head] = true;
    found.q_tiles[at.row / tiling.block_q] = true;
    found.tile_rows[at.row % tiling.block_q] = true;
    found.rows.push_back(at);
  });
  const std::int64_t wrong_columns = std::count(found.columns.begin(), found.columns.end(), true);
  for_each_row([&](const WrongRow& at) {
    if (found.heads[at.batch * problem.heads + at.head] && found.q_tiles[at.row / tiling.block_q] &&
        found.tile_rows[at.row % tiling.block_q])
      found.around += wrong_columns;
  });
  return found;
}

std::optional<std::string> describe_set(const std::vector<bool>& wrong) {
  constexpr std::size_t kMaxRanges = 4;
  if (all(wrong)) return "";
  const std::int64_t size = std::ssize(wrong);
  std::int64_t period = size;
  for (std::int64_t shorter = 2; 2 * shorter <= size && period == size; shorter *= 2)
    if (has_period(wrong, shorter)) period = shorter;
  std::vector<std::string> ranges;
  for (std::int64_t first = 0; first < period; ++first) {
    if (!wrong[first]) continue;
    std::int64_t last = first;
    while (last + 1 < period && wrong[last + 1]) ++last;
    ranges.push_back(first == last ? std::to_string(first) : fmt::format("{}–{}", first, last));
    first = last;
  }
  if (ranges.size() > kMaxRanges) return std::nullopt;
  return fmt::format("{}{}", fmt::join(ranges, ", "), period < size ? fmt::format(" modulo {}", period) : "");
}

std::string describe_places(const WrongElements& wrong, const AttentionProblem& problem, const Tiling& tiling,
                            const char* row) {
  std::vector<std::string> parts = {wrong.all_rows_compared
                                        ? describe_rows(wrong.tile_rows, tiling, row)
                                        : fmt::format("{} rows, where one row in {} was compared", wrong.rows.size(),
                                                      output_size(problem) / wrong.compared),
                                    describe_columns(wrong.columns, tiling)};
  for (const std::string& part : {describe_tiles(wrong.q_tiles, row), describe_heads(wrong.heads, problem)})
    if (!part.empty()) parts.push_back(part);
  std::string text = fmt::format("Wrong in {}", fmt::join(parts, ", "));
  const double share = 100.0 * wrong.wrong / wrong.around;
  if (share < 99) text += fmt::format("; {:.2g} % of the elements there", share);
  if (wrong.unwritten == wrong.wrong)
    text += "; none of them was written";
  else if (wrong.unwritten + wrong.not_finite == wrong.wrong)
    text += "; all of them are NaN or infinite, as after 0 / 0 or a read of uninitialised memory";
  else if (wrong.unwritten + wrong.not_finite > 0)
    text += fmt::format("; {} of them are NaN, infinite or not written", wrong.unwritten + wrong.not_finite);
  return text + ".";
}

std::optional<std::string> describe_factor(const Reference& reference, const HostBuffer& output,
                                           const WrongElements& wrong, bool is_gradient) {
  const AttentionProblem& problem = reference.problem;
  const TensorLayout layout = output_layout(problem);
  FactorFit one;
  std::vector<FactorFit> rows(wrong.rows.size()), columns(value_head_dim(problem));
  for (std::size_t i = 0; i < wrong.rows.size(); ++i) {
    const WrongRow& at = wrong.rows[i];
    const double* expected = reference.row(at.batch, at.head, at.index);
    const double bound = reference.bound[at.batch * problem.heads + at.head];
    const std::uint16_t* got = output.data() + layout.row(at.batch, at.head, at.row);
    for (std::int64_t column = 0; column < value_head_dim(problem); ++column) {
      const double value = element_to_float(problem.dtype, got[column]);
      one.add(value, expected[column], bound);
      rows[i].add(value, expected[column], bound);
      columns[column].add(value, expected[column], bound);
    }
  }
  if (const auto factor = one.factor())
    return fmt::format("The wrong rows are the right ones times {:.3g}, with the same factor for every element.",
                       *factor);
  if (const auto range = common_range(rows))
    return fmt::format("Each wrong row is the right one times its own factor, {}{}.", *range,
                       is_gradient ? "" : ": suggests its row sum, by which it is divided");
  if (rows.size() >= 8)  // with few rows or columns a factor would fit by chance
    if (const auto range = common_range(columns))
      return fmt::format("In the wrong rows each column is the right one times its own factor, {}.", *range);
  return std::nullopt;
}

std::optional<FragmentElement> fragment_element(const Tiling& tiling, std::int64_t row, std::int64_t column) {
  if (!tiling.has_fragments()) return std::nullopt;
  const int in_tile = static_cast<int>(row % tiling.block_q), in_warp = in_tile % tiling.rows_per_warp();
  const int in_mma = in_warp % 16, group = in_mma % 8, half = in_mma / 8;
  const int d = static_cast<int>(column);
  return FragmentElement{.warp = in_tile / tiling.rows_per_warp(),
                         .lane = group * 4 + d % 8 / 2,
                         .mma_m = in_warp / 16,
                         .mma_n = d / 8,
                         .reg = 2 * half + d % 2};
}

}  // namespace flash_ladder
