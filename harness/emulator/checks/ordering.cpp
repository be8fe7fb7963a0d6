#include "emulator/checks/ordering.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>

namespace flash_ladder::emulator {
namespace {

// A search through chains of acquisitions stops here. The accesses then count as ordered, because missing a finding is
// better than a false one.
constexpr std::size_t kMostSteps = std::size_t{1} << 16;
// The number of acquisitions that may wait for a fence. A thread that reads more flags than this acquires immediately.
constexpr std::size_t kMostWaiting = 32;

void renumber_sparse(SparseClock& clock, const Renumbering& renumbering) {
  clock.least = renumbering(clock.least);
  for (auto& [entry, number] : clock.more) number = renumbering(number);
}

// Visits the releases [first, end) of a log that come from one CTA, latest first, until f returns true.
template <typename F>
bool any_of_cta(const ReleaseLog& log, std::size_t first, std::size_t end, std::uint32_t cta, F f) {
  const auto found = log.of_cta.find(cta);
  if (found == log.of_cta.end()) return false;
  for (auto i = std::lower_bound(found->second.begin(), found->second.end(), end); i != found->second.begin();) {
    if (*--i < first) break;
    if (f(log.releases[*i])) return true;
  }
  return false;
}

}  // namespace

SparseClock::SparseClock(const Clock& clock) : least(*std::min_element(clock.begin(), clock.end())) {
  for (std::size_t i = 0; i < clock.size(); ++i) {
    if (clock[i] != least) more.emplace_back(static_cast<std::uint32_t>(i), clock[i]);
  }
}

AccessNumber SparseClock::of(std::size_t entry) const {
  const auto found = std::lower_bound(more.begin(), more.end(), entry,
                                      [](const auto& one, std::size_t wanted) { return one.first < wanted; });
  return found != more.end() && found->first == entry ? found->second : least;
}

ReleaseLog* LaunchOrdering::find(Address address) {
  const auto found = logs_.find(address & ~Address{3});
  return found == logs_.end() ? nullptr : &found->second;
}

const std::vector<Acquisition>& LaunchOrdering::acquisitions_of(std::uint32_t cta) const {
  static const std::vector<Acquisition> none;
  const auto found = acquisitions_.find(cta);
  return found == acquisitions_.end() ? none : found->second;
}

// Calls f with each CTA of a CTA's cluster, until it returns true.
template <typename F>
bool LaunchOrdering::any_of_cluster(std::uint32_t cta, F f) const {
  const std::uint32_t first = cta - cta % cluster_size_;
  for (std::uint32_t one = first; one < first + cluster_size_; ++one)
    if (f(one)) return true;
  return false;
}

Known LaunchOrdering::known_from(const std::vector<Acquisition>& acquisitions, std::uint32_t cta, std::uint32_t thread,
                                 std::uint32_t epoch) const {
  std::vector<Acquisition> ways = acquisitions;
  std::unordered_map<const ReleaseLog*, std::size_t> seen;  // up to which release
  std::size_t steps = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Acquisition way = ways[i];
    Known known = Known::no;
    any_of_cluster(cta, [&](std::uint32_t releaser) {
      return any_of_cta(*way.log, way.first, way.end, releaser, [&](const Release& release) {
        if (release.to_block_only || epoch >= release.epochs.of(entry_of(cta, thread, releaser))) return false;
        known = epoch < release.epochs.least ? Known::of_all_threads : Known::of_thread;
        return true;
      });
    });
    if (known != Known::no) return known;
    // What had been acquired before these releases.
    std::size_t& from = seen[way.log];
    for (std::size_t k = std::max(from, way.first); k < way.end; ++k) {
      const Release& release = way.log->releases[k];
      any_of_cluster(release.cta, [&](std::uint32_t acquirer) {
        for (const Acquisition& before : acquisitions_of(acquirer)) {
          if (++steps > kMostSteps) return true;
          const auto known_log = seen.find(before.log);
          if (known_log != seen.end() && before.end <= known_log->second) continue;
          if (before.epoch < release.epochs.of(entry_of(acquirer, before.thread, release.cta))) ways.push_back(before);
        }
        return false;
      });
      if (++steps > kMostSteps) return Known::of_thread;
    }
    from = std::max(from, way.end);
  }
  return Known::no;
}

void LaunchOrdering::renumber(std::uint32_t cta, const Renumbering& renumbering) {
  for (auto& [address, log] : logs_) {
    const auto found = log.of_cta.find(cta);
    if (found == log.of_cta.end()) continue;
    for (const std::uint32_t i : found->second) renumber_sparse(log.releases[i].numbers, renumbering);
  }
}

Ordering::Ordering(int num_warps, LaunchOrdering* launch)
    : num_warps_(num_warps), launch_(launch), threads_(static_cast<std::size_t>(num_warps) * kWarpSize) {
  clocks_.reset(num_warps, 1);
}

void Ordering::reset(std::uint32_t cta) {
  cta_ = cta;
  if (!used_) return;
  used_ = waiting_ = false;
  fenced_ = 0;
  shared_logs_.clear();
  for (Thread& thread : threads_) thread = {};
}

void Ordering::join_cluster(std::vector<Clocks*> peers, std::size_t rank) {
  clocks_.join_cluster(std::move(peers), rank);
  if (launch_ != nullptr) launch_->set_clusters(clocks_.cluster_size(), clocks_.block_size());
}

template <typename F>
void Ordering::for_each_of_cluster(F f) {
  if (!clocks_.is_in_cluster()) return f(cta_, 0, clocks_);
  const auto size = static_cast<std::uint32_t>(clocks_.cluster_size());
  for (std::uint32_t rank = 0; rank < size; ++rank) f(cta_ - cta_ % size + rank, rank, clocks_.peer(rank));
}

ReleaseLog* Ordering::find(Place place) {
  if (!place.shared) return launch_ == nullptr ? nullptr : launch_->find(place.address);
  const auto found = shared_logs_.find(place.address & ~Address{3});
  return found == shared_logs_.end() ? nullptr : &found->second;
}

// Applies part of a log: releases of the CTA's own cluster go into the clocks, those of others become an acquisition.
void Ordering::acquire(int warp, std::uint32_t lanes, std::uint32_t alive, const LogRange& range) {
  std::size_t first = range.end;  // releases that all of the lanes already know are left out
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    std::size_t known = range.first;
    for (const LogRange& one : thread(warp, std::countr_zero(rest)).known) {
      if (one.log == range.log) known = std::max(known, one.end);
    }
    first = std::min(first, known);
  }
  Clock clock;
  for_each_of_cluster([&](std::uint32_t cta, std::uint32_t, const Clocks& of_releaser) {
    any_of_cta(*range.log, first, range.end, cta, [&](const Release& release) {
      if (cta != cta_ && release.to_block_only) return false;
      if (clock.empty()) clock = clocks_.empty();
      Clock released(clock.size(), release.numbers.least);
      for (const auto& [entry, number] : release.numbers.more) released[entry] = number;
      join(clock, cta == cta_ ? released : clocks_.converted(released, of_releaser));
      return false;
    });
  });
  if (!clock.empty()) clocks_.acquire(warp, lanes, alive, clock);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::vector<LogRange>& known = thread(warp, lane).known;
    const auto same =
        std::find_if(known.begin(), known.end(), [&](const LogRange& one) { return one.log == range.log; });
    if (same != known.end()) {
      *same = range;
    } else {
      known.push_back(range);
    }
    if (range.shared) continue;
    launch_->acquired(cta_, {.log = range.log,
                             .first = range.first,
                             .end = range.end,
                             .thread = static_cast<std::uint32_t>(warp * kWarpSize + lane),
                             .epoch = clocks_.epoch()});
  }
}

void Ordering::acquire_waiting(int warp, std::uint32_t lanes, std::uint32_t alive) {
  if (!waiting_) return;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    // Lanes that have acquired the same releases are processed together.
    const int lane = std::countr_zero(rest);
    const std::vector<LogRange> waiting = std::exchange(thread(warp, lane).waiting, {});
    for (const LogRange& range : waiting) {
      std::uint32_t same = 1u << lane;
      for (std::uint32_t others = rest & (rest - 1); others != 0; others &= others - 1) {
        const int other = std::countr_zero(others);
        const auto removed = std::erase_if(thread(warp, other).waiting, [&](const LogRange& one) {
          return one.log == range.log && one.first == range.first && one.end == range.end;
        });
        if (removed != 0) same |= 1u << other;
      }
      acquire(warp, same, alive, range);
    }
  }
}

void Ordering::arrive(int warp, std::uint32_t lanes, std::uint32_t alive) { acquire_waiting(warp, lanes, alive); }

void Ordering::fence(int warp, std::uint32_t lanes, std::uint32_t alive, bool block_only) {
  used_ = true;
  fenced_ |= 1u << warp;
  acquire_waiting(warp, lanes, alive);
  const AccessNumber now = clocks_.now();
  std::shared_ptr<Clock> last;
  const Clock* same = nullptr;  // the clock of which `last` is a copy
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Clock& clock = clocks_.of(warp, lane);
    if (same != &clock) {
      last = std::make_shared<Clock>(clock);
      clocks_.release_to_peers(warp, *last);
    }
    same = &clock;
    Thread& own = thread(warp, lane);
    own.for_block = {last, now};
    if (!block_only) own.for_all = own.for_block;
  }
}

void Ordering::strong_read(int warp, int lane, std::uint32_t alive, Place place, Order order) {
  ReleaseLog* const log = find(place);
  if (log == nullptr || log->first == log->releases.size()) return;
  Thread& own = thread(warp, lane);
  const LogRange range{log, place.shared, log->first, log->releases.size()};
  for (const LogRange& known : own.known) {
    if (known.log == log && known.end == range.end) return;
  }
  used_ = true;
  if (order.acquires) {
    acquire(warp, 1u << lane, alive, range);
    return;
  }
  std::erase_if(own.waiting, [&](const LogRange& one) { return one.log == log; });
  if (own.waiting.size() >= kMostWaiting) {
    acquire(warp, 1u << lane, alive, range);
    return;
  }
  own.waiting.push_back(range);
  waiting_ = true;
}

void Ordering::strong_write(int warp, int lane, Place place, Order order, bool adds) {
  if (!place.shared && launch_ == nullptr) return;
  const auto entry = static_cast<std::size_t>(warp * kWarpSize + lane);
  Thread& own = threads_[entry];
  // What the thread releases: everything that it knows now, or knew at its last fence.
  Clock clock;
  bool block_only = order.block_only;
  if (order.releases) {
    clock = clocks_.of(warp, lane);
    clock[entry] = clocks_.now();
    clocks_.release_to_peers(warp, clock);
  } else if (own.for_block.clock != nullptr) {
    const bool for_all = !place.shared && own.for_all.clock != nullptr;
    const Fenced& fenced = for_all ? own.for_all : own.for_block;
    clock = *fenced.clock;
    clock[entry] = fenced.now;
    block_only |= !for_all;
  }
  ReleaseLog* log = find(place);
  if (log == nullptr && clock.empty()) return;
  if (log == nullptr) log = place.shared ? &shared_logs_[place.address & ~Address{3}] : &launch_->at(place.address);
  if (!adds) {
    // Unless the thread already knows all of it and includes it in its own releases.
    const bool knows = std::any_of(own.known.begin(), own.known.end(), [&](const LogRange& known) {
      return known.log == log && known.end == log->releases.size();
    });
    if (!knows) log->first = log->releases.size();
  }
  if (clock.empty()) return;
  used_ = true;
  Clock epochs = clock;
  for_each_of_cluster([&](std::uint32_t, std::uint32_t rank, const Clocks& of_peer) {
    const auto block =
        epochs.begin() + static_cast<std::ptrdiff_t>(clocks_.is_in_cluster() ? clocks_.block_of(rank) : 0);
    std::for_each(block, block + static_cast<std::ptrdiff_t>(clocks_.block_size()),
                  [&](AccessNumber& number) { number = of_peer.epochs_below(number); });
  });
  log->of_cta[cta_].push_back(static_cast<std::uint32_t>(log->releases.size()));
  log->releases.push_back({.cta = cta_,
                           .thread = static_cast<std::uint32_t>(entry),
                           .to_block_only = block_only,
                           .numbers = SparseClock(clock),
                           .epochs = SparseClock(epochs)});
}

Known Ordering::known_of_other_block(std::uint32_t cta, std::uint32_t thread, std::uint32_t epoch, int warp, int lane,
                                     bool strong) {
  std::vector<Acquisition> known, own;  // of the whole warp, and of the thread; latest first: they contain most
  bool of_cluster = false;
  for_each_of_cluster([&](std::uint32_t peer, std::uint32_t rank, const Clocks&) {
    if (peer == cta_) return;
    if (peer == cta) of_cluster = clocks_.epoch_of_peer_happened_before(rank, epoch, thread, warp, lane);
    if (launch_ == nullptr) return;
    const std::vector<Acquisition>& acquisitions = launch_->acquisitions_of(peer);
    std::copy_if(acquisitions.rbegin(), acquisitions.rend(), std::back_inserter(own), [&](const Acquisition& one) {
      return clocks_.epoch_of_peer_happened_before(rank, one.epoch, one.thread, warp, lane);
    });
  });
  if (of_cluster) return Known::of_thread;
  if (launch_ == nullptr) return Known::no;
  const std::vector<Acquisition>& acquisitions = launch_->acquisitions_of(cta_);
  for (auto one = acquisitions.rbegin(); one != acquisitions.rend(); ++one) {
    const int by = static_cast<int>(one->thread);
    if (one->epoch < clocks_.epochs_known_to_warp(warp)) {
      known.push_back(*one);
    } else if (clocks_.epoch_happened_before(one->epoch, by / kWarpSize, by % kWarpSize, warp, lane)) {
      own.push_back(*one);
    }
  }
  if (!known.empty()) {
    if (const Known found = launch_->known_from(known, cta, thread, epoch); found != Known::no) return found;
  }
  if (strong) {
    for (const LogRange& range : threads_[static_cast<std::size_t>(warp * kWarpSize + lane)].waiting) {
      if (!range.shared)
        own.push_back({.log = range.log, .first = range.first, .end = range.end, .thread = 0, .epoch = 0});
    }
  }
  if (own.empty()) return Known::no;
  own.insert(own.end(), known.begin(), known.end());
  return launch_->known_from(own, cta, thread, epoch) == Known::no ? Known::no : Known::of_thread;
}

void Ordering::renumber(const Renumbering& renumbering) {
  for (auto& [address, log] : shared_logs_) {
    for (Release& release : log.releases) renumber_sparse(release.numbers, renumbering);
  }
  if (launch_ != nullptr) launch_->renumber(cta_, renumbering);
  std::set<Clock*> done;
  for (Thread& thread : threads_) {
    for (Fenced* fenced : {&thread.for_block, &thread.for_all}) {
      fenced->now = renumbering(fenced->now);
      if (fenced->clock != nullptr && done.insert(fenced->clock.get()).second) renumbering.apply_to(*fenced->clock);
    }
  }
}

}  // namespace flash_ladder::emulator
