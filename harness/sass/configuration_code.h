// Which functions of a study file belong to a configuration.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// The demangled C++ name of a function or type; any other name is returned unchanged.
std::string demangled(const std::string& name);

/// A study file's text; nullopt if there is no such file.
std::optional<std::string> read_study_file(const std::filesystem::path& path);

/// The same, but throws UnavailableError if there is no such file.
std::string needed_study_file(const std::filesystem::path& path);

/// Whether a __global__ function belongs to the configuration, whose traits are part of the function's name.
bool belongs_to(const std::string& mangled, const Configuration& configuration);

/// Throws UnavailableError: the file has no function of the configuration.
[[noreturn]] void refuse_code(const std::filesystem::path& file, const Configuration& configuration);

}  // namespace flash_ladder
