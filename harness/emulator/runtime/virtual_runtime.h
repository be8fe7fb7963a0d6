// The virtual CUDA runtime: a library with the entry points of NVIDIA's (cudaMalloc, cudaLaunchKernel …) that runs kernels
// on the virtual GPU. A program is linked with it instead of cudart; its objects remain exactly as nvcc generated them.
//
// This header is for code that needs to know more about the kernels than CUDA's functions report. Programs need not
// include it.
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

/// The properties and behaviour of the device. A change affects the launches that follow it; sm and memory_bytes are
/// read at the first CUDA call.
struct Settings {
  int sm = kDefaultSm;  // the SM whose limits apply
  int sm_count = 0;     // number of SMs that it reports; 0: as many as the best-known GPU of that sm
  std::size_t memory_bytes = std::size_t{8} << 30;  // of the device
  unsigned threads = 0;                             // host threads that run CTAs; 0: one per core
  bool checks = true;                               // look for findings
  bool early_async = false;                         // Options::early_async
  bool count_lines = true;                          // counters per source line too
  std::optional<Dim3> trace_cta;                    // the CTA whose trace launches keep
  std::uint64_t max_warp_instructions_per_cta = Options{}.max_warp_instructions_per_cta;
  std::uint64_t max_warp_instructions = Options{}.max_warp_instructions;  // per launch
  const std::atomic<bool>* interrupt = nullptr;  // launches end early once it is true; replaces interrupt_launch()
  bool explains_errors = true;                   // print on standard error what a program cannot see from an error code
};

/// The settings in force. Their initial values come from environment variables, if those are set: FLASH_LADDER_SM,
/// FLASH_LADDER_SM_COUNT, FLASH_LADDER_MAX_INSTRUCTIONS, FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS, FLASH_LADDER_THREADS,
/// FLASH_LADDER_ASYNC. Throws std::invalid_argument for an invalid value, because it was meant to have an effect.
Settings& settings();

/// The number of CTAs in the launches that `work` requests; none of them runs.
std::uint64_t count_ctas(const std::function<void()>& work);

/// Marks device memory as not written since it was allocated; its bytes stay. A kernel that then reads it without
/// having written it gets a finding.
void mark_unwritten(const void* pointer, std::size_t size);

/// The sum over all launches of one kernel.
struct KernelCounters {
  std::string kernel;    // mangled name
  std::string_view ptx;  // the text that contains it; owned by the program
  std::uint64_t launches = 0;
  Counters totals;
  std::vector<LineCounters> lines;  // by position
  std::vector<Role> roles;          // of the first launch
};

/// Returns what was counted since the last call (or the start), in order of first launch, and resets the counters.
std::vector<KernelCounters> take_counters();

/// Returns the traces of Settings::trace_cta, one for each launch since the last call, in launch order.
std::vector<std::shared_ptr<const CtaTrace>> take_traces();

/// Errors of kernels, and invalid uses of memory by the host, since the start of the program.
struct Findings {
  // In order of time. Repetitions in several launches are one finding with their count; the number kept is limited.
  std::vector<Finding> kept;
  std::uint64_t kinds = 0;  // number of distinct findings, including those that were not kept
  std::uint64_t total = 0;  // number of occurrences, likewise
};
Findings findings();
/// Returns the findings and resets them. An error of a kernel, which every later call would return, is cleared with
/// them; on a GPU that takes a new process.
Findings take_findings();

/// Makes the running launch, if there is one, end early: its findings so far are recorded, and then SIGINT is raised
/// again. False if no launch is running. May be called by a signal handler.
bool interrupt_launch();

/// For a handler of SIGSEGV: whether the host accessed memory that is still in use by kernels or copies that it has not
/// waited for. Then that is a finding, and the host can continue.
bool host_touched(const void* address);

/// Whether a kernel was not run because the virtual GPU cannot run it. The kernel and the reason have been printed on
/// standard error.
bool kernels_not_run();

}  // namespace flash_ladder::emulator::runtime
