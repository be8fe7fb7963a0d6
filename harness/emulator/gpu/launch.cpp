#include "emulator/launch.h"

#include <fmt/format.h>

#include <stdexcept>

#include "emulator/exec/cta_executor.h"
#include "emulator/gpu/cta_schedule.h"
#include "emulator/gpu/launch_limits.h"
#include "emulator/gpu/launch_report.h"
#include "emulator/used_memory.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace flash_ladder::emulator {
namespace {

// Keeps memory that a launch has freed for the next one: otherwise the C library returns it to the system, which hands
// it out again page by page.
void keep_freed_memory() {
#ifdef __GLIBC__
  [[maybe_unused]] static const bool done = [] {
    constexpr int kMiB = 1 << 20;
    mallopt(M_MMAP_THRESHOLD, 4 * kMiB);  // larger blocks have their own pages, which are returned immediately
    mallopt(M_TRIM_THRESHOLD, 64 * kMiB);
    return true;
  }();
#endif
}

Report refused(const Kernel& kernel, const std::string& reason) {
  Finding finding;
  finding.kind = FindingKind::launch_limits;
  finding.message = reason;
  finding.kernel = kernel.name();
  Report report;
  report.outcome = Outcome::refused;
  report.findings.push_back(std::move(finding));
  report.findings_kinds = report.findings_total = 1;
  return report;
}

Report run(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options,
           std::vector<UsedMemory>* used) {
  keep_freed_memory();
  if (const std::string reason = refusal(kernel, config, options); !reason.empty()) return refused(kernel, reason);
  if (config.parameters.size() < kernel.parameter_bytes()) {
    throw std::invalid_argument(fmt::format("{} bytes of parameters for {}, which takes {}", config.parameters.size(),
                                            kernel.name(), kernel.parameter_bytes()));
  }
  const CompiledKernel& compiled = kernel.compiled();
  LaunchContext context{compiled, config, memory, options, cluster_of(kernel, config), memory.allocations()};
  LaunchOrdering ordering;
  GlobalShadow shadow(compiled.global_granule, GlobalShadow::Of::launch);
  if (options.checks && compiled.serial) {
    context.ordering = &ordering;
    context.shadow = &shadow;
  }
  const std::uint64_t num_ctas = size_of(config.grid);
  LaunchReport collected(context, num_ctas, used != nullptr);
  Report report = collected.write(CtaSchedule(context, collected, num_ctas).run());
  if (used != nullptr) collected.list_used(shadow, *used);
  return report;
}

}  // namespace

Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options) {
  return run(kernel, config, memory, options, nullptr);
}

Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options,
              std::vector<UsedMemory>& used) {
  return run(kernel, config, memory, options, &used);
}

}  // namespace flash_ladder::emulator
