// The requests that the harness sends to a worker process, and the worker's answers.
//
// Each version runs in its own process, because a CUDA fault destroys the process's CUDA context. The worker gets one
// request as JSON in its only argument and writes events to file descriptor 3, one JSON object per line:
//
//   {"event": "progress", "what": "check normal inputs", "done": 3, "total": 20}   before every step that may take long
//   {"event": "device", "device": {…}}                                             the answer to command "device"
//   {"event": "result", "result": {…}}                                             the answer to command "run": a Result
//   {"event": "results", "results": [{…}]}                                         the answer to command "time": a Result per
//                                                                                  configuration, in the order of the request
//   {"event": "debug_report", "debug_report": {…}}                                     the answer to command "debug": a DebugReport, or a GradientReport
//   {"event": "error", "kind": "usage|unavailable|cuda", "message": "…"}           instead of an answer
//
// Standard output and standard error are free for the kernels' own printf. A worker that writes no event for
// `step_timeout_seconds` is assumed to hang and is killed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/problem.h"
#include "host/sm_limits.h"
#include "problem/distribution.h"
#include "rules/device_info.h"

namespace flash_ladder {

constexpr int kEventFileDescriptor = 3;

/// A complete request.
struct Request {
  std::string command = "run";  // "run", "time", "debug" or "device"
  int device = 0;               // ordinal of the GPU
  // For the virtual GPU:
  int sm = kDefaultSm;                 // the SM whose limits it has
  std::string trace;                   // "run": the file for the trace of CTA 0; empty: no trace
  std::uint64_t max_instructions = 0;  // of the warps of a CTA, which then counts as endless; 0: the default
  // For "run"; for "time", which times several configurations in turn and checks nothing; for "debug":
  std::string kernel;                // as for --kernel: "7", "07_ldmatrix", "causal"
  std::string config;                // "run", "debug"; empty: the first that fits the device
  std::vector<std::string> configs;  // "time"
  AttentionProblem problem;
  Distribution data = Distribution::normal;  // data of the problem
  std::uint64_t seed = 0;
  bool check = true;
  bool benchmark = true;
  int repeat = 20;
  bool only_requested_problem = false;  // check it alone, without the small problems that are hard in different ways
  bool stop_when_wrong = false;         // stop at the first wrong output, and do not look for the cause
  // "debug": which row to show; nullopt: the first wrong one
  std::optional<std::int64_t> head, row;
  int launches = 0;  // of the requested problem, which must agree bit for bit; 0: the check's own number
  // A directory in which the workers of one harness run keep reference results, so that each is computed only once;
  // empty: none.
  std::string reference_cache;
};

void to_json(nlohmann::json& json, const DeviceInfo& info);
void from_json(const nlohmann::json& json, DeviceInfo& info);
void to_json(nlohmann::json& json, const Request& request);
void from_json(const nlohmann::json& json, Request& request);

}  // namespace flash_ladder
