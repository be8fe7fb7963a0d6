// What a backward problem has beyond Q, K and V: its other inputs, and the expected gradients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/inputs.h"
#include "worker/parallel.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// The size of dO's elements, z · factor, where z is a standard normal number. A loss that is a mean over many tokens has small
/// gradients, and loss scaling makes them large (Micikevicius et al., "Mixed Precision Training", 2018).
enum class OutputGradient {
  normal,   // factor 1
  large,    // factor 4096: the largest elements exceed 10^4
  reduced,  // factor 1/16: for Q and K that are so large that gradients would overflow fp16 otherwise
  small,    // factor 10^-4: close to the smallest normal number of fp16
};

/// dO, and what the forward pass leaves behind: O, computed in float64 and rounded to the type, and L, rounded to fp32.
struct GradientInputs {
  HostBuffer dO, O;
  TensorLayout dO_layout, O_layout;
  std::vector<float> log_sum_exp;  // by log_sum_exp_layout(): -inf for padding and for a row that sees no key
  // The same in float64, and D = rowsum(dO ∘ O), 0 for padding: what the reference uses.
  std::vector<double> exact_log_sum_exp, exact_D;
};

/// The inputs of a backward problem whose Q, K and V are `inputs`. If they have gaps, dO has the layout
/// [batch, heads, seq_len, head_dim_v], so that no other tensor has its strides. Padding of dO and O is NaN. Throws std::logic_error
/// for a problem with a field that only decoding has. `cache` is a file that keeps O, L and D, and is read instead if it exists;
/// empty: none. Work: head_dim + head_dim_v multiplications per score, in float64.
std::shared_ptr<const GradientInputs> make_gradient_inputs(const Inputs& inputs, Packing packing,
                                                           OutputGradient output_gradient, std::uint64_t seed,
                                                           const std::filesystem::path& cache = {},
                                                           const Progress& progress = {}, int threads = 0);

/// The same for a dO that was not drawn. It has the layout of O.
std::shared_ptr<GradientInputs> complete_gradient_inputs(const Inputs& inputs, HostBuffer dO,
                                                         const Progress& progress = {}, int threads = 0);

constexpr std::array<std::string_view, 3> kGradientNames = {"dQ", "dK", "dV"};

/// A problem whose O has the shape of a gradient, whose rows are its queries: `which` is in the order of kGradientNames.
AttentionProblem problem_of_gradient(const AttentionProblem& problem, std::size_t which);

/// The first of dO, O and L that a launch has changed. `after` holds DeviceProblem::gradient_inputs().
std::optional<std::string> find_changed_input(const GradientInputs& before, const std::vector<HostBuffer>& after);

/// dQ, dK and dV in float64, by the formulas of common/gradients.h, for selected rows of each. `problem` of a Reference is
/// problem_of_gradient(). The bound is 2 · max|base - gradient| + one ulp of the type at max|gradient|, per (batch, head), where
/// base is in fp32, takes D from dO and the rounded O, rounds P and dS to the input type before they are multiplied, and rounds
/// the result. Where a query does not see a key, P and dS are 0, as are rows of padding. With softcap, dS has one factor more,
/// ScoreChange::derivative(); with dropout, dV has M/keep ∘ P in place of P, and dS M/keep ∘ dP in place of dP. dK and dV have
/// kv_heads heads, and are sums over the heads of Q that share one. None has a log-sum-exp. `cache` is as for
/// make_gradient_inputs(). Work: 7 multiplications per element of a selected row and row of the other kind, in float64 and in fp32.
std::array<Reference, 3> make_gradient_references(const Inputs& inputs, std::int64_t row_tile, std::uint64_t seed,
                                                  const std::filesystem::path& cache = {},
                                                  const Progress& progress = {}, int threads = 0);

}  // namespace flash_ladder
