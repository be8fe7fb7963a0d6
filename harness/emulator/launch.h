// Launching a kernel: the configuration and the options.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "emulator/memory.h"
#include "emulator/module.h"
#include "emulator/report.h"
#include "emulator/useful_work.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {

struct UsedMemory;

/// The parameters between <<< and >>>, and the arguments.
struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  Dim3 cluster{0, 0, 0};  // CTAs in each dimension, from a launch attribute; zeros: as declared (__cluster_dims__)
  std::size_t dynamic_shared_bytes = 0;
  Address grid_workspace = 0;             // for a cooperative launch: the counter of grid.sync(), 8 bytes that are 0
  std::span<const std::byte> parameters;  // as pack_parameters() lays them out
  // For a dependent launch: what the kernel ahead of it uses, by address. It may still be running until a thread has executed
  // griddepcontrol.wait.
  const std::vector<UsedMemory>* ahead = nullptr;
};

struct Options {
  int sm = kDefaultSm;   // the SM whose limits apply
  unsigned threads = 0;  // host threads, 0: one per core. Results and counters do not depend on it.
  bool checks =
      true;  // look for findings; if false, only errors that could crash the host are found: accesses out of bounds
  bool early_async = false;    // wgmma and TMA work as early as the ISA allows, instead of as late as it allows
  bool count_lines = true;     // counters per source line, not only totals
  bool list_executed = false;  // Report::executed
  // Endless loops: a CTA that has executed this many warp instructions is stopped, with a finding.
  std::uint64_t max_warp_instructions_per_cta = 200'000'000;
  // How the reader of that finding can raise the limit, because a program may simply be long: a sentence, or empty.
  std::string_view how_to_allow_more = {};
  // The same for all CTAs together. Which CTAs have run by then depends on the number of host threads.
  std::uint64_t max_warp_instructions = 20'000'000'000;
  // For CTAs that wait for others: how many CTAs the GPU holds at a time. 0: all of them.
  std::uint64_t max_resident_ctas = 0;
  // Set from outside: the launch is to end as soon as possible, with the findings so far.
  const std::atomic<bool>* interrupt = nullptr;
  // Receives the number of CTAs that have ended, while the launch runs.
  std::atomic<std::uint64_t>* ctas_ended = nullptr;
  int registers_per_thread = 0;  // as ptxas reported for this kernel; 0: unknown, not checked
  std::vector<MemoryRange> outputs =
      {};                              // the memory whose contents count as the result, for Report::useful; empty: none
  std::optional<Dim3> trace_cta = {};  // the CTA, by its blockIdx, to record in Report::trace
  std::size_t max_findings = 100;      // the number of distinct findings to keep; further ones are only counted
  std::function<void(std::string_view)>
      print;  // receives the output of the kernel's printf, in order of CTA; default: stdout
};

/// Throws std::invalid_argument for an sm that host/sm_limits.h does not list.
const SmLimits& known_limits(int sm);

/// Runs all CTAs of the grid and waits for them. Errors in what the kernel does are in the report. Throws PtxError for
/// an unknown instruction, std::invalid_argument if there are too few parameter bytes.
Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options = {});

}  // namespace flash_ladder::emulator
