// The virtual CUDA runtime: a library with the entry points of NVIDIA's (cudaMalloc, cudaLaunchKernel …) that runs kernels on
// the virtual GPU. A program is linked with it instead of cudart; its objects stay as nvcc made them.
//
// This header is for who wants to know what the kernels did beyond what CUDA's functions tell. Programs need not include it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/launch.h"
#include "emulator/report.h"
#include "emulator/trace.h"

namespace flash_ladder::emulator::runtime {

/// What the device is and does. Launches that follow a change go by it; sm and memory_bytes count at the first CUDA call.
struct Settings {
  int sm = kDefaultSm;  // whose limits hold
  int sm_count = 0;     // SMs that it says it has; 0: as many as the best-known GPU of that sm
  std::size_t memory_bytes = std::size_t{8} << 30;  // of the device
  unsigned threads = 0;                             // host threads that run CTAs; 0: as many as there are cores
  bool checks = true;                               // look for findings
  bool early_async = false;                         // Options::early_async
  bool count_lines = true;                          // counters per source line too
  std::optional<Dim3> trace_cta;                    // of which launches keep a trace
  std::uint64_t max_warp_instructions_per_cta = Options{}.max_warp_instructions_per_cta;
  std::uint64_t max_warp_instructions = Options{}.max_warp_instructions;  // per launch
  const std::atomic<bool>* interrupt = nullptr;  // launches end early once it is true, instead of by interrupt_launch()
  bool tells = true;                             // on standard error, what a program cannot see from an error code
};

/// The settings in force. At the start they come from the environment, where it says something: FLASH_LADDER_SM,
/// FLASH_LADDER_SM_COUNT, FLASH_LADDER_MAX_INSTRUCTIONS, FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS, FLASH_LADDER_THREADS,
/// FLASH_LADDER_ASYNC. Throws
/// std::invalid_argument for what they cannot be: they were meant to have an effect.
Settings& settings();

/// How many CTAs there are in the launches that `work` asks for, none of which runs.
std::uint64_t count_ctas(const std::function<void()>& work);

/// Makes device memory as if it had not been written since it was allocated; its bytes stay. A kernel that reads it then, without
/// having written it, gets a finding.
void mark_unwritten(const void* pointer, std::size_t size);

/// All launches of one kernel, added up.
struct KernelCounters {
  std::string kernel;    // mangled name
  std::string_view ptx;  // the text that it stands in; the program's
  std::uint64_t launches = 0;
  Counters totals;
  std::vector<LineCounters> lines;  // by position
  std::vector<Role> roles;          // of the first launch
};

/// Hands over what was counted since the last call (or the start), in order of first launch, and begins anew.
std::vector<KernelCounters> take_counters();

/// Hands over the traces of Settings::trace_cta, one for each launch since the last call, in order of launch.
std::vector<std::shared_ptr<const CtaTrace>> take_traces();

/// What kernels did wrong, and wrong uses of memory by the host, since the start of the program.
struct Findings {
  // In order of time. The same in several launches is one, with their count; there is a limit to how many are kept.
  std::vector<Finding> kept;
  std::uint64_t kinds = 0;  // how many are distinct, also of those that were not kept
  std::uint64_t total = 0;  // occurrences, likewise
};
Findings findings();
/// Hands them over and begins anew. An error of a kernel, which every later call would answer, is forgotten with them: what a
/// GPU needs a new process for.
Findings take_findings();

/// Asks the launch that is running, if there is one, to end early: its findings so far are recorded, and then SIGINT is raised again.
/// False if none is running. May be called by a signal handler.
bool interrupt_launch();

/// For a handler of SIGSEGV: whether the host touched memory that kernels or copies use which it has not waited for. Then that is a
/// finding, and the host can go on.
bool host_touched(const void* address);

/// Whether a kernel was not run because the virtual GPU cannot run it. Which and why has been said on standard error.
bool kernels_not_run();

}  // namespace flash_ladder::emulator::runtime
