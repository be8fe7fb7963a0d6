// The sets of a check that only one kind of problem has, and the small problems of which all sets are variants.
#pragma once

#include <vector>

#include "host/versions.h"
#include "worker/check_sets.h"

namespace flash_ladder {

using Sets = std::vector<CheckSet>;

/// Two query tiles, and an odd number of K/V tiles.
AttentionProblem small_problem(const Configuration& configuration);
/// As many queries as keys: whole tiles of both kinds, and at least two of each.
AttentionProblem square_problem(const Configuration& configuration);

/// The same sets with no more queries than the version solves.
void limit_queries(Sets& sets, std::int64_t most);
/// One query of each head, and as many as the version solves, against caches of many lengths, in pages and in 8 bits.
void add_decoding(Sets& sets, const Version& version, const Configuration& configuration);
/// Gradients of all sizes, and scores from which they are hard to compute.
void add_backward(Sets& sets, const Solves& solves, const Configuration& configuration);

}  // namespace flash_ladder
