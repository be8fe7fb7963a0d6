// The compiled code of the kernels: a shared library for each, which registers its version (host/registration.h) when it is
// loaded. A module contains no CUDA runtime and no registry, but uses those of the program, which exports them: CMake's
// ENABLE_EXPORTS. Nothing is ever unloaded, because a registered version refers to its module's functions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// Where the build puts modules and their list: the folder `kernels` next to this program.
std::filesystem::path module_folder();

/// The kernel files for which the folder's list says that there are modules, whether they are built or not. Empty if there is
/// no list: a program beside which there is none is linked with its kernels.
std::vector<std::filesystem::path> listed_kernels(const std::filesystem::path& folder);

/// A version's module: "NN_name.so".
std::filesystem::path module_file(const Version& version, const std::filesystem::path& folder);

/// Loads the code of an announced version, which thereby becomes registered; does nothing if it is. Throws UnavailableError,
/// which says what to do, if the module is missing or damaged, or if it is another version's.
void load_module(const Version& version, const std::filesystem::path& folder);

/// nullopt, or which traits of a version lie outside its own namespace, flash_ladder::vNN or flash_ladder::name, and what to
/// change. Where several versions are linked into one program, as in the Python package, the linker keeps one of two templates
/// with the same name, and runs one version's code for both.
std::optional<std::string> why_not_its_own_code(const Version& version);

/// nullopt, or that an extension extends what is not in versions(), and what it can extend.
std::optional<std::string> why_extends_none(const Version& version);

}  // namespace flash_ladder
