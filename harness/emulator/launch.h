// Running a kernel: what a launch takes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "emulator/memory.h"
#include "emulator/module.h"
#include "emulator/report.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {

/// What stands between <<< and >>>, and the arguments.
struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  Dim3 cluster{0, 0, 0};  // CTAs of each, as a launch attribute says; zeros: what the kernel says (__cluster_dims__)
  std::size_t dynamic_shared_bytes = 0;
  Address grid_workspace = 0;             // of a cooperative launch: what grid.sync() counts in, 8 bytes that are 0
  std::span<const std::byte> parameters;  // as pack_parameters() lays them out
};

struct Options {
  int sm = kDefaultSm;   // whose limits hold
  unsigned threads = 0;  // host threads, 0: as many as there are cores. Results and counters do not depend on it.
  bool checks =
      true;  // look for findings; without, only what could crash the host is still found: accesses out of bounds
  bool early_async = false;    // wgmma and TMA do their work as early as the ISA allows, instead of as late
  bool count_lines = true;     // counters per source line, not only in total
  bool list_executed = false;  // Report::executed
  // Endless loops: a CTA that has executed so many warp instructions is stopped, with a finding.
  std::uint64_t max_warp_instructions_per_cta = 200'000'000;
  // How whoever reads that finding can allow more, since a program may only be long: a sentence, or nothing.
  std::string_view how_to_allow_more = {};
  // The same for all CTAs together. Which CTAs have run by then depends on the host's threads.
  std::uint64_t max_warp_instructions = 20'000'000'000;
  // How many CTAs the GPU holds at a time: of those that wait for others. 0: all of them.
  std::uint64_t max_resident_ctas = 0;
  // Set by somebody else: the launch is to end as soon as it can, with what was found so far.
  const std::atomic<bool>* interrupt = nullptr;
  // Gets how many CTAs have ended, while the launch runs.
  std::atomic<std::uint64_t>* ctas_ended = nullptr;
  int registers_per_thread = 0;        // as ptxas reported for this kernel; 0: unknown, not checked
  std::optional<Dim3> trace_cta = {};  // the CTA, by its blockIdx, of which Report::trace is to tell
  std::size_t max_findings = 100;      // distinct ones that are kept; the others are counted
  std::function<void(std::string_view)>
      print;  // gets what the kernel's printf prints, in order of CTA; default: stdout
};

/// Throws std::invalid_argument for an sm that is not in the list of host/sm_limits.h.
const SmLimits& known_limits(int sm);

/// Runs all CTAs of the grid and waits for them. Whatever is wrong with what the kernel does is in the report; PtxError if it
/// has an instruction that is not known, std::invalid_argument if the parameter bytes are too few.
Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options = {});

}  // namespace flash_ladder::emulator
