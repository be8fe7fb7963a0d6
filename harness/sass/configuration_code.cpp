#include "sass/configuration_code.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "errors.h"

namespace flash_ladder {

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

std::optional<std::string> read_study_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string needed_study_file(const std::filesystem::path& path) {
  auto text = read_study_file(path);
  if (!text)
    throw UnavailableError(fmt::format("'{}' is missing: build again, with scripts/setup harness", path.string()));
  return std::move(*text);
}

bool belongs_to(const std::string& mangled, const Configuration& configuration) {
  return demangled(mangled).find(demangled(configuration.traits)) != std::string::npos;
}

void refuse_code(const std::filesystem::path& file, const Configuration& configuration) {
  throw UnavailableError(
      fmt::format("{} has no __global__ function with {} in its name: build again, because the file does not belong "
                  "to this harness",
                  file.string(), demangled(configuration.traits)));
}

}  // namespace flash_ladder
