#include "rules/suggestion.h"

#include <algorithm>
#include <numeric>

namespace flash_ladder {
namespace {

// The Levenshtein distance, one row of its table at a time.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string closest(const std::string& text, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = text.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t steps = distance(text, candidate);
    if (steps > least || (steps == least && best.empty())) continue;
    best = steps < least ? candidate : "";
    least = steps;
  }
  return best;
}

}  // namespace flash_ladder
