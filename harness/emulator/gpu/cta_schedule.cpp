#include "emulator/gpu/cta_schedule.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "emulator/gpu/launch_limits.h"

namespace flash_ladder::emulator {
namespace {

using State = CtaExecutor::State;

// Of the CTAs of a cluster none of which can continue, the one to blame; the number of CTAs if none is stuck. A CTA that
// waits at the cluster's barrier waits for the others.
std::size_t first_to_blame(const std::vector<CtaExecutor*>& peers, const std::vector<State>& states) {
  std::size_t blamed = peers.size();
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (states[i] != State::stuck) continue;
    const bool at_barrier = peers[i]->cluster().waits();
    if (blamed == peers.size() || !at_barrier) blamed = i;
    if (!at_barrier) break;
  }
  return blamed;
}

std::uint64_t changes_of(const std::vector<CtaExecutor*>& peers) {
  std::uint64_t sum = 0;
  for (const CtaExecutor* peer : peers) sum += peer->changes();
  return sum;
}

}  // namespace

CtaSchedule::CtaSchedule(LaunchContext& context, LaunchReport& report, std::uint64_t num_ctas)
    : context_(context),
      report_(report),
      num_ctas_(num_ctas),
      cluster_size_(size_of(context.cluster)),
      most_resident_(context.options.max_resident_ctas != 0 ? context.options.max_resident_ctas
                                                            : std::numeric_limits<std::uint64_t>::max()) {}

LaunchReport::End CtaSchedule::run() {
  run_ctas();
  if (!interrupted()) return {};
  // The findings of CTAs that were still running.
  for (Resident& waiting : resident_) {
    report_.add(waiting.index, *waiting.executor, false);
    retire(*waiting.executor);
  }
  return {.interrupted = !over_budget_, .over_budget = over_budget_};
}

// Starts CTAs and resumes those that wait, until all have ended or nothing changes any more.
void CtaSchedule::run_ctas() {
  const auto by_index = [](const Resident& a, const Resident& b) { return a.index < b.index; };
  while (true) {
    run_on_all_threads();
    if (resident_.empty() || interrupted()) return;
    std::sort(resident_.begin(), resident_.end(), by_index);
    ++resumptions_;  // others have run since
    run_resident();
    const bool more = next_cta_ < num_ctas_ && report_.stopped_at() == num_ctas_;
    full_ = resident_.size() >= most_resident_;
    if (interrupted() || (resident_.empty() && !more)) return;
    if (more && !full_) continue;
    std::sort(resident_.begin(), resident_.end(), by_index);
    if (let_lanes_yield()) continue;
    return give_up(more ? num_ctas_ - next_cta_ : 0);
  }
}

void CtaSchedule::run_on_all_threads() {
  const Options& options = context_.options;
  std::uint64_t num_threads =
      options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  if (context_.kernel.serial) num_threads = 1;
  num_threads = std::min(num_threads, num_ctas_);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i < num_threads; ++i) threads.emplace_back(&CtaSchedule::start_ctas, this);
  start_ctas();
  for (std::thread& thread : threads) thread.join();
  if (error_ != nullptr) std::rethrow_exception(error_);
}

// Of one thread: runs CTAs that have not been started until there are none.
void CtaSchedule::start_ctas() {
  try {
    if (cluster_size_ > 1) {
      start_clusters();
    } else {
      start_single_ctas();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    next_cta_ = num_ctas_;
  }
}

void CtaSchedule::start_single_ctas() {
  std::unique_ptr<CtaExecutor> executor;
  while (!full_ && !interrupted()) {
    const std::uint64_t index = next_cta_.fetch_add(1);
    // CTAs after one that did not end are not run; those before it are, so that the report is always the same.
    if (index >= num_ctas_ || index > report_.stopped_at()) break;
    if (executor == nullptr) executor = std::make_unique<CtaExecutor>(context_);
    const State state = executor->run(index);
    spend(*executor);
    if (state == State::stuck) {
      const std::lock_guard lock(mutex_);
      resident_.push_back({.index = index, .executor = std::exchange(executor, nullptr)});
      full_ = resident_.size() >= most_resident_;
    } else {
      report_.add(index, *executor, state == State::ended);
    }
  }
  if (executor != nullptr) retire(*executor);
}

void CtaSchedule::start_clusters() {
  std::vector<std::unique_ptr<CtaExecutor>> executors;
  std::vector<CtaExecutor*> peers;
  for (std::uint64_t i = 0; i < cluster_size_; ++i) {
    executors.push_back(std::make_unique<CtaExecutor>(context_));
    peers.push_back(executors.back().get());
  }
  std::optional<GlobalShadow> of_cluster;
  if (context_.options.checks && !context_.kernel.serial)
    of_cluster.emplace(context_.kernel.global_granule, GlobalShadow::Of::cluster);
  for (std::size_t i = 0; i < peers.size(); ++i) peers[i]->join_cluster(peers, i, of_cluster ? &*of_cluster : nullptr);
  while (!interrupted()) {
    const std::uint64_t first = next_cta_.fetch_add(cluster_size_);
    if (first >= num_ctas_ || first > report_.stopped_at()) break;
    if (of_cluster) of_cluster->reset();
    for (std::size_t i = 0; i < peers.size(); ++i) peers[i]->start(first + i);
    const std::vector<State> states = run_cluster(peers);
    // If CTAs wait for one that was stopped, their findings are kept; the stopped one is reported as not having ended.
    const bool any_stopped = std::ranges::count(states, State::stopped) != 0;
    for (std::size_t i = 0; i < peers.size(); ++i)
      report_.add(first + i, *peers[i], any_stopped ? states[i] != State::stopped : states[i] == State::ended);
  }
  for (CtaExecutor* peer : peers) retire(*peer);
}

// The CTAs of a cluster run in turn, on one thread, until they have ended or nothing changes any more.
std::vector<CtaExecutor::State> CtaSchedule::run_cluster(const std::vector<CtaExecutor*>& peers) {
  std::vector<State> states(peers.size(), State::stuck);
  const auto is = [&](State state) { return std::ranges::count(states, state) != 0; };
  while (is(State::stuck) && !is(State::stopped) && !interrupted()) {
    const std::uint64_t before = changes_of(peers);
    bool goes_on = false;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (states[i] != State::stuck) continue;
      states[i] = peers[i]->resume();
      spend(*peers[i]);
      goes_on |= states[i] == State::ended || (states[i] == State::stuck && peers[i]->may_go_on());
    }
    if (goes_on || changes_of(peers) != before) continue;
    const std::size_t blamed = first_to_blame(peers, states);
    if (blamed == peers.size()) break;  // the last one has just been stopped
    peers[blamed]->report_stuck(0, 0);
    states[blamed] = State::stopped;
  }
  return states;
}

// Resumes CTAs that wait for others, in turn, as long as that changes anything: in ascending and then in descending
// order, because some wait for CTAs before them and some for CTAs after them.
void CtaSchedule::run_resident() {
  bool goes_on = true;
  while (goes_on && !resident_.empty() && !interrupted()) {
    goes_on = false;
    for (Resident& waiting : resident_) {
      if (waiting.seen == resumptions_ || interrupted()) continue;
      const std::uint64_t changes = waiting.executor->changes();
      const State state = waiting.executor->resume();
      spend(*waiting.executor);
      if (state != State::stuck || waiting.executor->changes() != changes) {
        ++resumptions_;
        goes_on = true;
      }
      waiting.seen = resumptions_;
      if (state == State::stuck) continue;
      report_.add(waiting.index, *waiting.executor, state == State::ended);
      retire(*waiting.executor);
      waiting.executor.reset();
    }
    std::erase_if(resident_, [](const Resident& waiting) { return waiting.executor == nullptr; });
    std::reverse(resident_.begin(), resident_.end());
  }
}

// Whether any CTA may continue, because time alone may end its waiting or because other lanes of its warps run now.
bool CtaSchedule::let_lanes_yield() {
  bool others_run = false;
  for (Resident& waiting : resident_) {
    if (!waiting.executor->may_go_on() && !waiting.executor->yield_to_others()) continue;
    others_run = true;
    waiting.seen = 0;
  }
  return others_run;
}

// The resident CTAs will wait for ever.
void CtaSchedule::give_up(std::uint64_t unstarted) {
  Resident& first = resident_.front();
  first.executor->report_stuck(resident_.size() - 1, unstarted);
  report_.add(first.index, *first.executor, false);
}

void CtaSchedule::retire(CtaExecutor& executor) { report_.add_counters(executor.counters()); }

void CtaSchedule::spend(CtaExecutor& executor) {
  if (executed_.fetch_add(executor.take_executed()) > context_.options.max_warp_instructions) over_budget_ = true;
}

bool CtaSchedule::interrupted() const {
  const std::atomic<bool>* const interrupt = context_.options.interrupt;
  return over_budget_ || (interrupt != nullptr && interrupt->load(std::memory_order_relaxed));
}

}  // namespace flash_ladder::emulator
