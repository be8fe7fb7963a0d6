// The flags of the command line, in the groups and the order of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/options/options.h"
#include "app/options/problem_flags.h"

namespace flash_ladder {

/// Values as they were typed, where Options has something else.
struct TypedFlags {
  std::vector<std::string> diff, profiles;
  std::string device = "auto", sm, data, seed, repeat, timeout, max_instructions, source, row, head;
  bool list = false, sass = false, listing = false, quiz = false, record = false, no_check = false, no_bench = false;
  std::optional<ProblemFlags> problem;
};

/// Adds all flags. `options` and `typed` receive their values, and must stay where they are until parsing has finished.
void add_flags(CLI::App& app, Options& options, TypedFlags& typed);

}  // namespace flash_ladder
