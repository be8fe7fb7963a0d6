// What the compiled code says without running it: registers, spills, CTAs per SM, SASS counts. All of it is read from the
// files that the build leaves for each version and architecture:
//
//   <directory>/06_swizzle.sm_80.sass   nvdisasm's text of the cubin
//   <directory>/06_swizzle.sm_80.ptxas  ptxas's report (-v): registers and spills per function
//
// and the same for sm_90. A version with Hopper's own instructions has those of sm_90a instead.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// The study of one configuration for "sm_80", "sm_86", "sm_89" and "sm_90". An architecture that the
/// version does not run on, or whose files the build does not have, is left out; sm_90's code may be that for sm_90a. What is counted, and as what: harness/sass/sass_code.h.
///
/// A configuration may have several __global__ functions: registers, spills and shared memory are the largest of them,
/// ctas_per_sm the smallest, as if each were launched with the configuration's warps and shared memory; SASS is their sum.
/// The hot loop is the loop closest around the most HMMA (FFMA where the version has no HMMA) in any of them.
///
/// Throws UnavailableError when the files hold no function of the configuration.
std::map<std::string, StaticStudy> static_study(const Version& version, const Configuration& configuration,
                                                const std::filesystem::path& directory);

}  // namespace flash_ladder
