#include "worker/diagnosis/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>

#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

constexpr float kGap = 2;           // between the scores of a 0 and a 1: P differs by e², and small ones remain normal
constexpr float kCertain = 24;      // between the score of the one key and all others, whose P is then below any ulp
constexpr double kTolerance = 1.5;  // of a ratio of two P that should be equal

std::int64_t bits_for(std::int64_t count) { return std::bit_width(static_cast<std::uint64_t>(count - 1)); }

}  // namespace

LayoutReader::LayoutReader(std::int64_t head_dim, std::int64_t block_kv, std::int64_t tiles)
    : head_dim_(head_dim),
      block_kv_(block_kv),
      tiles_(tiles),
      key_bits_(bits_for(tiles * block_kv)),
      column_bits_(bits_for(head_dim)) {}

// Bits of the column are inverted for odd keys: a row of S examines one column, and if all its bits were equal, P would
// not show whether they are 0 or 1.
bool LayoutReader::address_bit(std::int64_t key, std::int64_t column, std::int64_t bit) const {
  if (bit < key_bits_) return key >> bit & 1;
  return (column >> (bit - key_bits_) ^ key) & 1;
}

void LayoutReader::write(Inputs& inputs, std::int64_t first) const {
  if (heads() == 0) return;
  const AttentionProblem& problem = inputs.problem;
  const float scale = softmax_scale(head_dim_);
  const std::int64_t base = (tiles_ - 1) * block_kv_;
  const auto row_of = [&](int buffer, const TensorLayout& layout, std::int64_t head, std::int64_t row) {
    const auto elements = std::span(inputs.buffers[buffer].data() + layout.row(0, first + head, row), head_dim_);
    std::ranges::fill(elements, 0);
    return elements;
  };
  const auto number = [&](float value) { return element_from_float(problem.dtype, value); };
  for (std::int64_t head = 0; head < heads(); ++head) {
    const bool shows_S = head < bits();
    for (std::int64_t row = 0; row < problem.seq_len; ++row)
      row_of(inputs.Q_buffer, inputs.Q, head, row)[row % head_dim_] =
          number(shows_S ? kGap / scale : std::sqrt(kCertain / scale));
    for (std::int64_t key = 0; key < problem.seq_len_kv; ++key) {
      const auto k = row_of(inputs.K_buffer, inputs.K, head, key);
      const auto v = row_of(inputs.V_buffer, inputs.V, head, key);
      if (shows_S) {
        for (std::int64_t d = 0; d < head_dim_; ++d) k[d] = number(address_bit(key, d, head));
        if (key >= base) v[key - base] = number(1);
        continue;
      }
      if (key >= base) k[key - base] = number(std::sqrt(kCertain / scale));
      for (std::int64_t d = 0; d < head_dim_; ++d) {
        const std::int64_t value[] = {key % head_dim_, key / head_dim_, d};
        v[d] = number(static_cast<float>(value[head - bits()]));
      }
    }
  }
}

Layout LayoutReader::empty_layout() const {
  return {.first_key = (tiles_ - 1) * block_kv_,
          .keys = std::vector<bool>(block_kv_),
          .columns = std::vector<bool>(head_dim_),
          .keys_read = std::vector<std::int64_t>(block_kv_, kNotYet)};
}

void LayoutReader::note(Layout& layout, std::int64_t key, std::int64_t column, std::int64_t key_read,
                        std::int64_t column_read) {
  ++layout.elements;
  std::int64_t& before = layout.keys_read[key];
  if (before == kNotYet) before = key_read;
  layout.whole_rows = layout.whole_rows && key_read >= 0 && key_read == before && column_read == column;
  if (key_read == layout.first_key + key && column_read == column) return;
  ++layout.wrong;
  layout.keys[key] = layout.columns[column] = true;
  if (!layout.first || (layout.first->key_read < 0 && key_read >= 0))
    layout.first = Layout::Wrong{key, column, key_read, column_read};
}

std::optional<Layout> LayoutReader::read_S(const AttentionProblem& problem, const HostBuffer& output,
                                           std::int64_t first) const {
  if (heads() == 0) return std::nullopt;
  Layout layout = empty_layout();
  const TensorLayout rows = output_layout(problem);
  for (std::int64_t column = 0; column < head_dim_; ++column) {
    std::vector<std::int64_t> address(
        block_kv_);  // bits of the key, followed by those of the column; -1: not a single element
    for (std::int64_t bit = 0; bit < bits(); ++bit) {
      std::vector<double> P(block_kv_);
      for (std::int64_t key = 0; key < block_kv_; ++key)
        P[key] = element_to_float(problem.dtype, output.data()[rows.row(0, first + bit, column) + key]);
      const auto [least, most] = std::ranges::minmax(P);
      std::vector<bool> expected(block_kv_);
      for (std::int64_t key = 0; key < block_kv_; ++key)
        expected[key] = address_bit(layout.first_key + key, column, bit);
      // If all P are equal, there is nothing to compare them with. That is expected for the bits of the tile's number.
      const bool uniform = most <= kTolerance * least &&
                           std::ranges::adjacent_find(expected, std::ranges::not_equal_to{}) == expected.end();
      for (std::int64_t key = 0; key < block_kv_; ++key) {
        const bool is_one = uniform ? expected[key] : P[key] * kTolerance >= most;
        const bool is_zero = uniform ? !expected[key] : P[key] <= kTolerance * least;
        if (address[key] < 0) continue;
        if (is_one == is_zero || !(least > 0) || !std::isfinite(most))
          address[key] = -1;
        else
          address[key] |= static_cast<std::int64_t>(is_one) << bit;
      }
    }
    for (std::int64_t key = 0; key < block_kv_; ++key) {
      if (address[key] < 0) {
        note(layout, key, column, -1, -1);
        continue;
      }
      const std::int64_t key_read = address[key] & ((std::int64_t{1} << key_bits_) - 1);
      std::int64_t column_read = address[key] >> key_bits_;
      if (key_read & 1) column_read ^= (std::int64_t{1} << column_bits_) - 1;
      note(layout, key, column, key_read, column_read);
    }
  }
  return layout;
}

std::optional<Layout> LayoutReader::read_PV(const AttentionProblem& problem, const HostBuffer& output,
                                            std::int64_t first) const {
  if (heads() == 0) return std::nullopt;
  Layout layout = empty_layout();
  const TensorLayout rows = output_layout(problem);
  // A row of V times a factor is in its place but was divided by the wrong sum: then the values do not show which
  // element it is.
  const auto is_scaled = [&](std::int64_t key) {
    const std::uint16_t* columns = output.data() + rows.row(0, first + bits() + kHeadsOfPV - 1, key);
    const double factor = element_to_float(problem.dtype, columns[head_dim_ - 1]) / static_cast<double>(head_dim_ - 1);
    for (std::int64_t d = 1; d < head_dim_; ++d)
      if (!(std::abs(element_to_float(problem.dtype, columns[d]) / static_cast<double>(d) - factor) <= 0.01 * factor))
        return false;
    return factor > 0 && std::abs(factor - 1) > 0.01;
  };
  for (std::int64_t key = 0; key < block_kv_; ++key)
    if (is_scaled(key)) return std::nullopt;
  for (std::int64_t key = 0; key < block_kv_; ++key)
    for (std::int64_t column = 0; column < head_dim_; ++column) {
      std::int64_t shown[kHeadsOfPV];
      bool single = true;
      for (std::int64_t i = 0; i < kHeadsOfPV; ++i) {
        const double value =
            element_to_float(problem.dtype, output.data()[rows.row(0, first + bits() + i, key) + column]);
        // Half an ulp of bf16 just below 128 is a quarter.
        single = single && std::abs(value - std::round(value)) < 0.1 && value >= 0 && value < head_dim_;
        shown[i] = single ? std::llround(value) : -1;
      }
      if (single)
        note(layout, key, column, shown[0] + shown[1] * head_dim_, shown[2]);
      else
        note(layout, key, column, -1, -1);
    }
  return layout;
}

std::string describe_layout(const Layout& layout, const char* tensor) {
  const auto part = [](const std::vector<bool>& wrong) {
    const auto set = describe_set(wrong);
    if (!set) return fmt::format("{} of {}", std::count(wrong.begin(), wrong.end(), true), wrong.size());
    return set->empty() ? fmt::format("0–{}", wrong.size() - 1) : *set;
  };
  const Layout::Wrong& first = *layout.first;
  const std::string share = fmt::format("{:.3g} %", 100.0 * layout.wrong / layout.elements);
  if (layout.whole_rows)
    return fmt::format("keys {} are in a different order in P from that in V; where key {} belongs, there is key {}",
                       part(layout.keys), layout.first_key + first.key, first.key_read);
  return fmt::format(
      "{} of the elements of a tile of {} are not where they belong, keys {}, columns {}; where {}[{}][{}] (key, column) "
      "belongs, there is {}[{}][{}]",
      share, tensor, part(layout.keys), part(layout.columns), tensor, layout.first_key + first.key, first.column,
      tensor, first.key_read, first.column_read);
}

}  // namespace flash_ladder
