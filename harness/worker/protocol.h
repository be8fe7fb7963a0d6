// What the harness asks of a worker process, and what the worker answers.
//
// Each version runs in a process of its own, since a CUDA fault ends the process's CUDA context. The worker gets one request
// as JSON in its only argument and writes events to file descriptor 3, one JSON object a line:
//
//   {"event": "progress", "what": "check normal inputs", "done": 3, "total": 20}   before every step that may take long
//   {"event": "device", "device": {…}}                                             the answer to command "device"
//   {"event": "result", "result": {…}}                                             the answer to command "run": a Result
//   {"event": "results", "results": [{…}]}                                         the answer to command "time": a Result per
//                                                                                  configuration, in the order of the request
//   {"event": "error", "kind": "usage|unavailable|cuda", "message": "…"}           instead of an answer
//
// Standard output and standard error are free for the kernels' own printf. A worker that writes no event for
// `step_timeout_seconds` is taken to hang and is killed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "host/problem.h"
#include "host/sm_limits.h"

namespace flash_ladder {

constexpr int kEventFileDescriptor = 3;

/// A GPU as the worker sees it. All null or zero members mean "not known".
struct DeviceInfo {
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 90 for 9.0
  std::int64_t memory_total_bytes = 0;
  std::int64_t memory_free_bytes = 0;
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
  bool is_virtual = false;     // the virtual GPU: it counts and finds mistakes, and has no clock
  int smem_per_cta_bytes = 0;  // the most dynamic shared memory that a CTA can opt in to
  int driver_version = 0;      // 13000 for 13.0
  int runtime_version = 0;
  std::string driver;  // "580.159.04", empty when not known
  int sm_clock_max_mhz = 0;
  int memory_clock_max_mhz = 0;
};

/// The whole of a request.
struct Request {
  std::string command = "run";  // "run", "time" or "device"
  int device = 0;               // ordinal of the GPU
  // For the virtual GPU:
  int sm = kDefaultSm;                 // whose limits it has
  std::uint64_t max_instructions = 0;  // of the warps of one CTA, after which it is taken for endless; 0: the default
  // For "run", and for "time", which times several configurations in turn and checks nothing:
  std::string kernel;                // as --kernel names one: "7", "07_ldmatrix", "causal"
  std::string config;                // "run"; empty: the first that fits the device
  std::vector<std::string> configs;  // "time"
  AttentionProblem problem;
  std::uint64_t seed = 0;
  bool check = true;
  bool benchmark = true;
  int repeat = 20;
  bool only_requested_problem = false;  // check it alone, without the small problems that are hard in different ways
  int launches = 0;  // of the requested problem, which have to agree bit for bit; 0: the check's own number
  // A directory where workers of one harness run keep reference results, so that each is computed once; empty: none.
  std::string reference_cache;
};

void to_json(nlohmann::json& json, const DeviceInfo& info);
void from_json(const nlohmann::json& json, DeviceInfo& info);
void to_json(nlohmann::json& json, const Request& request);
void from_json(const nlohmann::json& json, Request& request);

}  // namespace flash_ladder
