// The kernels' machine code as text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// The architecture whose machine code an SM of this compute capability runs: "sm_80" or "sm_90".
std::string code_name(int sm);

/// The same for one version, as in the names of the build's files: "sm_90a" for Hopper's own instructions.
std::string code_name(const Version& version, int sm);

/// The output of nvdisasm for DIRECTORY/STEM.cubin ("07_ldmatrix.sm_90"), with the line of the PTX that each
/// instruction comes from; nullopt if there is no such code. nvdisasm runs on first use, because it takes half a second
/// and a build produces fifty cubins; the text is then kept beside the cubin as STEM.sass, if the folder is writable.
///
/// Throws UnavailableError if nvdisasm does not run.
std::optional<std::string> machine_code(const std::filesystem::path& directory, const std::string& stem);

/// The same, but throws UnavailableError if there is no such code.
std::string needed_machine_code(const std::filesystem::path& directory, const std::string& stem);

}  // namespace flash_ladder
