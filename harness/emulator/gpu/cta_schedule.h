// The order in which the CTAs of a launch run: on several host threads, and in turn where some wait for others.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "emulator/exec/cta_executor.h"
#include "emulator/gpu/launch_report.h"

namespace flash_ladder::emulator {

class CtaSchedule {
 public:
  CtaSchedule(LaunchContext& context, LaunchReport& report, std::uint64_t num_ctas);

  /// Runs all CTAs, and adds what each of them did to the report. Rethrows what stopped a thread.
  LaunchReport::End run();

 private:
  struct Resident {  // a CTA that waits for others
    std::uint64_t index;
    std::unique_ptr<CtaExecutor> executor;
    std::uint64_t seen = 0;  // the value of `resumptions_` when it found nothing new
  };

  void run_ctas();
  void run_on_all_threads();
  void start_ctas();
  void start_single_ctas();
  void start_clusters();
  std::vector<CtaExecutor::State> run_cluster(const std::vector<CtaExecutor*>& peers);
  void run_resident();
  bool let_lanes_yield();
  void give_up(std::uint64_t unstarted);
  void retire(CtaExecutor& executor);
  void spend(CtaExecutor& executor);
  bool interrupted() const;

  LaunchContext& context_;
  LaunchReport& report_;
  const std::uint64_t num_ctas_, cluster_size_, most_resident_;

  std::atomic<std::uint64_t> next_cta_ = 0, executed_ = 0;
  std::atomic<bool> over_budget_ = false;
  std::atomic<bool> full_ = false;  // there is no room for more resident CTAs
  std::mutex mutex_;                // protects these two
  std::vector<Resident> resident_;
  std::exception_ptr error_;
  std::uint64_t resumptions_ = 1;  // those that changed memory
};

}  // namespace flash_ladder::emulator
