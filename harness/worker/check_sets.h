// What a check consists of: small problems with inputs that are hard in different ways, then the problem asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/versions.h"
#include "rules/device_info.h"
#include "worker/inputs.h"

namespace flash_ladder {

struct CheckSet {
  std::string name;  // "ramp inputs", "one K/V tile"
  AttentionProblem problem;
  Distribution distribution = Distribution::normal;
  Packing packing = Packing::separate;
  std::int64_t row_tile = 1;  // of the RowSelection
  int launches = 2;           // which have to agree bit for bit
  // How many SMs the virtual GPU has for a version whose CTAs take several query tiles there; 0: all. With 2 and 3 each CTA takes
  // several, with 5 not all take as many.
  int sms = 0;
};

/// The set's name, with the number of SMs where it is not that of all sets: "ramp inputs on 3 SMs".
std::string full_name(const CheckSet& set);

/// The sets for a configuration and the problem that was asked for, which comes last. The small ones have the configuration's
/// dtype, one to three query tiles, and an odd or even number of K/V tiles, a single one, or so many that a ring of buffers is used
/// several times; more where the version solves more than the plain problem. On a GPU, which has all its SMs, there is also one of
/// more query tiles than it runs at a time.
std::vector<CheckSet> check_sets(const Version& version, const Configuration& configuration,
                                 const AttentionProblem& problem, const DeviceInfo& device);

/// Of how many neighbouring rows one is compared with the reference, for a problem with this many scores: every row when that
/// takes a second or so; else one row in 64, or fewer so that every query tile has one. Nearly all configurations have query
/// tiles that are multiples of 64, and so share the references that are kept in files.
std::int64_t row_tile(const AttentionProblem& problem, std::int64_t block_q);

}  // namespace flash_ladder
