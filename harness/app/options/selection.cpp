#include "app/options/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "errors.h"

namespace flash_ladder {

std::filesystem::path source_file(const Version& version, const std::filesystem::path& source_tree) {
  return source_tree / version.source;
}

std::size_t version_column_width() {
  std::size_t longest = 0;
  for (const Version& version : versions()) longest = std::max(longest, label(version).size());
  return longest + 2;
}

const Version* version_before(const Version& version) {
  if (version.is_extension()) return &select_version(version.extends);
  const Version* before = nullptr;
  for (const Version& other : versions())
    if (in_one_series(other, version) && other.number < version.number) before = &other;
  return before;
}

std::vector<const Version*> select_versions(const std::string& text) {
  std::set<const Version*> chosen;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.substr(std::min(part.find_first_not_of(' '), part.size())) == "all") {
      for (const Version& version : versions()) chosen.insert(&version);
      continue;
    }
    const auto dash = part.find('-');
    const auto first = parse_number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? std::nullopt : parse_number(part.substr(dash + 1));
    if (!first || !last) {
      chosen.insert(&select_version(part));
      continue;
    }
    if (first->series != last->series)
      throw UsageError(
          fmt::format("the range '{}' begins in one track and ends in another; write a range for each", part));
    if (first->number > last->number)
      throw UsageError(fmt::format("the range '{}' is empty: it ends before it starts; write {}{:02}-{}{:02}", part,
                                   last->series, last->number, first->series, first->number));
    bool found = false;
    for (const Version& version : versions())
      if (const auto number = number_of(version); number && number->series == first->series &&
                                                  number->number >= first->number && number->number <= last->number) {
        chosen.insert(&version);
        found = true;
      }
    if (!found) throw UsageError(fmt::format("the range '{}' is empty: there are {}", part, known_versions()));
  }

  std::vector<const Version*> selected;
  for (const Version& version : versions())
    if (chosen.contains(&version)) selected.push_back(&version);
  if (selected.empty())
    throw UsageError(fmt::format("--kernel '{}' names no version; there are {}", text, known_versions()));
  return selected;
}

}  // namespace flash_ladder
