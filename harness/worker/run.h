// A "run" request: check and time one version. A "time" request: time several of its configurations. A "debug" request: look at
// O tile by tile.
#pragma once

#include <vector>

#include "results/microscope.h"
#include "results/result.h"
#include "rules/protocol.h"
#include "worker/events.h"

namespace flash_ladder {

/// Does what the request asks for. A wrong result is an answer, and is not timed. Throws UsageError for what the version does
/// not support, UnavailableError where there is no GPU for it, CudaError when a CUDA call fails.
Result run(const Request& request, EventWriter& events);

/// Times the configurations in turn, on the same inputs, and checks nothing. Throws as run() does.
std::vector<Result> time_in_turn(const Request& request, EventWriter& events);

/// What `harness --debug` shows. A wrong output is an answer, and so is a kernel that faults. Throws as run() does.
Microscope debug(const Request& request, EventWriter& events);

}  // namespace flash_ladder
