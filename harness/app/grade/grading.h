// Points for student submissions: the grader is a separate program.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Replaces this process with harness/grader/grade.py. Throws UnavailableError if it cannot be started.
[[noreturn]] void become_grader(const Options& options);

}  // namespace flash_ladder
