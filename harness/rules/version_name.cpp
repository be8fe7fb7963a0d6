#include "rules/version_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "errors.h"
#include "rules/suggestion.h"

namespace flash_ladder {
namespace {

// "07_ldmatrix" for " kernels/07_ldmatrix.cu ".
std::string without_blanks_and_path(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  const std::string ending = ".cu";
  if (text.ends_with(ending)) text = text.substr(0, text.size() - ending.size());
  return text.substr(text.rfind('/') + 1);
}

const Version* find_version(const std::string& typed) {
  const std::string text = without_blanks_and_path(typed);
  // An extension has its name to itself, and a numbered version may share its own with others.
  for (const Version& version : versions())
    if (text == kernel_id(version)) return &version;
  for (const Version& version : versions())
    if (text == version.name) return &version;
  const auto underscore = text.find('_');
  const auto number = parse_number(text.substr(0, underscore));
  for (const Version& version : versions()) {
    const bool name_fits = underscore == std::string::npos || text.substr(underscore + 1) == version.name;
    if (number && number == number_of(version) && name_fits) return &version;
  }
  return nullptr;
}

}  // namespace

std::optional<TypedNumber> parse_number(const std::string& text) {
  TypedNumber typed;
  const std::size_t first = std::min(text.find_first_not_of(' '), text.size());
  const char *begin = text.data() + first, *end = text.data() + text.find_last_not_of(' ') + 1;
  for (const Track track : {Track::backward, Track::decoding})
    if (const char letter = series(track)[0];
        typed.series.empty() && begin < end && (*begin == letter || *begin == letter - 'A' + 'a')) {
      typed.series = letter;
      ++begin;
    }
  const auto [stop, error] = std::from_chars(begin, std::max(begin, end), typed.number);
  if (error != std::errc{} || stop != end || typed.number < 0) return std::nullopt;
  return typed;
}

std::optional<TypedNumber> number_of(const Version& version) {
  if (version.is_extension()) return std::nullopt;
  return TypedNumber{series(version.track), version.number};
}

std::string known_versions() {
  std::vector<std::string> names;
  for (const Version& version : versions()) names.push_back(label(version));
  return names.empty() ? "none at all" : fmt::format("{}", fmt::join(names, ", "));
}

const Version& select_version(const std::string& text) {
  if (const Version* version = find_version(text)) return *version;
  std::set<std::string> names;  // versions of several tracks may share one
  for (const Version& version : versions()) names.insert({label(version), version.name});
  const std::string meant = closest(without_blanks_and_path(text), {names.begin(), names.end()});
  throw UsageError(fmt::format("there is no version '{}'{} there are {}", text,
                               meant.empty() ? ";" : fmt::format("; did you mean {}? If not,", meant),
                               known_versions()));
}

}  // namespace flash_ladder
