#include "emulator/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "emulator/checks/block_races.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/trace.h"
#include "emulator/used_memory.h"
#include "host/known_sms.h"
#include "host/sm_limits.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace flash_ladder::emulator {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMaxLocalBytes = 512 * kKiB;  // per thread, on every GPU

// One CTA's contribution to the report.
struct CtaResult {
  std::vector<RawFinding> findings;
  std::string output;
};

constexpr std::uint32_t kMostCtasOfCluster = 16;

// The number of CTAs in a cluster.
Dim3 cluster_of(const Kernel& kernel, const LaunchConfig& config) {
  if (config.cluster.x != 0) return config.cluster;
  const auto [x, y, z] = kernel.compiled().cluster;
  return {x, y, z};
}

std::uint64_t size_of(const Dim3& cluster) { return std::uint64_t{cluster.x} * cluster.y * cluster.z; }

// Why a launch is not possible on the given GPU; empty if it is.
std::string refusal(const Kernel& kernel, const LaunchConfig& config, const Options& options) {
  const SmLimits& limits = known_limits(options.sm);
  const Dim3 &grid = config.grid, &block = config.block;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const auto size = [](const Dim3& d) { return fmt::format("({}, {}, {})", d.x, d.y, d.z); };
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return fmt::format("a grid of {} blocks of {} threads: no dimension can be 0", size(grid), size(block));
  }
  if (block.x > kMaxBlockX || block.y > kMaxBlockY || block.z > kMaxBlockZ || threads > kMaxThreadsPerCta) {
    return fmt::format("blocks of {} = {} threads; sm_{} allows {}, at most {}", size(block), threads, options.sm,
                       kMaxThreadsPerCta, size({kMaxBlockX, kMaxBlockY, kMaxBlockZ}));
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    return fmt::format("a grid of {} blocks; the limits are {}", size(grid), size({kMaxGridX, kMaxGridYZ, kMaxGridYZ}));
  }
  const Dim3 cluster = cluster_of(kernel, config);
  if (const std::uint64_t ctas = size_of(cluster); ctas == 0 || ctas > kMostCtasOfCluster)
    return fmt::format("clusters of {} blocks; there can be 1 to {} in a cluster", size(cluster), kMostCtasOfCluster);
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    return fmt::format("a grid of {} blocks, which is not a multiple of clusters of {}", size(grid), size(cluster));
  const auto most = kernel.max_block();
  if (most[0] != 0 && threads > std::uint64_t{most[0]} * most[1] * most[2]) {
    return fmt::format("blocks of {} threads; the kernel was compiled for at most {} (__launch_bounds__)", threads,
                       std::uint64_t{most[0]} * most[1] * most[2]);
  }
  const auto required = kernel.required_block();
  if (required[0] != 0 && (required[0] != block.x || required[1] != block.y || required[2] != block.z)) {
    return fmt::format("blocks of {} threads; the kernel was compiled for ({}, {}, {}) only", size(block), required[0],
                       required[1], required[2]);
  }
  const std::size_t shared = kernel.static_shared_bytes() + config.dynamic_shared_bytes;
  if (shared > static_cast<std::size_t>(limits.smem_per_cta_bytes)) {
    return fmt::format("{} bytes of shared memory per block ({} static, {} dynamic); sm_{} has {}", shared,
                       kernel.static_shared_bytes(), config.dynamic_shared_bytes, options.sm,
                       limits.smem_per_cta_bytes);
  }
  if (kernel.local_bytes() > kMaxLocalBytes) {
    return fmt::format("{} bytes of local memory per thread; there are at most {}", kernel.local_bytes(),
                       kMaxLocalBytes);
  }
  if (options.registers_per_thread > 0) {
    const auto registers = static_cast<std::uint32_t>(options.registers_per_thread);
    // Allocated to whole warps, 256 at a time.
    const std::uint64_t per_warp = (std::uint64_t{registers} * 32 + 255) / 256 * 256;
    const std::uint64_t total = (threads + 31) / 32 * per_warp;
    if (registers > kMaxRegistersPerThread || total > static_cast<std::uint64_t>(limits.registers)) {
      return fmt::format("{} registers per thread, {} for the block; sm_{} has {} per thread and {} in all", registers,
                         total, options.sm, kMaxRegistersPerThread, limits.registers);
    }
  }
  return {};
}

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

}  // namespace

const SmLimits& known_limits(int sm) {
  const SmLimits* limits = sm_limits(sm);
  if (limits == nullptr)
    throw std::invalid_argument(fmt::format("sm_{}: the virtual GPU knows only the limits of {}", sm, known_sms()));
  return *limits;
}

namespace {

// The memory that the launch has used, with adjacent ranges merged.
class Used {
 public:
  explicit Used(std::vector<UsedMemory>& used) : used_(used) {}
  void operator()(Address address, std::size_t size, bool writes, bool of_system) {
    if (!used_.empty() && used_.back().end == address && used_.back().writes == writes &&
        used_.back().of_system == of_system) {
      used_.back().end += size;
    } else {
      used_.push_back({.begin = address, .end = address + size, .writes = writes, .of_system = of_system});
    }
  }

 private:
  std::vector<UsedMemory>& used_;
};

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

Report run(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options,
           std::vector<UsedMemory>* used) {
  keep_freed_memory();
  Report report;
  if (const std::string reason = refusal(kernel, config, options); !reason.empty()) {
    Finding finding;
    finding.kind = FindingKind::launch_limits;
    finding.message = reason;
    finding.kernel = kernel.name();
    report.outcome = Outcome::refused;
    report.findings.push_back(std::move(finding));
    report.findings_kinds = report.findings_total = 1;
    return report;
  }
  if (config.parameters.size() < kernel.parameter_bytes()) {
    throw std::invalid_argument(fmt::format("{} bytes of parameters for {}, which takes {}", config.parameters.size(),
                                            kernel.name(), kernel.parameter_bytes()));
  }
  const CompiledKernel& compiled = kernel.compiled();
  const Dim3 cluster = cluster_of(kernel, config);
  const std::uint64_t cluster_size = size_of(cluster);
  LaunchContext context{compiled, config, memory, options, cluster, memory.allocations()};
  LaunchOrdering ordering;
  GlobalShadow shadow(compiled.global_granule, GlobalShadow::Of::launch);
  if (options.checks && compiled.serial) {
    context.ordering = &ordering;
    context.shadow = &shadow;
  }
  const std::uint64_t num_ctas = std::uint64_t{config.grid.x} * config.grid.y * config.grid.z;

  unsigned num_threads = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  if (compiled.serial) num_threads = 1;
  num_threads = static_cast<unsigned>(std::min<std::uint64_t>(num_threads, num_ctas));

  std::atomic<std::uint64_t> next_cta = 0, executed = 0;
  std::atomic<std::uint64_t> stopped_at = num_ctas;  // the lowest CTA that did not end
  std::atomic<bool> over_budget = false;
  std::mutex mutex;
  std::map<std::uint64_t, CtaResult> results;  // by CTA, for those that have a result
  InstructionCounters counters(compiled.code.size());
  // The memory accesses of CTAs that ended before CTAs with lower numbers.
  BlockRaces block_races(context.allocations, compiled.global_granule);
  std::map<std::uint64_t, MemoryUse> uses;
  std::uint64_t next_use = 0;
  const bool compares_blocks = options.checks && !compiled.serial && (num_ctas > 1 || used != nullptr);
  const auto compare = [&](std::uint64_t index, const MemoryUse& use) {
    FindingRecorder recorder;
    block_races.add(index, use, [&](const BlockRaces::Race& race) {
      // The CTAs of a cluster can communicate: their races were found while they ran.
      if (cluster_size > 1 && race.cta / cluster_size == race.other_cta / cluster_size) return;
      const std::int32_t place = place_of(compiled, race.instruction),
                         other_place = place_of(compiled, race.other_instruction);
      if (!recorder.is_new(FindingKind::race, place, other_place)) return;
      RawFinding raw = describe(context, FindingKind::race, cta_at(context, race.cta), -1, race.instruction, -1,
                                race.address, message_of(context, race.kind, race.address, true));
      raw.other_place = other_place;
      raw.finding.other = {.what = race.kind == GlobalConflict::Kind::write_after_read ? "read" : "written",
                           .position = position_of(compiled, race.other_instruction),
                           .cta = cta_at(context, race.other_cta)};
      recorder.add(std::move(raw));
    });
    if (recorder.empty()) return;
    std::vector<RawFinding> found = recorder.take();
    auto& findings = results[index].findings;
    findings.insert(findings.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  };
  std::exception_ptr error;
  struct Resident {  // a CTA that waits for others
    std::uint64_t index;
    std::unique_ptr<CtaExecutor> executor;
    std::uint64_t seen = 0;  // the value of `turns` when it found nothing new
  };
  std::vector<Resident> resident;
  const auto by_index = [](const Resident& a, const Resident& b) { return a.index < b.index; };
  const std::uint64_t most_resident =
      options.max_resident_ctas != 0 ? options.max_resident_ctas : std::numeric_limits<std::uint64_t>::max();
  std::atomic<bool> full = false;

  // Called after a CTA has ended, or has been stopped.
  const auto finish = [&](std::uint64_t index, CtaExecutor& executor, bool ended) {
    if (!ended) {
      for (std::uint64_t lowest = stopped_at; index < lowest && !stopped_at.compare_exchange_weak(lowest, index);) {
      }
    } else if (options.ctas_ended != nullptr) {
      options.ctas_ended->fetch_add(1, std::memory_order_relaxed);
    }
    CtaResult result{executor.take_findings(), executor.take_output()};
    MemoryUse use;
    if (compares_blocks) use = executor.take_use();
    if (index == 0) {
      const std::lock_guard lock(mutex);
      report.roles = executor.roles();
    }
    if (auto trace = executor.take_trace()) {
      const std::lock_guard lock(mutex);
      report.trace = std::make_shared<const CtaTrace>(std::move(*trace));
    }
    if (!result.findings.empty() || !result.output.empty()) {
      const std::lock_guard lock(mutex);
      results[index] = std::move(result);
    }
    if (compares_blocks) {
      const std::lock_guard lock(mutex);
      uses[index] = std::move(use);
      for (auto next = uses.begin(); next != uses.end() && next->first == next_use; next = uses.erase(next)) {
        compare(next->first, next->second);
        ++next_use;
      }
    }
  };
  const auto interrupted = [&] {
    return over_budget || (options.interrupt != nullptr && options.interrupt->load(std::memory_order_relaxed));
  };
  const auto spend = [&](CtaExecutor& executor) {
    if (executed.fetch_add(executor.take_executed()) > options.max_warp_instructions) over_budget = true;
  };
  const auto retire = [&](CtaExecutor& executor) {
    const std::lock_guard lock(mutex);
    counters += executor.counters();
  };
  // Clusters: their CTAs run in turn, on one thread, until they have ended or nothing changes any more.
  const auto run_clusters = [&] {
    std::vector<std::unique_ptr<CtaExecutor>> executors;
    std::vector<CtaExecutor*> peers;
    for (std::uint64_t i = 0; i < cluster_size; ++i) {
      executors.push_back(std::make_unique<CtaExecutor>(context));
      peers.push_back(executors.back().get());
    }
    std::optional<GlobalShadow> of_cluster;
    if (options.checks && !compiled.serial) of_cluster.emplace(compiled.global_granule, GlobalShadow::Of::cluster);
    for (std::size_t i = 0; i < peers.size(); ++i)
      peers[i]->join_cluster(peers, i, of_cluster ? &*of_cluster : nullptr);
    while (!interrupted()) {
      const std::uint64_t first = next_cta.fetch_add(cluster_size);
      if (first >= num_ctas || first > stopped_at) break;
      std::vector<CtaExecutor::State> states(peers.size(), CtaExecutor::State::stuck);
      if (of_cluster) of_cluster->reset();
      for (std::size_t i = 0; i < peers.size(); ++i) peers[i]->start(first + i);
      const auto is = [&](CtaExecutor::State state) { return std::count(states.begin(), states.end(), state) != 0; };
      const auto changes = [&] {
        std::uint64_t sum = 0;
        for (const CtaExecutor* peer : peers) sum += peer->changes();
        return sum;
      };
      while (is(CtaExecutor::State::stuck) && !is(CtaExecutor::State::stopped) && !interrupted()) {
        const std::uint64_t before = changes();
        bool goes_on = false;
        for (std::size_t i = 0; i < peers.size(); ++i) {
          if (states[i] != CtaExecutor::State::stuck) continue;
          states[i] = peers[i]->resume();
          spend(*peers[i]);
          goes_on |= states[i] == CtaExecutor::State::ended ||
                     (states[i] == CtaExecutor::State::stuck && peers[i]->may_go_on());
        }
        if (goes_on || changes() != before) continue;
        // A CTA that waits at the cluster's barrier waits for the others.
        std::size_t waiting = peers.size();
        for (std::size_t i = 0; i < peers.size(); ++i) {
          if (states[i] != CtaExecutor::State::stuck) continue;
          const bool at_barrier = peers[i]->waits_for_cluster();
          if (waiting == peers.size() || !at_barrier) waiting = i;
          if (!at_barrier) break;
        }
        if (waiting == peers.size()) break;  // the last one has just been stopped
        peers[waiting]->report_stuck(0, 0);
        states[waiting] = CtaExecutor::State::stopped;
      }
      // If CTAs wait for one that was stopped, their findings are kept; the stopped one is reported as not having ended.
      const bool any_stopped = is(CtaExecutor::State::stopped);
      for (std::size_t i = 0; i < peers.size(); ++i) {
        finish(first + i, *peers[i],
               any_stopped ? states[i] != CtaExecutor::State::stopped : states[i] == CtaExecutor::State::ended);
      }
    }
    for (CtaExecutor* peer : peers) retire(*peer);
  };
  const auto start_ctas = [&] {
    try {
      if (cluster_size > 1) return run_clusters();
      std::unique_ptr<CtaExecutor> executor;
      while (!full && !interrupted()) {
        const std::uint64_t index = next_cta.fetch_add(1);
        // CTAs after one that did not end are not run; those before it are, so that the report is always the same.
        if (index >= num_ctas || index > stopped_at) break;
        if (executor == nullptr) executor = std::make_unique<CtaExecutor>(context);
        const CtaExecutor::State state = executor->run(index);
        spend(*executor);
        if (state == CtaExecutor::State::stuck) {
          const std::lock_guard lock(mutex);
          resident.push_back({.index = index, .executor = std::exchange(executor, nullptr)});
          full = resident.size() >= most_resident;
        } else {
          finish(index, *executor, state == CtaExecutor::State::ended);
        }
      }
      if (executor != nullptr) retire(*executor);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      next_cta = num_ctas;
    }
  };
  // Resumes CTAs that wait for others, in turn, as long as that changes anything: in ascending and then in descending
  // order, because some wait for CTAs before them and some for CTAs after them.
  std::uint64_t turns = 1;  // counts resumptions that changed memory
  const auto run_resident = [&] {
    bool goes_on = true;
    while (goes_on && !resident.empty() && !interrupted()) {
      goes_on = false;
      for (Resident& waiting : resident) {
        if (waiting.seen == turns || interrupted()) continue;
        const std::uint64_t changes = waiting.executor->changes();
        const CtaExecutor::State state = waiting.executor->resume();
        spend(*waiting.executor);
        if (state != CtaExecutor::State::stuck || waiting.executor->changes() != changes) {
          ++turns;
          goes_on = true;
        }
        waiting.seen = turns;
        if (state == CtaExecutor::State::stuck) continue;
        finish(waiting.index, *waiting.executor, state == CtaExecutor::State::ended);
        retire(*waiting.executor);
        waiting.executor.reset();
      }
      std::erase_if(resident, [](const Resident& waiting) { return waiting.executor == nullptr; });
      std::reverse(resident.begin(), resident.end());
    }
  };
  while (true) {
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < num_threads; ++i) threads.emplace_back(start_ctas);
    start_ctas();
    for (std::thread& thread : threads) thread.join();
    if (error != nullptr) std::rethrow_exception(error);
    if (resident.empty() || interrupted()) break;
    std::sort(resident.begin(), resident.end(), by_index);
    ++turns;  // others have run since
    run_resident();
    const bool more = next_cta < num_ctas && stopped_at == num_ctas;
    full = resident.size() >= most_resident;
    if (interrupted() || (resident.empty() && !more)) break;
    if (more && !full) continue;
    std::sort(resident.begin(), resident.end(), by_index);
    bool others_run = false;
    for (Resident& waiting : resident) {
      if (!waiting.executor->may_go_on() && !waiting.executor->give_way()) continue;
      others_run = true;
      waiting.seen = 0;
    }
    if (others_run) continue;
    const std::uint64_t unstarted = more ? num_ctas - next_cta : 0;
    resident.front().executor->report_stuck(resident.size() - 1, unstarted);
    finish(resident.front().index, *resident.front().executor, false);
    break;
  }
  if (interrupted()) {
    report.interrupted = !over_budget;
    // The findings of CTAs that were still running.
    for (Resident& waiting : resident) {
      finish(waiting.index, *waiting.executor, false);
      retire(*waiting.executor);
    }
    if (stopped_at == num_ctas) stopped_at = num_ctas - 1;
  }

  for (const auto& [index, use] : uses) compare(index, use);  // CTAs after the ones that were stopped

  // The counters of a launch that was stopped depend on how far each thread had got, so they are left out.
  if (stopped_at < num_ctas) {
    report.outcome = Outcome::stopped;
  } else {
    summarise(compiled, counters, options.count_lines, report);
    if (options.list_executed) report.executed = executed_text(compiled, counters);
  }
  std::map<std::tuple<FindingKind, std::int32_t, std::int32_t>, std::size_t> known;  // numbered in order of occurrence
  for (auto& [index, result] : results) {
    if (index > stopped_at && !report.interrupted && !over_budget) break;
    for (RawFinding& raw : result.findings) {
      report.findings_total += raw.finding.count;
      const auto [found, is_new] = known.try_emplace(raw.key(), known.size());
      if (is_new) {
        report.findings.push_back(std::move(raw.finding));
      } else {
        report.findings[found->second].count += raw.finding.count;
      }
    }
    if (result.output.empty()) continue;
    if (options.print) {
      options.print(result.output);
    } else {
      std::fwrite(result.output.data(), 1, result.output.size(), stdout);
    }
  }
  if (over_budget) {
    report.over_budget = true;
    report.busiest = busiest_position(compiled, counters);
    Finding finding;
    finding.kind = FindingKind::launch_limits;
    finding.message = fmt::format(
        "the launch has executed {} warp instructions, and not all of its {} blocks have ended. Is the grid meant to "
        "be this large? "
        "FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS=N (scripts/emulate --max-launch-instructions N) lets it run longer",
        options.max_warp_instructions, num_ctas);
    finding.kernel = kernel.name();
    report.findings.insert(report.findings.begin(), std::move(finding));
    ++report.findings_total;
  }
  report.findings_kinds = known.size() + (over_budget ? 1 : 0);
  put_causes_first(report.findings);
  if (report.findings.size() > options.max_findings) report.findings.resize(options.max_findings);
  if (used != nullptr && options.checks) {
    Used add(*used);
    if (compiled.serial) {
      const MemoryUse use = shadow.take_use();
      const auto add_use = [&](Address address, std::size_t size, std::int32_t read, std::int32_t write) {
        const auto of_system = [&](std::int32_t instruction) {
          return instruction == MemoryUse::kNothing || compiled.code[static_cast<std::size_t>(instruction)].of_system;
        };
        add(address, size, write != MemoryUse::kNothing, of_system(read) && of_system(write));
      };
      for (const MemoryUse::Line& line : use.lines) {
        if (line.read != MemoryUse::kMixed && line.write != MemoryUse::kMixed) {
          add_use(line.address, MemoryUse::kLineBytes, line.read, line.write);
          continue;
        }
        const auto granule = static_cast<std::size_t>(compiled.global_granule);
        for (std::size_t i = 0; i < MemoryUse::kLineBytes / granule; ++i) {
          const std::int32_t write = line.write == MemoryUse::kMixed ? use.mixed[line.writes + i] : line.write;
          const std::int32_t read = line.read == MemoryUse::kMixed ? use.mixed[line.reads + i] : line.read;
          if (write != MemoryUse::kNothing || read != MemoryUse::kNothing)
            add_use(line.address + i * granule, granule, read, write);
        }
      }
    } else {
      block_races.for_each_used([&](Address address, std::size_t size, bool writes) {
        add(address, size, writes, false);  // such accesses do not occur, because they would make the kernel serial
      });
    }
  }
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
