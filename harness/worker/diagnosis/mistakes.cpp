#include "worker/diagnosis/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "problem/problem.h"

namespace flash_ladder {
namespace {

constexpr int kLanesOfRow = 4;  // the lanes that share a row of a fragment D, with two neighbouring columns each

// The lane that holds a column.
int lane_of(std::int64_t column) { return column % 8 / 2; }

enum class Which { Q, K, V };

// Rows of one head of head_dim elements, each read from where the mistake reads it.
std::vector<double> gather(const Inputs& inputs, Which tensor, const std::function<Element(Element)>& map,
                           std::int64_t batch, std::int64_t head, std::span<const std::int64_t> rows,
                           std::int64_t head_dim) {
  const AttentionProblem& problem = inputs.problem;
  const auto elements = [&](const Element& at) {
    return tensor == Which::Q   ? inputs.Q_row(at.batch, at.head, at.row)
           : tensor == Which::K ? inputs.K_row(at.batch, at.head, at.row)
                                : inputs.V_row(at.batch, at.head, at.row);
  };
  std::vector<double> values(rows.size() * head_dim);
  std::vector<std::uint16_t> read(head_dim);
  std::vector<float> converted(head_dim);
  auto value = values.begin();
  for (const std::int64_t row : rows) {
    const std::uint16_t* from = elements({batch, head, row, 0});
    if (map) {
      for (std::int64_t column = 0; column < head_dim; ++column) {
        const Element at = map({batch, head, row, column});
        read[column] = elements(at)[at.column];
      }
      from = read.data();
    }
    elements_to_float(problem.dtype, from, head_dim, converted.data());
    value = std::ranges::copy(converted, value).out;
  }
  return values;
}

// One row: the running state of its four lanes, which is the same in all if they share the maximum and the sum.
void attend_row(const Mistake& mistake, int step_kv, Dtype dtype, KeyRange visible, std::span<const double> S,
                std::span<const double> V, std::span<double> exact, std::span<float> base) {
  const std::int64_t num_keys = std::ssize(S), head_dim = std::ssize(exact);
  std::array<double, kLanesOfRow> row_max, row_sum{};
  row_max.fill(-std::numeric_limits<double>::infinity());
  std::vector<double> rounded(head_dim), P(step_kv);
  std::fill(exact.begin(), exact.end(), 0.0);
  for (std::int64_t first = 0; first < num_keys; first += step_kv) {
    const std::int64_t keys = std::min<std::int64_t>(step_kv, num_keys - first);
    const auto counts = [&](std::int64_t key) {
      return visible.begin <= first + key && first + key < visible.end &&
             (!mistake.counts || mistake.counts(first + key));
    };
    std::array<double, kLanesOfRow> rescale, new_max = row_max;
    for (std::int64_t key = 0; key < keys; ++key)
      for (int lane = 0; lane < kLanesOfRow; ++lane)
        if (counts(key) && (mistake.shares_max || lane_of(key) == lane))
          new_max[lane] = std::max(new_max[lane], S[first + key]);
    for (int lane = 0; lane < kLanesOfRow; ++lane) {
      const bool empty = std::isinf(row_max[lane]);
      rescale[lane] = empty ? 0 : std::exp(row_max[lane] - new_max[lane]);
      if (mistake.keeps_max || empty) row_max[lane] = new_max[lane];
      row_sum[lane] *= mistake.rescales_sum ? rescale[lane] : 1;
    }
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const double factor = mistake.rescales_O ? rescale[lane_of(d)] : 1;
      exact[d] *= factor;
      rounded[d] *= factor;
    }
    for (std::int64_t key = 0; key < keys; ++key) {
      if (!counts(key)) continue;
      const double p = std::exp(S[first + key] - row_max[lane_of(key)]);
      const double rounded_p = element_to_float(dtype, element_from_float(dtype, static_cast<float>(p)));
      for (int lane = 0; lane < kLanesOfRow; ++lane)
        if (mistake.shares_sum || lane_of(key) == lane) row_sum[lane] += p;
      const double* v = &V[(first + key) * head_dim];
      for (std::int64_t d = 0; d < head_dim; ++d) {
        exact[d] += p * v[d];
        rounded[d] += rounded_p * v[d];
      }
    }
  }
  for (std::int64_t d = 0; d < head_dim; ++d) {
    const double sum = row_sum[lane_of(d)];
    if (visible.begin == visible.end) {  // no key is seen: O is 0
      exact[d] = base[d] = 0;
      continue;
    }
    exact[d] /= sum;
    base[d] = element_to_float(dtype, element_from_float(dtype, static_cast<float>(rounded[d] / sum)));
  }
}

using Map = std::function<Element(Element)>;

// A way to read a tensor of tiles in shared memory from the wrong place.
struct Misread {
  std::string name, text;
  Map map;
};

Map with_row(std::function<std::int64_t(std::int64_t)> row) {
  return [row = std::move(row)](Element e) {
    e.row = row(e.row);
    return e;
  };
}

Map with_column(std::function<std::int64_t(std::int64_t row, std::int64_t column)> column) {
  return [column = std::move(column)](Element e) {
    e.column = column(e.row, e.column);
    return e;
  };
}

// Rows and columns of a tile or of a fragment interchanged. All stay inside 16 × 64, so any tile is large enough.
std::vector<Misread> misreads(std::int64_t head_dim) {
  std::vector<Misread> all = {
      {"swizzle_on_one_side",
       "is swizzled by its writes and not by its reads, or the other way round (chunk c of row r at c ^ r % 8)",
       with_column([](std::int64_t row, std::int64_t column) { return column ^ row % 8 * 8; })},
      {"swizzle_on_one_side_by_2",
       "is swizzled differently by writes and reads (chunk c of row r at c ^ r / 2 % 4 on one side)",
       with_column([](std::int64_t row, std::int64_t column) { return column ^ row / 2 % 4 * 8; })},
      {"halves_swapped",
       "has the upper right and lower left 8×8 matrices of every 16×16 swapped, as when lanes 8–15 and 16–23 of an "
       "ldmatrix give each other's rows",
       [](Element e) {
         const std::int64_t row_half = e.row / 8 % 2, column_half = e.column / 8 % 2;
         e.row += (column_half - row_half) * 8;
         e.column += (row_half - column_half) * 8;
         return e;
       }},
      {"not_transposed", "has every 8×8 matrix transposed, as when .trans is missing at an ldmatrix, or is superfluous",
       [](Element e) {
         const std::int64_t row = e.row % 8, column = e.column % 8;
         e.row += column - row;
         e.column += row - column;
         return e;
       }},
      {"next_row", "is read one row further on", with_row([](std::int64_t row) { return row + 1; })},
      {"row_before", "is read one row too early",
       with_row([](std::int64_t row) { return std::max<std::int64_t>(row - 1, 0); })},
      {"chunk_before", "is read 16 columns too early: the fragment of the mma_k before",
       with_column([=](std::int64_t, std::int64_t column) { return (column + head_dim - 16) % head_dim; })},
      {"next_chunk", "is read 16 columns too late: the fragment of the next mma_k",
       with_column([=](std::int64_t, std::int64_t column) { return (column + 16) % head_dim; })},
  };
  for (const int bit : {1, 2, 4, 8, 16, 32, 64}) {
    all.push_back({fmt::format("columns_xor_{}", bit),
                   fmt::format("has its columns c and c ^ {} swapped ({})", bit,
                               bit == 1   ? "the two elements of a register"
                               : bit < 8  ? "lanes of a group"
                               : bit == 8 ? "the halves of an mma_k, or neighbouring mma_n"
                                          : "fragments"),
                   with_column([=](std::int64_t, std::int64_t column) { return column ^ bit; })});
  }
  for (const int bit : {1, 2, 4, 8, 16, 32})
    all.push_back({fmt::format("rows_xor_{}", bit), fmt::format("has its rows r and r ^ {} swapped", bit),
                   with_row([=](std::int64_t row) { return row ^ bit; })});
  return all;
}

// K and V of the wrong tile or the wrong step.
std::vector<Misread> stale_tiles(std::int64_t num_keys, std::int64_t block_kv, std::int64_t step_kv) {
  const std::int64_t tiles = (num_keys + block_kv - 1) / block_kv;
  std::vector<Misread> all;
  const auto add = [&](const char* name, const char* text, const std::function<std::int64_t(std::int64_t)>& tile) {
    all.push_back(
        {name, text, with_row([=](std::int64_t row) { return tile(row / block_kv) * block_kv + row % block_kv; })});
  };
  if (tiles > 1) {
    add("always_the_first_tile", "is always the first tile", [](std::int64_t) { return 0; });
    add("tile_before", "is that of the tile before (the first time, the right one)",
        [](std::int64_t tile) { return std::max<std::int64_t>(tile - 1, 0); });
    add("next_tile", "is that of the next tile (the last time, the right one)",
        [=](std::int64_t tile) { return std::min(tile + 1, tiles - 1); });
    add("tiles_swapped", "has tiles 2i and 2i + 1 swapped",
        [=](std::int64_t tile) { return (tile ^ 1) < tiles ? tile ^ 1 : tile; });
  }
  if (tiles > 2)
    add("last_tile_stale", "is stale in the last tile: the tile before is still there",
        [=](std::int64_t tile) { return tile == tiles - 1 ? tile - 1 : tile; });
  if (step_kv < block_kv)
    all.push_back({"always_the_first_step", fmt::format("is always the first {} keys of its tile", step_kv),
                   with_row([=](std::int64_t row) { return row / block_kv * block_kv + row % step_kv; })});
  return all;
}

// An element that does not exist cannot be read: for those, the mistake was not made.
Map inside(Map map, std::int64_t rows, std::int64_t columns) {
  return [map = std::move(map), rows, columns](Element wanted) {
    const Element read = map(wanted);
    return read.row < rows && read.column < columns ? read : wanted;
  };
}

std::vector<Mistake> mistakes_of_softmax(const AttentionProblem& problem, const Tiling& tiling) {
  const double scale = softmax_scale(problem.head_dim);
  std::vector<Mistake> all = {
      {.name = "scale_left_out", .text = "the scores are not scaled: softmax(Q Kᵀ) V", .score_factor = 1 / scale},
      {.name = "scale_twice", .text = "the scores are scaled twice", .score_factor = scale},
      {.name = "log2e_left_out",
       .text = "exp(x) is computed as 2^x, without the factor log2(e)",
       .score_factor = std::numbers::ln2},
      {.name = "log2e_twice",
       .text = "the scores get the factor log2(e) and exp() is not 2^x, or they get it twice",
       .score_factor = std::numbers::log2e},
      {.name = "sum_not_rescaled",
       .text = "the row sums are not rescaled when a row's maximum grows",
       .rescales_sum = false},
      {.name = "O_not_rescaled", .text = "O is not rescaled when a row's maximum grows", .rescales_O = false},
      {.name = "nothing_rescaled",
       .text =
           "neither O nor the row sums are rescaled when a row's maximum grows, as when row_max is overwritten before "
           "rescale is computed from it",
       .rescales_sum = false,
       .rescales_O = false},
      {.name = "max_not_kept",
       .text = "the new maximum is used to rescale but then not stored: row_max stays that of the first tile",
       .keeps_max = false},
      {.name = "V_is_K", .text = "V's values are those of K", .V_is_K = true},
  };
  if (problem.causal || problem.window_left != kNoWindow || problem.window_right != kNoWindow)
    all.push_back({.name = "mask_left_out", .text = "all keys are seen: the mask is left out", .masked = false});
  if (tiling.has_fragments()) {  // otherwise no four lanes share a row
    all.push_back({.name = "max_of_one_lane",
                   .text = "each lane takes the maximum of its own columns: group_max is missing",
                   .shares_max = false});
    all.push_back({.name = "sum_of_one_lane",
                   .text = "each lane divides by the sum of its own columns: group_sum is missing",
                   .shares_sum = false});
  }
  return all;
}

void add_keys_left_out(std::vector<Mistake>& all, const AttentionProblem& problem, const Tiling& tiling) {
  const std::int64_t num_keys = problem.seq_len_kv, block_kv = tiling.block_kv;
  const auto add_keys = [&](std::string name, std::string text, std::int64_t first, std::int64_t end) {
    if (first < end && end <= num_keys && (first > 0 || end < num_keys))
      all.push_back({.name = std::move(name), .text = std::move(text), .counts = [=](std::int64_t key) {
                       return first <= key && key < end;
                     }});
  };
  add_keys("last_tile_left_out", "the last K/V tile is left out", 0, num_keys - block_kv);
  add_keys("first_tile_left_out", "the first K/V tile is left out", block_kv, num_keys);
  add_keys("only_first_tile", "only the first K/V tile takes part", 0, block_kv);
  if (tiling.step_kv < block_kv)
    add_keys("last_step_left_out", fmt::format("the last {} keys are left out", tiling.step_kv), 0,
             num_keys - tiling.step_kv);
  add_keys("last_key_left_out", "the last key is left out", 0, num_keys - 1);
  add_keys("seq_len_for_seq_len_kv",
           fmt::format("the keys end at seq_len, {}, instead of seq_len_kv, {}", problem.seq_len, num_keys), 0,
           problem.seq_len);
}

void add_misread_tensors(std::vector<Mistake>& all, const AttentionProblem& problem, const Tiling& tiling) {
  const std::int64_t num_keys = problem.seq_len_kv, block_kv = tiling.block_kv, head_dim = problem.head_dim,
                     head_dim_v = value_head_dim(problem);
  const std::vector<Misread> of_V = misreads(head_dim_v);
  for (std::size_t i = 0; const Misread& misread : misreads(head_dim)) {
    all.push_back({.name = "Q_" + misread.name,
                   .text = "Q " + misread.text + " (or O is stored that way)",
                   .Q = inside(misread.map, problem.seq_len, head_dim)});
    all.push_back(
        {.name = "K_" + misread.name, .text = "K " + misread.text, .K = inside(misread.map, num_keys, head_dim)});
    all.push_back({.name = "V_" + misread.name,
                   .text = "V " + misread.text + " (columns: or O is stored that way)",
                   .V = inside(of_V[i++].map, num_keys, head_dim_v)});
  }
  for (const Misread& stale : stale_tiles(num_keys, block_kv, tiling.step_kv)) {
    all.push_back({.name = "K_" + stale.name, .text = "K " + stale.text, .K = inside(stale.map, num_keys, head_dim)});
    all.push_back({.name = "V_" + stale.name, .text = "V " + stale.text, .V = inside(stale.map, num_keys, head_dim_v)});
    if (stale.name != "tiles_swapped")  // if both are read in another order, the result is still attention
      all.push_back({.name = "KV_" + stale.name,
                     .text = "K and V: each " + stale.text,
                     .K = inside(stale.map, num_keys, head_dim),
                     .V = inside(stale.map, num_keys, head_dim_v)});
  }
}

// Q of another query tile, such as the one that a CTA processed before. The sampled rows belong to few tiles, all of
// them wrong.
void add_other_query_tiles(std::vector<Mistake>& all, const AttentionProblem& problem, const Tiling& tiling,
                           std::int64_t batch, std::int64_t head) {
  constexpr std::int64_t kMaxTiles = 32;
  const std::int64_t q_tiles = (problem.seq_len + tiling.block_q - 1) / tiling.block_q;
  for (std::int64_t i = 0; i < std::min(problem.batch * problem.heads * q_tiles, kMaxTiles); ++i) {
    const std::int64_t from_batch = i / q_tiles / problem.heads, from_head = i / q_tiles % problem.heads;
    const std::int64_t first_row = i % q_tiles * tiling.block_q, block_q = tiling.block_q;
    all.push_back(
        {.name = "Q_of_other_tile",
         .text = fmt::format("Q is that of batch entry {}, head {}, query tile {} at batch entry {}, head {}",
                             from_batch, from_head, i % q_tiles, batch, head),
         .Q = inside([=](Element e) { return Element{from_batch, from_head, first_row + e.row % block_q, e.column}; },
                     problem.seq_len, problem.head_dim),
         .of_one_head = true});
  }
}

// Tensors of another head. The nearest few are enough, because a wrong index is wrong for all heads.
void add_other_heads(std::vector<Mistake>& all, const AttentionProblem& problem, std::int64_t batch,
                     std::int64_t head) {
  constexpr int kMaxOthers = 15;
  int others = 0;
  for (std::int64_t other = 0; other < problem.batch * problem.heads && others < kMaxOthers; ++other) {
    const std::int64_t from_batch = other / problem.heads, from_head = other % problem.heads;
    if (from_batch == batch && from_head == head) continue;
    ++others;
    const Map map = [=](Element e) { return Element{from_batch, from_head, e.row, e.column}; };
    const std::string from =
        fmt::format("of batch entry {}, head {} at batch entry {}, head {}", from_batch, from_head, batch, head);
    all.push_back({.name = "Q_of_other_head", .text = "Q is that " + from, .Q = map, .of_one_head = true});
    all.push_back({.name = "K_of_other_head", .text = "K is that " + from, .K = map, .of_one_head = true});
    all.push_back({.name = "V_of_other_head", .text = "V is that " + from, .V = map, .of_one_head = true});
    all.push_back(
        {.name = "KV_of_other_head", .text = "K and V are those " + from, .K = map, .V = map, .of_one_head = true});
    all.push_back({.name = "O_of_other_head",
                   .text = "Q, K and V are those " + from + " (or O is stored that way)",
                   .Q = map,
                   .K = map,
                   .V = map,
                   .of_one_head = true});
  }
}

}  // namespace

AttendedRows attend_with(const Mistake& mistake, const Tiling& tiling, const Inputs& inputs, std::int64_t batch,
                         std::int64_t head, std::span<const std::int64_t> rows) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t num_keys = flash_ladder::num_keys(problem, batch), head_dim = problem.head_dim,
                     head_dim_v = value_head_dim(problem);
  std::vector<std::int64_t> keys(num_keys);
  for (std::int64_t key = 0; key < num_keys; ++key) keys[key] = key;
  const std::vector<double> Q = gather(inputs, Which::Q, mistake.Q, batch, head, rows, head_dim);
  const std::vector<double> K = gather(inputs, Which::K, mistake.K, batch, head, keys, head_dim);
  const std::vector<double> V = gather(inputs, mistake.V_is_K && head_dim_v <= head_dim ? Which::K : Which::V,
                                       mistake.V, batch, head, keys, head_dim_v);
  const double scale = softmax_scale(head_dim) * mistake.score_factor;

  AttendedRows result{.exact = std::vector<double>(rows.size() * head_dim_v),
                      .base = std::vector<float>(rows.size() * head_dim_v)};
  std::vector<double> S(num_keys);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t key = 0; key < num_keys; ++key) {
      double score = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) score += Q[r * head_dim + d] * K[key * head_dim + d];
      S[key] = score * scale;
    }
    const KeyRange visible = mistake.masked ? visible_keys(problem, batch, rows[r]) : KeyRange{0, num_keys};
    attend_row(mistake, tiling.step_kv, problem.dtype, visible, S, V,
               std::span(result.exact).subspan(r * head_dim_v, head_dim_v),
               std::span(result.base).subspan(r * head_dim_v, head_dim_v));
  }
  return result;
}

std::vector<Mistake> known_mistakes(const AttentionProblem& problem, const Tiling& tiling, std::int64_t batch,
                                    std::int64_t head) {
  std::vector<Mistake> all = mistakes_of_softmax(problem, tiling);
  add_keys_left_out(all, problem, tiling);
  add_misread_tensors(all, problem, tiling);
  add_other_query_tiles(all, problem, tiling, batch, head);
  add_other_heads(all, problem, batch, head);
  return all;
}

}  // namespace flash_ladder
