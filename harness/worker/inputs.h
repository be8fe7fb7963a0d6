// Q, K and V for a check or a benchmark, generated from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/problem.h"
#include "problem/distribution.h"
#include "worker/parallel.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// How the three tensors are placed in memory.
enum class Packing {
  separate,    // each in its own buffer [batch, rows, heads, head_dim]
  with_gaps,   // the same with gaps of NaN, and strides that no two tensors share
  packed_qkv,  // one buffer [batch, rows, heads of Q, K and V, head_dim or head_dim_v], as a fused projection leaves them; needs seq_len = seq_len_kv
};

/// The scale of the scores that kernels, reference and base use unless another is given: 1 / sqrt(head_dim).
float softmax_scale(std::int64_t head_dim);

struct GradientInputs;  // worker/gradients.h

struct Inputs {
  AttentionProblem problem;
  std::vector<HostBuffer> buffers;  // one, or one each for Q, K and V
  TensorLayout Q, K, V;
  int Q_buffer = 0, K_buffer = 0, V_buffer = 0;  // the buffers that contain them
  std::optional<float> other_scale;              // scale of the scores; nullopt: softmax_scale(head_dim)
  std::vector<float> scales;               // as in ExtendedArgs: [3][batch][heads]; empty unless something is e4m3
  std::vector<float> alibi_slopes, sinks;  // [heads]; empty unless the problem has them
  // If the problem appends: the last key and value of each batch entry, which K and V above have, too, as rows of their own.
  HostBuffer new_K, new_V;
  TensorLayout new_K_layout, new_V_layout;  // one row for each batch entry
  HostBuffer rotary_cos, rotary_sin;        // [seq_len_kv][rotary_dim / 2], elements; empty unless the problem rotates
  std::shared_ptr<const GradientInputs> gradients;  // of a backward problem: dO, O and L

  /// The elements of a row. `head` is one of Q's heads; for K and V, the result is the row that this head reads.
  const std::uint16_t* Q_row(std::int64_t batch, std::int64_t head, std::int64_t row) const;
  const std::uint16_t* K_row(std::int64_t batch, std::int64_t head, std::int64_t row) const;
  const std::uint16_t* V_row(std::int64_t batch, std::int64_t head, std::int64_t row) const;
  float scale() const { return other_scale.value_or(softmax_scale(problem.head_dim)); }
};

/// Rotates a row of Q, or the last row of K, if the problem does: `row` has head_dim numbers.
template <typename T>
void rotate(const Inputs& inputs, std::int64_t batch, T* row);

/// Whether a buffer has 8-bit elements on the device: that of Q, K or V of an e4m3 problem, or that of K or V if the cache is e4m3.
bool is_in_8_bits(const Inputs& inputs, int buffer);

/// For a buffer of 8-bit elements: the elements of each row of a tensor in it, counted from its start, and the scale of its head.
/// Visits rows of different heads on several threads at once.
void for_each_scaled_row(const Inputs& inputs, int buffer,
                         const std::function<void(std::int64_t begin, std::int64_t end, float scale)>& visit);

/// A pseudo-random number that depends only on the arguments.
std::uint64_t hash(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d = 0);

/// Where a problem's Q, K and V are, and their memory. Gaps, and pages that are not full, are NaN; everything else has any value.
Inputs memory_for(const AttentionProblem& problem, Packing packing);

/// The inputs of a problem. A row's elements depend on the seed, the distribution, the tensor, and the row's batch
/// entry, head and number, so they are the same for every packing and number of threads.
Inputs make_inputs(const AttentionProblem& problem, Distribution distribution, Packing packing, std::uint64_t seed,
                   const Progress& progress = {}, int threads = 0);

}  // namespace flash_ladder
