// A trace of one CTA of a launch on the virtual GPU, as a file in Chrome's trace format ("Trace Event Format"), which
// https://ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <filesystem>

#include "results/result.h"

namespace flash_ladder {

/// Writes result.traces: a process for each kernel of the launch, a thread for each warp, and an event for each run of
/// instructions of one phase and one source line, with the line in "args". A microsecond of the format is one instruction
/// here. The "args" of a wait name the barrier ("mbarrier": its byte in shared memory, or "barrier": its number), its
/// phase, and the warp that arrived last ("ended_by"). Arrivals and requests to TMA are instant events; wgmmas in flight
/// are asynchronous ones. "otherData" contains the version, configuration, problem and hash of the PTX, the roles of the
/// warps with their registers, and the lines where the mbarriers were initialised. Throws UnavailableError.
void write_trace(const std::filesystem::path& path, const Result& result);

}  // namespace flash_ladder
