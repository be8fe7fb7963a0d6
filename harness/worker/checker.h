// Decides whether an output is right. Pure functions of host memory, so planted faults can test them without a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "results/result.h"
#include "worker/inputs.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// The value that fills the output before a launch: a NaN in fp16 and in bf16. An element that still has these bits was
/// not written, because CUDA's own NaN has other bits.
constexpr std::uint16_t kPoison = 0xffff;

/// The value that fills the guard bands around a buffer: a NaN in fp16, in bf16 and, as a pair, in fp32, so that
/// reading it spoils the output; a stray kernel is unlikely to write this value.
constexpr std::uint16_t kGuard = 0xffa5;

/// The checker's verdict on one output.
struct Verdict {
  std::string reason;                // what is wrong and where it starts; empty if the output is right
  double max_abs_error = 0;          // over the compared elements; NaN if one of them is
  double relative_error = 0;         // max over (batch, head) of max|out - ref| / bound; NaN as above
  std::vector<Mismatch> mismatches;  // the first few, in order of batch, head, row, column
  std::string tile_map;              // the wrong query tiles of each head; empty if there are none

  bool correct() const { return reason.empty(); }
};

/// Compares the selected rows with the reference and looks for NaN, infinity and poison in all others. `block_q` is the
/// height of the tiles in the map. The bound is Reference::bound; a NaN never satisfies it.
Verdict check_output(const Inputs& inputs, const Reference& reference, const HostBuffer& output, std::int64_t block_q,
                     int threads = 0);
/// The same for dQ, dK or dV, whose rows are compared in tiles of `block` rows. In the mismatches, what is expected of a row that is
/// not selected is NaN.
Verdict check_gradient(const Reference& reference, const HostBuffer& gradient, std::int64_t block, int threads = 0);

/// What is wrong with the log-sum-exps [batch][heads][seq_len], or [heads][total] if packed, and where it starts. Compares
/// the selected rows with the reference, by Reference::log_sum_exp_bound, and looks for NaN, infinity and poison in all
/// others. A row that sees no key must have -inf, and no other row may.
std::optional<std::string> find_wrong_log_sum_exp(const Reference& reference, std::span<const float> got);

/// nullopt if the bands before and after a buffer, both filled with kGuard, are untouched; otherwise what was written
/// and where.
std::optional<std::string> find_guard_damage(const std::string& buffer, std::span<const std::uint16_t> before,
                                             std::span<const std::uint16_t> after);

/// The first element of Q, K or V that a launch has changed. `after` holds the buffers of `before` as they are now. If the
/// problem appends, of Q.
std::optional<std::string> find_changed_input(const Inputs& before, const std::vector<HostBuffer>& after,
                                              int threads = 0);

/// If the problem appends: the first element of K and V that is not what it should be after the launch. In a new row, a rotated
/// element may differ from the exact one by half an ulp of its type, and by as much as fp32 rounds. Everything else, gaps and
/// unused pages included, must be as it was.
std::optional<std::string> find_wrong_append(const Inputs& before, const std::vector<HostBuffer>& after);

/// The first element at which the outputs of two launches differ.
std::optional<std::string> find_difference(const AttentionProblem& problem, const HostBuffer& first,
                                           const HostBuffer& second, int threads = 0);

/// The same for two log-sum-exps.
std::optional<std::string> find_difference(const AttentionProblem& problem, std::span<const float> first,
                                           std::span<const float> second);

}  // namespace flash_ladder
