#include "worker/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <stdexcept>

#include "problem/problem.h"
#include "worker/adversarial.h"

namespace flash_ladder {
namespace {

// The finaliser of SplitMix64 (Steele, Lea & Flood, 2014): every bit of the result depends on every bit of x.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr int kNoPage = std::numeric_limits<int>::max();

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;  // the step of SplitMix64's counter

enum class TensorName { Q, K, V };

using NumberOfRows = std::int64_t (*)(const AttentionProblem&, std::int64_t batch);

// Which of a head's vectors is added to a row.
enum class Direction { none, normal, unit, rotary };

// x = mean + deviation · z + along · the direction's element.
struct Elements {
  float mean = 0, deviation = 1, along = 0;
  Direction direction = Direction::none;
};

// problem/distribution.h gives the definitions in words.
Elements elements(Distribution distribution, TensorName tensor, std::int64_t head, std::int64_t row,
                  std::int64_t rows) {
  const bool is_Q = tensor == TensorName::Q, is_K = tensor == TensorName::K;
  const float place = rows == 1 ? 0 : static_cast<float>(row) / static_cast<float>(rows - 1);  // from 0 to 1
  switch (distribution) {
    case Distribution::normal:
      return {};
    case Distribution::offset_mean:
      return {.mean = is_Q || is_K ? 0.5f : 1.0f};
    case Distribution::large_logit:
      return {.deviation = is_Q ? 16.0f : 1.0f};
    case Distribution::ramp:
      // With Q ≈ 1 everywhere, a score is sqrt(head_dim) times the mean of its row of K, which rises from -2 to 2.
      if (is_Q) return {.mean = 1, .deviation = 0.25f};
      if (is_K) return {.mean = -2 + 4 * (row + 0.5f) / rows, .deviation = 0.25f};
      return {};
    case Distribution::q_times_3:
      return {.deviation = is_Q ? 3.0f : 1.0f};
    case Distribution::q_times_6:
      return {.deviation = is_Q ? 6.0f : 1.0f};
    case Distribution::sink:
      if (is_Q) return {.along = 1, .direction = Direction::normal};
      if (is_K && row == 0) return {.deviation = 0, .along = 4, .direction = Direction::normal};
      if (is_K) return {.along = -0.5f, .direction = Direction::normal};
      return {};
    case Distribution::rising:
    case Distribution::falling:
      if (is_Q) return {.along = 8, .direction = Direction::unit};
      if (!is_K) return {};
      return {.along = 16 * (distribution == Distribution::rising ? place : 1 - place), .direction = Direction::unit};
    case Distribution::steps:
      if (is_Q) return {.along = 16, .direction = Direction::unit};
      if (is_K) return {.along = static_cast<float>(row / 64), .direction = Direction::unit};
      return {};
    case Distribution::zeros:
      return {.deviation = 0};
    case Distribution::equal_keys:
      if (is_K) return {.deviation = 0, .along = 1, .direction = Direction::normal};
      return {};
    case Distribution::diagonal:
      if (is_Q || is_K) return {.along = 5, .direction = Direction::rotary};
      return {};
    case Distribution::four_sinks:
      if (is_Q || (is_K && row < 4)) return {.along = 10, .direction = Direction::unit};
      return {};
    case Distribution::broad:
      return {.deviation = is_Q ? 0.25f : 1.0f};
    case Distribution::trained: {
      constexpr Distribution kKinds[] = {Distribution::diagonal, Distribution::four_sinks, Distribution::broad};
      return elements(kKinds[head % 3], tensor, head, row, rows);
    }
    case Distribution::adversarial:
      break;  // its rows are not drawn at random
  }
  throw std::logic_error("a Distribution without elements");
}

// Two standard normal numbers (Box & Muller, 1958), the first times `deviation`.
struct NormalPair {
  float first, second;
};
NormalPair normal_pair(std::uint64_t bits, float deviation) {
  const float u = ((bits >> 32) + 0.5f) * 0x1p-32f;  // in (0, 1]
  const float angle = static_cast<float>(bits & 0xffffffffu) * 0x1p-32f * 2 * std::numbers::pi_v<float>;
  const float radius = deviation * std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// The vectors of one head of K and V: [head_dim].
struct HeadVectors {
  std::vector<float> normal, unit;
};
HeadVectors head_vectors(std::int64_t head_dim, std::uint64_t seed) {
  HeadVectors vectors;
  double squares = 0;
  for (std::int64_t d = 0; d < head_dim; d += 2) {
    const auto [first, second] = normal_pair(mix(seed + kGolden * (d / 2 + 1)), 1);
    vectors.normal.push_back(first);
    if (d + 1 < head_dim) vectors.normal.push_back(second);
  }
  for (const float x : vectors.normal) squares += double{x} * x;
  for (const float x : vectors.normal) vectors.unit.push_back(static_cast<float>(x / std::sqrt(squares)));
  return vectors;
}

// r(place) of Distribution::diagonal: [head_dim].
std::vector<float> rotary_vector(std::int64_t head_dim, std::int64_t place) {
  constexpr std::int64_t kFrequencies = 16;
  std::vector<float> vector(head_dim);
  for (std::int64_t i = 0; i < kFrequencies && 2 * i + 1 < head_dim; ++i) {
    const double angle = place * std::pow(10000.0, -2.0 * i / head_dim);
    vector[2 * i] = static_cast<float>(std::cos(angle));
    vector[2 * i + 1] = static_cast<float>(std::sin(angle));
  }
  return vector;
}

// Fills one row. `direction` has head_dim elements, or is empty.
void fill_row(std::uint16_t* row, std::int64_t head_dim, Dtype dtype, const Elements& elements,
              std::span<const float> direction, std::uint64_t row_seed) {
  for (std::int64_t d = 0; d < head_dim; d += 2) {
    const NormalPair pair = normal_pair(mix(row_seed + kGolden * (d / 2 + 1)), elements.deviation);
    const auto element = [&](std::int64_t at, float normal) {
      const float added = direction.empty() ? 0 : elements.along * direction[at];
      return element_from_float(dtype, elements.mean + normal + added);
    };
    row[d] = element(d, pair.first);
    if (d + 1 < head_dim) row[d + 1] = element(d + 1, pair.second);
  }
}

// Chooses the scale of each head of Q, K and V, and rounds its elements to the values that e4m3 can represent with that
// scale. Padding stays NaN. Of a cache, heads whose data are alike have different scales, so that none can replace another.
void quantise(Inputs& inputs) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t heads = problem.heads;
  inputs.scales.assign(3 * problem.batch * heads, 1);
  const struct {
    const TensorLayout& layout;
    HostBuffer& buffer;
    NumberOfRows rows_of;
    std::int64_t heads_per_head, head_dim;
  } parts[] = {
      {inputs.Q, inputs.buffers[inputs.Q_buffer], num_rows, 1, problem.head_dim},
      {inputs.K, inputs.buffers[inputs.K_buffer], num_rows_kv, heads / num_kv_heads(problem), problem.head_dim},
      {inputs.V, inputs.buffers[inputs.V_buffer], num_rows_kv, heads / num_kv_heads(problem), value_head_dim(problem)},
  };
  for (std::int64_t i = problem.fp8_cache ? 1 : 0; i < 3; ++i) {
    const auto& [layout, buffer, rows_of, heads_per_head, head_dim] = parts[i];
    parallel_for(problem.batch * heads / heads_per_head, [&](std::int64_t work) {
      const std::int64_t b = work / (heads / heads_per_head), head = work % (heads / heads_per_head);
      const auto for_each = [&](const auto& visit) {
        for (std::int64_t row = 0; row < rows_of(problem, b); ++row) {
          std::uint16_t* elements = buffer.data() + layout.row(b, head, row);
          for (std::int64_t d = 0; d < head_dim; ++d) visit(elements[d]);
        }
      };
      float largest = 0;
      for_each([&](std::uint16_t x) {
        if (is_finite(problem.dtype, x)) largest = std::max(largest, std::abs(element_to_float(problem.dtype, x)));
      });
      const auto coarser = static_cast<int>(problem.fp8_cache ? (b + 2 * head + i) % 3 : 0);
      const float scale = std::ldexp(e4m3_scale(largest), coarser);
      for_each([&](std::uint16_t& x) {
        const float value = element_to_float(problem.dtype, x);
        x = element_from_float(problem.dtype, e4m3_to_float(e4m3_from_float(value / scale)) * scale);
      });
      std::fill_n(&inputs.scales[(i * problem.batch + b) * heads + head * heads_per_head], heads_per_head, scale);
    });
  }
}

// 2^-8/heads, 2^-16/heads … 2^-8 (Press et al., 2022, section 3).
float alibi_slope(std::int64_t head, std::int64_t heads) {
  return std::exp2(-8 * static_cast<float>(head + 1) / static_cast<float>(heads));
}

// A page for every page_size keys, in an order that has nothing to do with that of the keys, and a page that nobody uses. What
// follows the page of a batch entry's last key is no page.
PageTable shuffled_pages(const AttentionProblem& problem) {
  PageTable table{.page_size = problem.page_size, .width = pages_per_entry(problem)};
  for (std::int64_t batch = 0; batch < problem.batch; ++batch)
    for (std::int64_t page = 0; page < table.width; ++page) {
      const bool used = page * table.page_size < num_keys(problem, batch);
      table.pages.push_back(used ? static_cast<int>(table.num_pages++) : page % 2 == 0 ? kNoPage : -kNoPage);
    }
  ++table.num_pages;
  std::vector<int> order(table.num_pages);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [](int page) { return mix(kGolden * (page + 1)); });
  for (int& page : table.pages)
    if (std::abs(page) != kNoPage) page = order[page];
  return table;
}

// Where Q, K and V are in memory, and the memory.
void lay_out(Inputs& inputs, Packing packing) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t batch = problem.batch, heads = problem.heads, kv_heads = num_kv_heads(problem),
                     seq_len = problem.seq_len, seq_len_kv = problem.seq_len_kv, head_dim = problem.head_dim,
                     head_dim_v = value_head_dim(problem);
  if (packing == Packing::packed_qkv) {
    if (seq_len != seq_len_kv || problem.packed || problem.fp8_cache)
      throw std::logic_error("packed Q, K and V need seq_len = seq_len_kv, one type, and padded sequences");
    const std::int64_t row = (heads + kv_heads) * head_dim + kv_heads * head_dim_v;
    inputs.buffers.emplace_back(batch * seq_len * row);
    inputs.Q = {.batch_stride = seq_len * row, .row_stride = row, .head_stride = head_dim};
    inputs.K = inputs.V = inputs.Q;
    inputs.V.head_stride = head_dim_v;
    inputs.K.offset = heads * head_dim;
    inputs.V.offset = (heads + kv_heads) * head_dim;
    return;
  }
  // The sequences of a packed problem are like one batch entry with all rows, and pages are like batch entries.
  const auto table = problem.page_size == 0 ? nullptr : std::make_shared<const PageTable>(shuffled_pages(problem));
  const std::int64_t entries = problem.packed ? 1 : batch;
  const std::int64_t entries_kv = table != nullptr ? table->num_pages : entries;
  const std::int64_t rows = problem.packed ? total_rows(problem) : seq_len;
  const std::int64_t rows_kv = problem.packed     ? total_rows_kv(problem)
                               : table != nullptr ? table->page_size
                                                  : seq_len_kv;
  inputs.Q = contiguous_layout(rows, heads, head_dim);
  inputs.K = contiguous_layout(rows_kv, kv_heads, head_dim);
  inputs.V = contiguous_layout(rows_kv, kv_heads, head_dim_v);
  std::int64_t sizes[] = {entries * inputs.Q.batch_stride, entries_kv * inputs.K.batch_stride,
                          entries_kv * inputs.V.batch_stride};
  if (packing == Packing::with_gaps) {
    // Rows begin at multiples of 16 elements, as TMA requires for 8-bit elements, too.
    const std::int64_t Q_head = head_dim + 16, K_row = head_dim + 32, V_row = 5 * head_dim_v;
    inputs.Q = {.batch_stride = rows * heads * Q_head, .row_stride = heads * Q_head, .head_stride = Q_head};
    inputs.K = {.batch_stride = kv_heads * rows_kv * K_row, .row_stride = K_row, .head_stride = rows_kv * K_row};
    inputs.V = {.batch_stride = rows_kv * V_row, .row_stride = V_row, .head_stride = entries_kv * rows_kv * V_row};
    sizes[0] = entries * inputs.Q.batch_stride;
    sizes[1] = entries_kv * inputs.K.batch_stride;
    sizes[2] = kv_heads * inputs.V.head_stride;
  }
  if (problem.packed) {
    for (TensorLayout* layout : {&inputs.Q, &inputs.K, &inputs.V}) layout->batch_stride = 0;
    inputs.Q.first_rows = first_rows(problem);
    inputs.K.first_rows = inputs.V.first_rows = first_rows_kv(problem);
  }
  inputs.K.table = inputs.V.table = table;
  for (const std::int64_t size : sizes) inputs.buffers.emplace_back(size);
  inputs.K_buffer = 1;
  inputs.V_buffer = 2;
}

// Gaps and padding are NaN, so that they show up in the output of a kernel that reads them.
std::uint16_t padding_of(Dtype dtype) { return element_from_float(dtype, std::numeric_limits<float>::quiet_NaN()); }

// The new key and value of each batch entry in memory of their own, with gaps of NaN or without.
void copy_new_tokens(Inputs& inputs, Packing packing) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t kv_heads = num_kv_heads(problem);
  const struct {
    HostBuffer& to;
    TensorLayout& to_layout;
    const HostBuffer& from;
    const TensorLayout& from_layout;
    std::int64_t head_dim, gap;  // in elements, after each head
  } parts[] = {
      {inputs.new_K, inputs.new_K_layout, inputs.buffers[inputs.K_buffer], inputs.K, problem.head_dim, 16},
      {inputs.new_V, inputs.new_V_layout, inputs.buffers[inputs.V_buffer], inputs.V, value_head_dim(problem), 48}};
  for (const auto& [to, to_layout, from, from_layout, head_dim, gap] : parts) {
    to_layout = contiguous_layout(1, kv_heads, head_dim + (packing == Packing::with_gaps ? gap : 0));
    to = HostBuffer(problem.batch * to_layout.batch_stride);
    std::fill_n(to.data(), to.size(), padding_of(problem.dtype));
    for (std::int64_t batch = 0; batch < problem.batch; ++batch)
      for (std::int64_t head = 0; head < kv_heads; ++head)
        std::copy_n(from.data() + from_layout.row(batch, head, num_keys(problem, batch) - 1), head_dim,
                    to.data() + to_layout.row(batch, head, 0));
  }
}

// cos and sin of row · 10000^(-2i / rotary_dim) (Su et al., 2021, equation 15).
void make_rotary_tables(Inputs& inputs) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t pairs = problem.rotary_dim / 2;
  inputs.rotary_cos = HostBuffer(problem.seq_len_kv * pairs);
  inputs.rotary_sin = HostBuffer(problem.seq_len_kv * pairs);
  for (std::int64_t row = 0; row < problem.seq_len_kv; ++row)
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = row * std::pow(10000.0, -2.0 * i / problem.rotary_dim);
      inputs.rotary_cos.data()[row * pairs + i] =
          element_from_float(problem.dtype, static_cast<float>(std::cos(angle)));
      inputs.rotary_sin.data()[row * pairs + i] =
          element_from_float(problem.dtype, static_cast<float>(std::sin(angle)));
    }
}

// One of Q, K and V.
struct Part {
  TensorName name;
  const TensorLayout* layout;
  HostBuffer* buffer;
  std::int64_t rows, heads, head_dim;
  NumberOfRows num_used, num_rows;  // the difference is padding
};

std::array<Part, 3> parts_of(Inputs& inputs) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t rows = problem.seq_len, rows_kv = problem.seq_len_kv, kv_heads = num_kv_heads(problem);
  const std::int64_t head_dim = problem.head_dim, head_dim_v = value_head_dim(problem);
  HostBuffer *Q = &inputs.buffers[inputs.Q_buffer], *K = &inputs.buffers[inputs.K_buffer],
             *V = &inputs.buffers[inputs.V_buffer];
  return {{{TensorName::Q, &inputs.Q, Q, rows, problem.heads, head_dim, num_queries, num_rows},
           {TensorName::K, &inputs.K, K, rows_kv, kv_heads, head_dim, num_keys, num_rows_kv},
           {TensorName::V, &inputs.V, V, rows_kv, kv_heads, head_dim_v, num_keys, num_rows_kv}}};
}

// Draws the rows of a distribution.
class RowSource {
 public:
  RowSource(const AttentionProblem& problem, Distribution distribution, std::uint64_t seed)
      : problem_(problem), distribution_(distribution), number_(static_cast<std::uint64_t>(distribution)), seed_(seed) {
    const std::int64_t kv_heads = num_kv_heads(problem), heads = problem.batch * kv_heads;
    for (std::int64_t i = 0; i < heads; ++i)
      of_heads_.push_back(head_vectors(problem.head_dim, hash(seed, 3 + 4 * number_, i / kv_heads, i % kv_heads)));
    if (distribution == Distribution::adversarial)
      for (std::int64_t i = 0; i < heads; ++i)
        designed_.push_back(adversarial_keys(i, num_keys(problem, i / kv_heads), problem.dtype, seed));
  }

  void fill(std::uint16_t* to, const Part& part, std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const std::int64_t kv_heads = num_kv_heads(problem_), head_of_K = head / (part.heads / kv_heads);
    const std::int64_t index = batch * kv_heads + head_of_K;
    if (distribution_ == Distribution::adversarial) return design(to, part.name, index, row);
    const Elements like = elements(distribution_, part.name, head_of_K, row, part.rows);
    std::vector<float> rotary;
    std::span<const float> direction;
    if (like.direction == Direction::normal) direction = of_heads_[index].normal;
    if (like.direction == Direction::unit) direction = of_heads_[index].unit;
    if (like.direction == Direction::rotary) {
      const std::int64_t keys_more = num_keys(problem_, batch) - num_queries(problem_, batch);
      rotary = rotary_vector(problem_.head_dim, part.name == TensorName::Q ? row + keys_more : row);
      direction = rotary;
    }
    const std::uint64_t row_seed = hash(seed_, static_cast<std::uint64_t>(part.name) + 4 * number_, batch, head, row);
    fill_row(to, part.head_dim, problem_.dtype, like, direction, row_seed);
  }

 private:
  // A row of Distribution::adversarial.
  void design(std::uint16_t* to, TensorName name, std::int64_t head, std::int64_t row) const {
    const std::int64_t head_dim = problem_.head_dim;
    std::vector<float> elements;
    if (name == TensorName::Q) elements = adversarial_query(head, row, head_dim);
    if (name == TensorName::K) elements = adversarial_key(designed_[head][row].log2_weight, head_dim, problem_.dtype);
    if (name == TensorName::V) elements.assign(value_head_dim(problem_), designed_[head][row].value);
    for (const float element : elements) *to++ = element_from_float(problem_.dtype, element);
  }

  const AttentionProblem& problem_;
  Distribution distribution_;
  std::uint64_t number_, seed_;
  std::vector<HeadVectors> of_heads_;               // [batch · kv_heads]
  std::vector<std::vector<DesignedKey>> designed_;  // [batch · kv_heads][keys]; only for adversarial inputs
};

}  // namespace

const std::uint16_t* Inputs::Q_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[Q_buffer].data() + Q.row(batch, head, row);
}
const std::uint16_t* Inputs::K_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[K_buffer].data() + K.row(batch, kv_head(problem, head), row);
}
const std::uint16_t* Inputs::V_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[V_buffer].data() + V.row(batch, kv_head(problem, head), row);
}

template <typename T>
void rotate(const Inputs& inputs, std::int64_t batch, T* row) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t pairs = problem.rotary_dim / 2, first = (num_keys(problem, batch) - 1) * pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const T cos = element_to_float(problem.dtype, inputs.rotary_cos.data()[first + i]);
    const T sin = element_to_float(problem.dtype, inputs.rotary_sin.data()[first + i]);
    T& x = row[problem.rotary_interleaved ? 2 * i : i];
    T& y = row[problem.rotary_interleaved ? 2 * i + 1 : i + pairs];
    const T rotated_x = x * cos - y * sin;
    y = x * sin + y * cos;
    x = rotated_x;
  }
}
template void rotate(const Inputs&, std::int64_t, float*);
template void rotate(const Inputs&, std::int64_t, double*);

bool is_in_8_bits(const Inputs& inputs, int buffer) {
  return inputs.problem.dtype == Dtype::e4m3 || (inputs.problem.fp8_cache && buffer != inputs.Q_buffer);
}

void for_each_scaled_row(const Inputs& inputs, int buffer,
                         const std::function<void(std::int64_t begin, std::int64_t end, float scale)>& visit) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t kv_heads = num_kv_heads(problem);
  const struct {
    int buffer;
    const TensorLayout& layout;
    std::int64_t heads, head_dim;
    NumberOfRows rows_of;
  } parts[] = {{inputs.Q_buffer, inputs.Q, problem.heads, problem.head_dim, num_rows},
               {inputs.K_buffer, inputs.K, kv_heads, problem.head_dim, num_rows_kv},
               {inputs.V_buffer, inputs.V, kv_heads, value_head_dim(problem), num_rows_kv}};
  for (std::int64_t i = 0; i < 3; ++i) {
    if (parts[i].buffer != buffer) continue;
    parallel_for(problem.batch * parts[i].heads, [&](std::int64_t work) {
      const std::int64_t b = work / parts[i].heads, head = work % parts[i].heads;
      const float scale =
          inputs.scales[(i * problem.batch + b) * problem.heads + head * (problem.heads / parts[i].heads)];
      for (std::int64_t row = 0; row < parts[i].rows_of(problem, b); ++row) {
        const std::int64_t begin = parts[i].layout.row(b, head, row);
        visit(begin, begin + parts[i].head_dim, scale);
      }
    });
  }
}

std::uint64_t hash(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t state = mix(seed + kGolden);
  for (const std::uint64_t value : {a, b, c, d}) state = mix(state + kGolden * (value + 1));
  return state;
}

Inputs memory_for(const AttentionProblem& problem, Packing packing) {
  Inputs inputs;
  inputs.problem = problem;
  lay_out(inputs, packing);
  if (packing == Packing::with_gaps || problem.page_size != 0)
    for (HostBuffer& buffer : inputs.buffers) std::fill_n(buffer.data(), buffer.size(), padding_of(problem.dtype));
  return inputs;
}

Inputs make_inputs(const AttentionProblem& problem, Distribution distribution, Packing packing, std::uint64_t seed,
                   const Progress& progress, int threads) {
  Inputs inputs = memory_for(problem, packing);
  const std::uint16_t padding = padding_of(problem.dtype);
  const std::array<Part, 3> parts = parts_of(inputs);
  const RowSource source(problem, distribution, seed);
  // A unit of work is a run of rows with all heads, because those are adjacent in memory.
  constexpr std::int64_t kRows = 64;
  const auto pieces = [](const Part& part) { return (part.rows + kRows - 1) / kRows; };
  const std::int64_t pieces_per_batch = pieces(parts[0]) + pieces(parts[1]) + pieces(parts[2]);
  const auto fill = [&](std::int64_t work) {
    const std::int64_t b = work / pieces_per_batch;
    std::int64_t piece = work % pieces_per_batch;
    const Part* part = parts.data();
    for (; piece >= pieces(*part); ++part) piece -= pieces(*part);
    const std::int64_t end = std::min(part->num_rows(problem, b), (piece + 1) * kRows);
    for (std::int64_t row = piece * kRows; row < end; ++row)
      for (std::int64_t head = 0; head < part->heads; ++head) {
        std::uint16_t* const to = part->buffer->data() + part->layout->row(b, head, row);
        if (row >= part->num_used(problem, b))
          std::fill_n(to, part->head_dim, padding);
        else
          source.fill(to, *part, b, head, row);
      }
  };
  parallel_for(problem.batch * pieces_per_batch, fill, progress, threads);
  if (problem.dtype == Dtype::e4m3 || problem.fp8_cache) quantise(inputs);
  if (problem.append) copy_new_tokens(inputs, packing);
  if (problem.rotary_dim != 0) make_rotary_tables(inputs);
  for (std::int64_t head = 0; head < problem.heads && problem.alibi; ++head)
    inputs.alibi_slopes.push_back(alibi_slope(head, problem.heads));
  for (std::int64_t head = 0; head < problem.heads && problem.sinks; ++head)
    inputs.sinks.push_back(2 * normal_pair(hash(seed, 0x73696e6b, 0, head), 1).first);
  return inputs;
}

float softmax_scale(std::int64_t head_dim) { return 1 / std::sqrt(static_cast<float>(head_dim)); }

}  // namespace flash_ladder
