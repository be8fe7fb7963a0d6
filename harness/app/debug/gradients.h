// --debug for versions that compute gradients.
#pragma once

#include "app/options/options.h"
#include "app/run/runner.h"
#include "host/versions.h"
#include "results/gradient_report.h"

namespace flash_ladder {

/// Adds the places to look at to the report, and prints it. Returns the exit code of debug().
int show_gradients(const Version& version, GradientReport& report, const Runner& runner, const Options& options);

}  // namespace flash_ladder
