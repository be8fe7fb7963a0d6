// The flags of harness/grader/grade.py, which receives them as they were typed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace flash_ladder {

/// Adds the flags; those that are typed are appended to `words`.
void add_grading_flags(CLI::App& app, std::vector<std::string>& words);

/// Whether a flag asks for the grader. Throws UsageError if one of the flags only adds to such a flag, and there is none,
/// or if one is combined with a flag that is not the grader's.
bool asks_for_grader(const CLI::App& app);

}  // namespace flash_ladder
