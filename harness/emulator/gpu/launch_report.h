// What the CTAs of a launch did: collected while they run, on several host threads, and written into a Report once.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/checks/block_races.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/used_memory.h"

namespace flash_ladder::emulator {

class LaunchReport {
 public:
  /// How the launch ended.
  struct End {
    bool interrupted = false;
    bool over_budget = false;
  };

  /// `lists_used`: list_used() will be called.
  LaunchReport(const LaunchContext& context, std::uint64_t num_ctas, bool lists_used);

  // From any thread.

  /// A CTA has ended, or has been stopped.
  void add(std::uint64_t index, CtaExecutor& executor, bool ended);
  /// An executor runs no more CTAs.
  void add_counters(const InstructionCounters& counters);
  /// The lowest CTA that did not end; the number of CTAs if there is none.
  std::uint64_t stopped_at() const { return stopped_at_; }

  // Once, after all CTAs.

  /// Prints what the kernel has printed.
  Report write(const End& end);
  /// The global memory that the launch has used. `shadow` tracked the accesses of CTAs that ran one at a time.
  void list_used(GlobalShadow& shadow, std::vector<UsedMemory>& used) const;

 private:
  // One CTA's contribution.
  struct CtaResult {
    std::vector<RawFinding> findings;
    std::string output;
  };

  void compare(std::uint64_t index, const MemoryUse& use);
  void add_findings(const End& end);
  void add_over_budget();
  void print(const std::string& output) const;
  void list_serial_use(GlobalShadow& shadow, std::vector<UsedMemory>& used) const;

  const LaunchContext& context_;
  const std::uint64_t num_ctas_;
  const bool compares_blocks_;

  std::atomic<std::uint64_t> stopped_at_;
  std::mutex mutex_;  // protects everything below
  Report report_;
  InstructionCounters counters_;
  std::map<std::uint64_t, CtaResult> results_;  // by CTA, for those that have a result
  // The memory accesses of CTAs that ended before CTAs with lower numbers.
  std::map<std::uint64_t, MemoryUse> uses_;
  std::uint64_t next_use_ = 0;
  BlockRaces block_races_;
};

}  // namespace flash_ladder::emulator
