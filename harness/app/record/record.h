// `harness --kernel … --record`: measures versions at the standard shapes and keeps the figures in profiles/.
#pragma once

#include <vector>

#include "app/options/options.h"
#include "host/versions.h"

namespace flash_ladder {

/// The problems at which a version is recorded on a GPU: the standard shapes in fp16 and in e4m3, and the default shape
/// in bf16, for each of these types that the version computes; the longest shapes only if it is_fast(). An extension is
/// recorded at all of them with the field that it adds, and at two lengths, in fp16, without it and with each field that
/// its base solves, too. One that adds no field changes how all are solved, and is recorded at all shapes with each.
std::vector<AttentionProblem> standard_problems(const Version& version);

/// The problems at which a configuration is recorded on the virtual GPU: a small shape, and one with an odd number of
/// K/V tiles; more if the version solves more than the plain problem.
std::vector<AttentionProblem> emulator_problems(const Version& version, const Configuration& configuration);

/// Returns the exit code. A version's profile is written only if everything that ran was right.
int record(const Options& options);

}  // namespace flash_ladder
