// Guesses the intended word from a misspelt one.
#pragma once

#include <string>
#include <vector>

namespace flash_ladder {

/// The candidate that the fewest insertions, deletions and replacements of a letter lead to; empty if that takes more
/// than a third of the letters, or if no single candidate is closest.
std::string closest(const std::string& text, const std::vector<std::string>& candidates);

}  // namespace flash_ladder
