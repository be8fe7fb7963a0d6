// What a check consists of: small problems with inputs that are hard in different ways, then the problem asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/versions.h"
#include "worker/inputs.h"

namespace flash_ladder {

struct CheckSet {
  std::string name;  // "ramp inputs", "one K/V tile"
  AttentionProblem problem;
  Distribution distribution = Distribution::normal;
  Packing packing = Packing::separate;
  std::int64_t row_tile = 1;  // of the RowSelection
  int launches = 2;           // which have to agree bit for bit
};

/// The sets for a configuration and the problem that was asked for, which comes last. The small ones have the configuration's
/// dtype, two query tiles, and an odd number of K/V tiles, or a single one; more where the version solves more than the plain
/// problem.
std::vector<CheckSet> check_sets(const Version& version, const Configuration& configuration,
                                 const AttentionProblem& problem);

/// Of how many neighbouring rows one is compared with the reference, for a problem with this many scores: every row when that
/// takes a second or so; else one row in 64, or fewer so that every query tile has one. Nearly all configurations have query
/// tiles that are multiples of 64, and so share the references that are kept in files.
std::int64_t row_tile(const AttentionProblem& problem, std::int64_t block_q);

}  // namespace flash_ladder
