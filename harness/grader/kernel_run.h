// Launches of kernels from an untrusted PTX text on the virtual GPU, in a child process that can do nothing but
// compute; the parent then judges the output. The child never has the expected output, because the parent computes it
// after the child has ended.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "grader/isolation.h"

namespace flash_ladder {

/// Limits on every request. One that reaches a time limit ends without a verdict, because it depends on the machine.
struct RunLimits {
  bool isolated = true;
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;
  std::uint64_t cpu_seconds = 60;
  std::uint64_t wall_seconds = 120;
};

/// Performs the launch that the request describes, and those that follow it:
///
///   {"kernel": "flash_attention<Traits<__half>>",  as returned by simple_name()
///    "grid": [2, 3, 1], "block": [128, 1, 1], "shared": 49152, "sm": 80, "instructions": 1000000,
///    "arguments": [{"tensors": true} | {"gradients": true} | {"buffer": "Q"} | {"int": 3} | {"float": 0.5}, …],
///                                                  {"tensors": true}: AttentionArgs; {"gradients": true}: Gradients
///    "then": [{"kernel", "grid", "block", "shared", "arguments"}, …],       optional: later launches, on the same memory
///    "problem": {…}, "layouts": {"Q": "bshd" | "bhsd" | "bhds", …}, "softmax_scale": 0.125, "inputs": "normal", "seed": 7,
///    "hidden": true, "gradients": ["dV"], "log_sum_exp_base": 2, "workspace": 4096}      the last three are optional: see Attention
///
/// or, in place of the last two lines, "buffers": {"x": {"bytes": "0000803f…"}, "y": {"size": 4096}}; without bytes, a
/// buffer is uninitialised. The answer:
///
///   {"status": "ran" | "refused" | "not_graded",   refused: the kernel, or its request, cannot run; not_graded: no verdict
///    "message": "…",                               unless it ran
///    "findings": [{"kind", "message", "line", "text", "count"}], "counters": {…}, "lines": [{"line", "position", "counters"}],
///    "useful": {…},                                emulator::UsefulWork; what the workspace receives counts as well
///    "shared_bytes": 1024,                         static and dynamic shared memory of a CTA, the most of all launches
///    "printed": "…",                               the beginning of the kernel's output
///    "wrong": "…",                                 for a problem: why the output is wrong; empty if it is right
///    "buffers": {"y": "…"}}                        the bytes of the buffers at the end; for a problem, only of its outputs
///
/// `line` is a line of the submission, or null. Throws std::exception for an invalid request.
nlohmann::json run_kernel(const std::string& ptx, const std::string& source_name, const nlohmann::json& request,
                          const RunLimits& limits);

/// A kernel's name as a student writes it: demangled, without namespaces, return type and parameters:
/// "flash_attention<Traits<__half>>".
std::string simple_name(const std::string& mangled);

}  // namespace flash_ladder
