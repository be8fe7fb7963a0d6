// The problems that a check runs: first small problems with inputs that are difficult in different ways, then the
// requested problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/versions.h"
#include "rules/device_info.h"
#include "worker/gradients.h"
#include "worker/inputs.h"

namespace flash_ladder {

struct CheckSet {
  std::string name;  // "ramp inputs", "one K/V tile"
  AttentionProblem problem;
  Distribution distribution = Distribution::normal;
  Packing packing = Packing::separate;
  OutputGradient output_gradient = OutputGradient::normal;  // of a backward problem
  std::int64_t row_tile = 1;                                // tile of the RowSelection
  int launches = 2;                                         // these must agree bit for bit
  // The number of SMs of the virtual GPU for a version whose CTAs take several query tiles there; 0: all. With 2 and 3
  // each CTA takes several tiles, with 5 the CTAs take different numbers of them.
  int sms = 0;
};

/// The set's name, with the number of SMs if it is not the usual one: "ramp inputs on 3 SMs".
std::string full_name(const CheckSet& set);

/// The sets for a configuration and the requested problem, which comes last. The small ones have the configuration's
/// dtype, one to three query tiles or, in one set, many, and an odd or even number of K/V tiles, only one, or so many
/// that a ring of buffers is used several times; there are more sets if the version solves more than the plain problem.
/// On a GPU, which always has all its SMs, one more set has more query tiles than the GPU runs at a time.
std::vector<CheckSet> check_sets(const Version& version, const Configuration& configuration,
                                 const AttentionProblem& problem, const DeviceInfo& device);

/// One out of how many neighbouring rows is compared with the reference, for a problem with this many scores: every row
/// if that takes a second or so; otherwise one row in 64, or fewer, so that every query tile has one. Nearly all
/// configurations have query tiles that are multiples of 64, and so they share the references that are kept in files.
std::int64_t row_tile(const AttentionProblem& problem, std::int64_t block_q);

}  // namespace flash_ladder
