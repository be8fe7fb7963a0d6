// What a kernel file's registration says, as text: for commands that need no compiled kernel.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flash_ladder {

/// The part of a Description (host/registration.h) that the file spells out.
struct RegistrationText {
  std::string extends;                      // "16"; empty: nothing
  std::string architecture;                 // "sm_90a"; empty: the default
  std::vector<std::string> solves;          // the members that it sets to true
  std::vector<std::string> configurations;  // the names, each once, the preferred one first
};

/// Reads the statement that begins with `Registration NAME(`; everything is empty if there is none. Throws UnavailableError if
/// the file cannot be read.
RegistrationText read_registration(const std::filesystem::path& source);

}  // namespace flash_ladder
