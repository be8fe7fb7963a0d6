#include "worker/version_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <vector>

#include "errors.h"

namespace flash_ladder {
namespace {

const Version* find_version(const std::string& text) {
  const auto underscore = text.find('_');
  const auto number = parse_number(text.substr(0, underscore));
  for (const Version& version : versions()) {
    const bool name_fits = underscore == std::string::npos || text.substr(underscore + 1) == version.name;
    if (version.is_extension() ? text == version.name : number == version.number && name_fits) return &version;
  }
  return nullptr;
}

}  // namespace

std::optional<int> parse_number(const std::string& text) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || stop != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::string known_versions() {
  std::vector<std::string> names;
  for (const Version& version : versions()) names.push_back(label(version));
  return names.empty() ? "none at all" : fmt::format("{}", fmt::join(names, ", "));
}

const Version& select_version(const std::string& text) {
  if (const Version* version = find_version(text)) return *version;
  throw UsageError(fmt::format("there is no version '{}'; there are {}", text, known_versions()));
}

}  // namespace flash_ladder
