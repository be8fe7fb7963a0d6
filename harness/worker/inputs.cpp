#include "worker/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

#include "problem/problem.h"

namespace flash_ladder {
namespace {

// The finaliser of SplitMix64 (Steele, Lea & Flood, 2014): every bit of the result depends on every bit of x.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;  // the step of SplitMix64's counter

enum class TensorName { Q, K, V };

// x = mean + deviation · z.
struct Elements {
  float mean, deviation;
};

Elements elements(Distribution distribution, TensorName tensor, std::int64_t row, std::int64_t rows) {
  switch (distribution) {
    case Distribution::normal:
      return {0, 1};
    case Distribution::offset_mean:
      return {tensor == TensorName::V ? 1.0f : 0.5f, 1};
    case Distribution::large_logit:
      return {0, tensor == TensorName::Q ? 16.0f : 1.0f};
    case Distribution::ramp:
      // With Q ≈ 1 everywhere a score is sqrt(head_dim) times the mean of its row of K, which goes from -2 to 2.
      if (tensor == TensorName::Q) return {1, 0.25f};
      if (tensor == TensorName::K) return {-2 + 4 * (row + 0.5f) / rows, 0.25f};
      return {0, 1};
  }
  throw std::logic_error("a Distribution without elements");
}

// Fills one row with normal numbers, two at a time (Box & Muller, 1958).
void fill_row(std::uint16_t* row, std::int64_t head_dim, Dtype dtype, Elements elements, std::uint64_t row_seed) {
  for (std::int64_t d = 0; d < head_dim; d += 2) {
    const std::uint64_t bits = mix(row_seed + kGolden * (d / 2 + 1));
    const float u = ((bits >> 32) + 0.5f) * 0x1p-32f;  // in (0, 1]
    const float angle = static_cast<float>(bits & 0xffffffffu) * 0x1p-32f * 2 * std::numbers::pi_v<float>;
    const float radius = elements.deviation * std::sqrt(-2 * std::log(u));
    row[d] = element_from_float(dtype, elements.mean + radius * std::cos(angle));
    if (d + 1 < head_dim) row[d + 1] = element_from_float(dtype, elements.mean + radius * std::sin(angle));
  }
}

// Gives each head of Q, K and V its scale, and rounds its elements to those that e4m3 has times the scale. Padding stays NaN.
void quantise(Inputs& inputs) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t head_dim = problem.head_dim, heads = problem.heads;
  inputs.scales.assign(3 * problem.batch * heads, 1);
  const struct {
    const TensorLayout& layout;
    HostBuffer& buffer;
    std::int64_t rows, heads_per_head;
  } parts[] = {
      {inputs.Q, inputs.buffers[inputs.Q_buffer], problem.seq_len, 1},
      {inputs.K, inputs.buffers[inputs.K_buffer], problem.seq_len_kv, heads / num_kv_heads(problem)},
      {inputs.V, inputs.buffers[inputs.V_buffer], problem.seq_len_kv, heads / num_kv_heads(problem)},
  };
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto& [layout, buffer, rows, heads_per_head] = parts[i];
    parallel_for(problem.batch * heads / heads_per_head, [&](std::int64_t work) {
      const std::int64_t b = work / (heads / heads_per_head), head = work % (heads / heads_per_head);
      const auto for_each = [&](const auto& visit) {
        for (std::int64_t row = 0; row < rows; ++row) {
          std::uint16_t* elements = buffer.data() + layout.row(b, head, row);
          for (std::int64_t d = 0; d < head_dim; ++d) visit(elements[d]);
        }
      };
      float largest = 0;
      for_each([&](std::uint16_t x) {
        if (is_finite(problem.dtype, x)) largest = std::max(largest, std::abs(element_to_float(problem.dtype, x)));
      });
      const float scale = e4m3_scale(largest);
      for_each([&](std::uint16_t& x) {
        const float value = element_to_float(problem.dtype, x);
        x = element_from_float(problem.dtype, e4m3_to_float(e4m3_from_float(value / scale)) * scale);
      });
      std::fill_n(&inputs.scales[(i * problem.batch + b) * heads + head * heads_per_head], heads_per_head, scale);
    });
  }
}

}  // namespace

std::string to_string(Distribution distribution) {
  switch (distribution) {
    case Distribution::normal:
      return "normal";
    case Distribution::offset_mean:
      return "offset-mean";
    case Distribution::large_logit:
      return "large-logit";
    case Distribution::ramp:
      return "ramp";
  }
  throw std::logic_error("a Distribution without a name");
}

const std::uint16_t* Inputs::Q_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[Q_buffer].data() + Q.row(batch, head, row);
}
const std::uint16_t* Inputs::K_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[K_buffer].data() + K.row(batch, kv_head(problem, head), row);
}
const std::uint16_t* Inputs::V_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return buffers[V_buffer].data() + V.row(batch, kv_head(problem, head), row);
}

void for_each_scaled_row(const Inputs& inputs, int buffer,
                         const std::function<void(std::int64_t offset, float scale)>& visit) {
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t kv_heads = num_kv_heads(problem);
  const struct {
    int buffer;
    const TensorLayout& layout;
    std::int64_t heads, rows;
  } parts[] = {{inputs.Q_buffer, inputs.Q, problem.heads, problem.seq_len},
               {inputs.K_buffer, inputs.K, kv_heads, problem.seq_len_kv},
               {inputs.V_buffer, inputs.V, kv_heads, problem.seq_len_kv}};
  for (std::int64_t i = 0; i < 3; ++i) {
    if (parts[i].buffer != buffer) continue;
    for (std::int64_t b = 0; b < problem.batch; ++b)
      for (std::int64_t head = 0; head < parts[i].heads; ++head)
        for (std::int64_t row = 0; row < parts[i].rows; ++row)
          visit(parts[i].layout.row(b, head, row),
                inputs.scales[(i * problem.batch + b) * problem.heads + head * (problem.heads / parts[i].heads)]);
  }
}

std::uint64_t hash(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t state = mix(seed + kGolden);
  for (const std::uint64_t value : {a, b, c, d}) state = mix(state + kGolden * (value + 1));
  return state;
}

Inputs make_inputs(const AttentionProblem& problem, Distribution distribution, Packing packing, std::uint64_t seed,
                   const Progress& progress, int threads) {
  const std::int64_t batch = problem.batch, heads = problem.heads, kv_heads = num_kv_heads(problem),
                     seq_len = problem.seq_len, seq_len_kv = problem.seq_len_kv, head_dim = problem.head_dim;
  const Dtype dtype = problem.dtype;
  Inputs inputs;
  inputs.problem = problem;
  if (packing == Packing::packed_qkv) {
    if (seq_len != seq_len_kv) throw std::logic_error("packed Q, K and V need seq_len = seq_len_kv");
    const TensorLayout packed = contiguous_layout(seq_len, heads + 2 * kv_heads, head_dim);
    inputs.buffers.emplace_back(batch * packed.batch_stride);
    inputs.Q = inputs.K = inputs.V = packed;
    inputs.K.offset = heads * head_dim;
    inputs.V.offset = (heads + kv_heads) * head_dim;
  } else {
    inputs.Q = contiguous_layout(seq_len, heads, head_dim);
    inputs.K = inputs.V = contiguous_layout(seq_len_kv, kv_heads, head_dim);
    for (const TensorLayout& layout : {inputs.Q, inputs.K, inputs.V})
      inputs.buffers.emplace_back(batch * layout.batch_stride);
    inputs.K_buffer = 1;
    inputs.V_buffer = 2;
  }

  struct Part {
    TensorName name;
    const TensorLayout* layout;
    HostBuffer* buffer;
    std::int64_t rows, heads;
    std::int64_t (*num_rows)(const AttentionProblem&, std::int64_t batch);  // the rest is padding
  };
  const Part parts[] = {{TensorName::Q, &inputs.Q, &inputs.buffers[inputs.Q_buffer], seq_len, heads, num_queries},
                        {TensorName::K, &inputs.K, &inputs.buffers[inputs.K_buffer], seq_len_kv, kv_heads, num_keys},
                        {TensorName::V, &inputs.V, &inputs.buffers[inputs.V_buffer], seq_len_kv, kv_heads, num_keys}};
  // A piece of work is a run of rows, all heads, since those lie next to each other.
  constexpr std::int64_t kRows = 64;
  const auto pieces = [](const Part& part) { return (part.rows + kRows - 1) / kRows; };
  const std::int64_t pieces_per_batch = pieces(parts[0]) + pieces(parts[1]) + pieces(parts[2]);
  // Padding is NaN, so that it is seen in the output of a kernel that reads it.
  const std::uint16_t padding = element_from_float(dtype, std::numeric_limits<float>::quiet_NaN());
  const auto fill = [&](std::int64_t work) {
    const std::int64_t b = work / pieces_per_batch;
    std::int64_t piece = work % pieces_per_batch;
    const Part* part = parts;
    for (; piece >= pieces(*part); ++part) piece -= pieces(*part);
    const std::int64_t end = std::min(part->rows, (piece + 1) * kRows);
    for (std::int64_t row = piece * kRows; row < end; ++row)
      for (std::int64_t head = 0; head < part->heads; ++head) {
        std::uint16_t* const to = part->buffer->data() + part->layout->row(b, head, row);
        if (row >= part->num_rows(problem, b))
          std::fill_n(to, head_dim, padding);
        else
          fill_row(to, head_dim, dtype, elements(distribution, part->name, row, part->rows),
                   hash(seed, static_cast<std::uint64_t>(part->name) + 4 * static_cast<std::uint64_t>(distribution), b,
                        head, row));
      }
  };
  parallel_for(batch * pieces_per_batch, fill, progress, threads);
  if (dtype == Dtype::e4m3) quantise(inputs);
  return inputs;
}

float softmax_scale(std::int64_t head_dim) { return 1 / std::sqrt(static_cast<float>(head_dim)); }

}  // namespace flash_ladder
