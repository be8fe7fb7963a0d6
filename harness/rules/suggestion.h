// What somebody probably meant who typed something else.
#pragma once

#include <string>
#include <vector>

namespace flash_ladder {

/// The candidate that the fewest insertions, deletions and replacements of a letter lead to; empty where that takes more than a
/// third of the letters, or none is closer than another.
std::string closest(const std::string& text, const std::vector<std::string>& candidates);

}  // namespace flash_ladder
