// The kernels' machine code as text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// The machine code that an SM of this compute capability runs: "sm_80" or "sm_90".
std::string code_name(int sm);

/// The same of a version, as the build names its files: "sm_90a" for Hopper's own instructions.
std::string code_name(const Version& version, int sm);

/// What nvdisasm prints of DIRECTORY/STEM.cubin ("07_ldmatrix.sm_90"), with the line of the PTX that each instruction comes from;
/// nullopt when there is no such code. It is printed when it is first asked for, since that takes half a second and a build makes
/// fifty of them, and kept beside the cubin as STEM.sass, if the folder can be written.
///
/// Throws UnavailableError when nvdisasm does not run.
std::optional<std::string> machine_code(const std::filesystem::path& directory, const std::string& stem);

/// The same; throws UnavailableError when there is none.
std::string needed_machine_code(const std::filesystem::path& directory, const std::string& stem);

}  // namespace flash_ladder
