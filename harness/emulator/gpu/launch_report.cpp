#include "emulator/gpu/launch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

#include "emulator/gpu/launch_limits.h"

namespace flash_ladder::emulator {
namespace {

// If memory was read while uninitialised, and then written without an order, it was read too early: one finding says
// so, with both sides, and the other follows from it.
void merge_early_reads(std::vector<Finding>& findings) {
  std::vector<bool> follows(findings.size());
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& early = findings[i];
    if (early.kind != FindingKind::uninitialised_read) continue;
    for (Finding& race : findings) {
      if (race.kind != FindingKind::race || !race.other || race.other->what != "read" || race.other->cta) continue;
      if (race.other->position != early.position || race.kernel != early.kernel) continue;
      follows[i] = true;
      const OtherAccess write{.what = "written", .position = race.position, .warp = race.warp, .lane = race.lane};
      race.message =
          fmt::format("a read of byte {} of shared memory before the write that it needs: nothing orders the two",
                      race.address.value_or(0));
      race.position = early.position;
      race.instruction = early.instruction;
      race.ptx_line = early.ptx_line;
      race.warp = race.other->warp;
      race.lane = race.other->lane;
      race.other = write;
      race.waits = early.waits;
    }
  }
  std::vector<Finding> first, after;
  for (std::size_t i = 0; i < findings.size(); ++i) (follows[i] ? after : first).push_back(std::move(findings[i]));
  findings = std::move(first);
  std::ranges::move(after, std::back_inserter(findings));
}

// A barrier that threads miss causes races, and a missing barrier causes races inside warps as well as between them.
void put_causes_first(std::vector<Finding>& findings) {
  merge_early_reads(findings);
  const auto is_race = [](const Finding& finding) { return finding.kind == FindingKind::race; };
  std::vector<Finding> races;
  for (Finding& finding : findings) {
    if (is_race(finding)) races.push_back(std::move(finding));
  }
  std::stable_partition(races.begin(), races.end(), [](const Finding& race) {
    return race.other && (race.other->cta || race.other->warp != race.warp);
  });
  auto next = races.begin();
  for (Finding& finding : findings) {
    if (is_race(finding)) finding = std::move(*next++);
  }
  std::stable_partition(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.kind == FindingKind::divergent_barrier || finding.kind == FindingKind::overwritten;
  });
}

// Adds memory to a list of what has been used, in which adjacent ranges are merged.
void add_used(std::vector<UsedMemory>& used, Address address, std::size_t size, bool writes, bool of_system) {
  if (!used.empty() && used.back().end == address && used.back().writes == writes &&
      used.back().of_system == of_system) {
    used.back().end += size;
  } else {
    used.push_back({.begin = address, .end = address + size, .writes = writes, .of_system = of_system});
  }
}

}  // namespace

LaunchReport::LaunchReport(const LaunchContext& context, std::uint64_t num_ctas, bool lists_used)
    : context_(context),
      num_ctas_(num_ctas),
      compares_blocks_(context.options.checks && !context.kernel.serial && (num_ctas > 1 || lists_used)),
      stopped_at_(num_ctas),
      counters_(context.kernel.code.size()),
      block_races_(context.allocations, context.kernel.global_granule) {}

void LaunchReport::add(std::uint64_t index, CtaExecutor& executor, bool ended) {
  if (!ended) {
    for (std::uint64_t lowest = stopped_at_; index < lowest && !stopped_at_.compare_exchange_weak(lowest, index);) {
    }
  } else if (context_.options.ctas_ended != nullptr) {
    context_.options.ctas_ended->fetch_add(1, std::memory_order_relaxed);
  }
  CtaResult result{executor.take_findings(), executor.take_output()};
  MemoryUse use;
  if (compares_blocks_) use = executor.memory().take_use();
  auto trace = executor.take_trace();
  const std::lock_guard lock(mutex_);
  if (index == 0) report_.roles = executor.roles();
  if (trace) report_.trace = std::make_shared<const CtaTrace>(std::move(*trace));
  if (!result.findings.empty() || !result.output.empty()) results_[index] = std::move(result);
  if (!compares_blocks_) return;
  uses_[index] = std::move(use);
  for (auto next = uses_.begin(); next != uses_.end() && next->first == next_use_; next = uses_.erase(next)) {
    compare(next->first, next->second);
    ++next_use_;
  }
}

void LaunchReport::add_counters(const InstructionCounters& counters) {
  const std::lock_guard lock(mutex_);
  counters_ += counters;
}

// Finds the races of a CTA with those before it.
void LaunchReport::compare(std::uint64_t index, const MemoryUse& use) {
  const CompiledKernel& kernel = context_.kernel;
  const std::uint64_t cluster_size = size_of(context_.cluster);
  FindingRecorder recorder;
  block_races_.add(index, use, [&](const BlockRaces::Race& race) {
    // The CTAs of a cluster can communicate: their races were found while they ran.
    if (cluster_size > 1 && race.cta / cluster_size == race.other_cta / cluster_size) return;
    const std::int32_t place = place_of(kernel, race.instruction),
                       other_place = place_of(kernel, race.other_instruction);
    if (!recorder.is_new(FindingKind::race, place, other_place)) return;
    RawFinding raw = describe(context_, FindingKind::race, cta_at(context_, race.cta), -1, race.instruction, -1,
                              race.address, message_of(context_, race.kind, race.address, true));
    raw.other_place = other_place;
    raw.finding.other = {.what = race.kind == GlobalConflict::Kind::write_after_read ? "read" : "written",
                         .position = position_of(kernel, race.other_instruction),
                         .cta = cta_at(context_, race.other_cta)};
    recorder.add(std::move(raw));
  });
  if (recorder.empty()) return;
  std::vector<RawFinding> found = recorder.take();
  auto& findings = results_[index].findings;
  findings.insert(findings.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
}

Report LaunchReport::write(const End& end) {
  const Options& options = context_.options;
  report_.interrupted = end.interrupted;
  if ((end.interrupted || end.over_budget) && stopped_at_ == num_ctas_) stopped_at_ = num_ctas_ - 1;
  for (const auto& [index, use] : uses_) compare(index, use);  // CTAs after the ones that were stopped

  // The counters of a launch that was stopped depend on how far each thread had got, so they are left out.
  if (stopped_at_ < num_ctas_) {
    report_.outcome = Outcome::stopped;
  } else {
    summarise(context_.kernel, counters_, options.count_lines, report_);
    if (options.list_executed) report_.executed = executed_text(context_.kernel, counters_);
  }
  add_findings(end);
  if (end.over_budget) add_over_budget();
  put_causes_first(report_.findings);
  if (report_.findings.size() > options.max_findings) report_.findings.resize(options.max_findings);
  return std::move(report_);
}

void LaunchReport::add_findings(const End& end) {
  std::map<std::tuple<FindingKind, std::int32_t, std::int32_t>, std::size_t> known;  // numbered in order of occurrence
  for (auto& [index, result] : results_) {
    if (index > stopped_at_ && !end.interrupted && !end.over_budget) break;
    for (RawFinding& raw : result.findings) {
      report_.findings_total += raw.finding.count;
      const auto [found, is_new] = known.try_emplace(raw.key(), known.size());
      if (is_new) {
        report_.findings.push_back(std::move(raw.finding));
      } else {
        report_.findings[found->second].count += raw.finding.count;
      }
    }
    if (!result.output.empty()) print(result.output);
  }
  report_.findings_kinds = known.size();
}

void LaunchReport::print(const std::string& output) const {
  if (context_.options.print) {
    context_.options.print(output);
  } else {
    std::fwrite(output.data(), 1, output.size(), stdout);
  }
}

void LaunchReport::add_over_budget() {
  report_.over_budget = true;
  report_.busiest = busiest_position(context_.kernel, counters_);
  Finding finding;
  finding.kind = FindingKind::launch_limits;
  finding.message = fmt::format(
      "the launch has executed {} warp instructions, and not all of its {} blocks have ended. Is the grid meant to "
      "be this large? "
      "FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS=N (scripts/emulate --max-launch-instructions N) lets it run longer",
      context_.options.max_warp_instructions, num_ctas_);
  finding.kernel = context_.kernel.name;
  report_.findings.insert(report_.findings.begin(), std::move(finding));
  ++report_.findings_total;
  ++report_.findings_kinds;
}

void LaunchReport::list_used(GlobalShadow& shadow, std::vector<UsedMemory>& used) const {
  if (!context_.options.checks) return;
  if (context_.kernel.serial) return list_serial_use(shadow, used);
  block_races_.for_each_used([&](Address address, std::size_t size, bool writes) {
    add_used(used, address, size, writes,
             false);  // such accesses do not occur, because they would make the kernel serial
  });
}

void LaunchReport::list_serial_use(GlobalShadow& shadow, std::vector<UsedMemory>& used) const {
  const CompiledKernel& kernel = context_.kernel;
  const MemoryUse use = shadow.take_use();
  const auto add = [&](Address address, std::size_t size, std::int32_t read, std::int32_t write) {
    const auto of_system = [&](std::int32_t instruction) {
      return instruction == MemoryUse::kNothing || kernel.code[static_cast<std::size_t>(instruction)].of_system;
    };
    add_used(used, address, size, write != MemoryUse::kNothing, of_system(read) && of_system(write));
  };
  for (const MemoryUse::Line& line : use.lines) {
    if (line.read != MemoryUse::kMixed && line.write != MemoryUse::kMixed) {
      add(line.address, MemoryUse::kLineBytes, line.read, line.write);
      continue;
    }
    const auto granule = static_cast<std::size_t>(kernel.global_granule);
    for (std::size_t i = 0; i < MemoryUse::kLineBytes / granule; ++i) {
      const std::int32_t write = line.write == MemoryUse::kMixed ? use.mixed[line.writes + i] : line.write;
      const std::int32_t read = line.read == MemoryUse::kMixed ? use.mixed[line.reads + i] : line.read;
      if (write != MemoryUse::kNothing || read != MemoryUse::kNothing)
        add(line.address + i * granule, granule, read, write);
    }
  }
}

}  // namespace flash_ladder::emulator
