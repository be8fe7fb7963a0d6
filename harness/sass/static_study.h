// What the compiled code reveals without being run: registers, spills, CTAs per SM, SASS counts. It is all read from
// the files that the build leaves for each version and architecture:
//
//   <directory>/06_swizzle.sm_80.sass   nvdisasm's output for the cubin
//   <directory>/06_swizzle.sm_80.ptxas  ptxas's report (-v): registers and spills per function
//
// and the same for sm_90. A version with Hopper's own instructions has files for sm_90a instead.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// The study of one configuration for "sm_80", "sm_86", "sm_89" and "sm_90". An architecture is left out if the version
/// does not run on it, or if the build does not have its files; the code for sm_90 may be compiled for sm_90a.
/// harness/sass/sass_code.h defines what is counted, and under which names.
///
/// A configuration may have several __global__ functions: registers, spills and shared memory are the largest of their
/// values, ctas_per_sm the smallest, as if each were launched with the configuration's warps and shared memory; SASS is
/// their sum. The hot loop is the innermost loop around the most HMMA (FFMA if the version has no HMMA) in any of them.
///
/// Throws UnavailableError if the files contain no function of the configuration.
std::map<std::string, StaticStudy> static_study(const Version& version, const Configuration& configuration,
                                                const std::filesystem::path& directory);

}  // namespace flash_ladder
