// A "run" request checks and times one version. A "time" request times several of its configurations. A "debug" request
// inspects O tile by tile, or gradients step by step.
#pragma once

#include <variant>
#include <vector>

#include "results/debug_report.h"
#include "results/gradient_report.h"
#include "results/result.h"
#include "rules/protocol.h"
#include "worker/events.h"

namespace flash_ladder {

/// Performs the request. A wrong result is an answer, and is not timed. Throws UsageError for a problem that the
/// version does not support, UnavailableError if there is no GPU for it, CudaError if a CUDA call fails.
Result run(const Request& request, EventWriter& events);

/// Times the configurations in turn, on the same inputs, without checking them. Throws as run() does.
std::vector<Result> time_in_turn(const Request& request, EventWriter& events);

/// The contents of `harness --debug`. A wrong output is an answer, and so is a kernel that faults. Throws as run() does.
std::variant<DebugReport, GradientReport> debug(const Request& request, EventWriter& events);

}  // namespace flash_ladder
