// Launches that make P, dP and dS of a backward pass visible in one tile of queries and one tile of keys. These matrices
// never leave the kernel, but an output is a product of one of them. If the other operand is one-hot in the tile and 0
// outside it, the output is the matrix:
//
//   dV = Pᵀ dO             dO of query i of the tile is one-hot at i: column i of dV is row i of P
//   dK = scale · dSᵀ Q     the same for Q
//   dQ = scale · dS K      K of key j is one-hot at j: column j of dQ is column j of dS
//
// dS is P if dP is 1 and D is 0, and it is dP if P is 1 and D is 0. L and O are inputs of the backward pass, so both can
// be arranged. The kernel needs no changes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "results/gradient_report.h"
#include "worker/gradients.h"
#include "worker/inputs.h"

namespace flash_ladder {

/// A tile of queries and a tile of keys, and the head of Q that is shown. If several heads of Q share one of K and V, the
/// others of its group have dO = 0.
struct GradientTile {
  std::int64_t first_query = 0, queries = 0, first_key = 0, keys = 0, head = 0;
};

/// Which matrix is shown, and through which output.
struct GradientProbe {
  enum class Matrix { P, dP, dS };
  enum class Output { dQ, dK, dV };  // in the order of kGradientNames
  Matrix matrix;
  Output through;
  bool S_is_0 = false;  // only for P through dV: Q is 0, and L differs from query to query, so that P = exp(-L)

  std::string_view matrix_name() const;
  std::string_view output_name() const { return kGradientNames[static_cast<std::size_t>(through)]; }
};

/// All probes but the one in which S is 0, in the order of the computation.
std::vector<GradientProbe> gradient_probes();

/// Whether head_dim has a column for each query or key of the tile.
bool can_show(const GradientProbe& probe, const GradientTile& tile, std::int64_t head_dim);

/// The inputs of a launch that shows the matrix, made from inputs with gradients, whose Q, K and V are in buffers of
/// their own.
Inputs inputs_of_probe(const GradientProbe& probe, const Inputs& inputs, const GradientTile& tile);

/// A copy of the inputs in which only one query has a dO and an O other than 0. Then dK is scale · dS of this query times its
/// Q, so that each key's dS can be read from it, with the inputs as they are.
Inputs inputs_of_one_query(const Inputs& inputs, std::int64_t batch, std::int64_t head, std::int64_t query);

/// What a launch wrote, beside its references, in the order of kGradientNames.
struct GradientOutcome {
  std::array<Reference, 3> references;
  std::optional<std::vector<HostBuffer>> outputs;  // nullopt: the launch faulted
};

/// An element of the matrix of a probe: what the kernel has and what is right.
struct ProbedElement {
  double got, expected, bound;
};
ProbedElement element_of_probe(const GradientProbe& probe, const Inputs& inputs, const GradientOutcome& outcome,
                               const GradientTile& tile, std::int64_t batch, std::int64_t head, std::int64_t query,
                               std::int64_t key);

/// Compares the matrix in all batch entries, and in the first head of each group, or in the shown one of each group. Does
/// not fill in `shown`.
SeenMatrix see_matrix(const GradientProbe& probe, const Inputs& inputs, const GradientOutcome& outcome,
                      const GradientTile& tile);

}  // namespace flash_ladder
