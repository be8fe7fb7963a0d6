// Which functions of a study file are a configuration's.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// What the compiler calls a function or type, as C++ has it; any other name as it is.
std::string demangled(const std::string& name);

/// A study file's text; nullopt when there is none.
std::optional<std::string> read_study_file(const std::filesystem::path& path);

/// The same; throws UnavailableError when there is none.
std::string needed_study_file(const std::filesystem::path& path);

/// Whether a __global__ function is one of the configuration's: the configuration's traits are part of its name.
bool belongs_to(const std::string& mangled, const Configuration& configuration);

/// Throws UnavailableError: the file has no function of the configuration.
[[noreturn]] void refuse_code(const std::filesystem::path& file, const Configuration& configuration);

}  // namespace flash_ladder
