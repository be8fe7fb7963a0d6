// Rules for flags that exclude or require each other.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace flash_ladder {

/// Throws UsageError if two of the typed flags contradict each other, or if one lacks the flag to which it belongs.
/// `profiles` is what --profiles names: two names compare recordings.
void refuse_contradictions(const CLI::App& app, const std::vector<std::string>& profiles);

}  // namespace flash_ladder
