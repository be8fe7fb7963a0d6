// Points for what students hand in: the grader is a program of its own.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// This process becomes harness/grader/grade.py. Throws UnavailableError when it cannot be started.
[[noreturn]] void become_grader(const Options& options);

}  // namespace flash_ladder
