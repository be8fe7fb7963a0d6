#include "emulator/checks/clocks.h"

#include <algorithm>
#include <bit>

#include "emulator/lanes/accesses.h"

namespace flash_ladder::emulator {

void join(Clock& clock, const Clock& other) { lanes::take_later(clock.data(), other.data(), clock.size()); }

void Renumbering::apply_to(Clock& clock) const {
  for (AccessNumber& number : clock) number = (*this)(number);
}

void Clocks::reset(int num_warps, AccessNumber first, int num_engines) {
  num_warps_ = num_warps;
  num_engines_ = num_engines;
  next_ = first;
  epochs_.clear();
  touched_ = false;
  warps_.resize(static_cast<std::size_t>(num_warps));
  engines_.assign(static_cast<std::size_t>(num_engines) + peers_.size() * static_cast<std::size_t>(num_warps), 0);
  for (WarpClock& warp : warps_) {
    warp.common = empty();  // nothing is known about other CTAs, not even that they have begun
    std::fill_n(warp.common.begin(), block_size(), first);
    warp.lanes.clear();
    warp.least = warp.own = first;
    warp.of_warp.assign(static_cast<std::size_t>(num_warps), first);
    warp.of_lanes = warp.of_warp;
    warp.last_async = 0;
    warp.known = warp.synced = {};
  }
}

void Clocks::join_cluster(std::vector<Clocks*> peers, std::size_t rank) {
  peers_ = std::move(peers);
  rank_ = rank;
  reset(num_warps_, next_, num_engines_);
}

Clock Clocks::converted(const Clock& clock, const Clocks& from) const {
  Clock own(clock.size());
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const auto block = clock.begin() + static_cast<std::ptrdiff_t>(from.block_of(rank));
    std::copy_n(block, block_size(), own.begin() + static_cast<std::ptrdiff_t>(block_of(rank)));
  }
  return own;
}

bool Clocks::any_thread_knows_all_of(int engine) const {
  const std::size_t entry = static_cast<std::size_t>(num_warps_) * (kWarpSize + 1) + static_cast<std::size_t>(engine);
  const AccessNumber last = engines_[static_cast<std::size_t>(engine)];
  const auto knows = [&](const Clock& clock) { return clock[entry] > last; };
  return std::ranges::any_of(
      warps_, [&](const WarpClock& warp) { return knows(warp.common) || std::ranges::any_of(warp.lanes, knows); });
}

void Clocks::release_to_peers(int warp, Clock& into) const {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == rank_) continue;
    const auto engine = static_cast<std::size_t>(peers_[rank]->engine_of(rank_, warp));
    AccessNumber& entry = into[block_of(rank) + static_cast<std::size_t>(num_warps_) * (kWarpSize + 1) + engine];
    entry = std::max(entry, peers_[rank]->next_);
  }
}

void Clocks::renumber(const Renumbering& renumbering) {
  for (WarpClock& warp : warps_) {
    renumbering.apply_to(warp.common);
    for (Clock& lane : warp.lanes) renumbering.apply_to(lane);
    warp.least = renumbering(warp.least);
    warp.own = renumbering(warp.own);
    renumbering.apply_to(warp.of_warp);
    renumbering.apply_to(warp.of_lanes);
    warp.last_async = renumbering(warp.last_async);
    warp.known = warp.synced = {};
  }
  renumbering.apply_to(epochs_);
  renumbering.apply_to(engines_);
  next_ = renumbering(next_);
}

const Clock& Clocks::clock_of(int warp, int lane) const {
  const WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
  return clock.lanes.empty() ? clock.common : clock.lanes[static_cast<std::size_t>(lane)];
}

bool Clocks::happened_before(AccessNumber number, int other, int other_lane, bool async, int warp, int lane) const {
  if (!async && other == warp && other_lane == lane) return true;  // the same thread
  const int entry = async ? num_warps_ * kWarpSize + other : other * kWarpSize + other_lane;
  return number < clock_of(warp, lane)[static_cast<std::size_t>(entry)];
}

bool Clocks::happened_before(AccessNumber number, int other, bool async, int warp) const {
  if (!async) return number < known_of_lanes(warp, other);
  return number <
         warps_[static_cast<std::size_t>(warp)].common[static_cast<std::size_t>(num_warps_ * kWarpSize + other)];
}

// The end of an epoch has a number of its own, so that acquiring everything before it does not include it.
AccessNumber Clocks::now() {
  if (touched_ && !out_of_epochs()) {
    epochs_.push_back(++next_);
    touched_ = false;
  }
  return next_;
}

std::uint32_t Clocks::epochs_below(AccessNumber number) const {
  return static_cast<std::uint32_t>(std::upper_bound(epochs_.begin(), epochs_.end(), number) - epochs_.begin());
}

bool Clocks::epoch_happened_before(std::uint32_t epoch, int other, int other_lane, int warp, int lane) const {
  if (other == warp && other_lane == lane) return true;  // the same thread
  return epoch < epochs_.size() &&
         epochs_[epoch] <= clock_of(warp, lane)[static_cast<std::size_t>(other * kWarpSize + other_lane)];
}

bool Clocks::epoch_of_peer_happened_before(std::size_t rank, std::uint32_t epoch, std::uint32_t thread, int warp,
                                           int lane) const {
  const std::vector<AccessNumber>& ends = peers_[rank]->epochs_;
  return epoch < ends.size() && ends[epoch] <= clock_of(warp, lane)[block_of(rank) + thread];
}

void Clocks::summarise(int warp) {
  WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
  clock.least = clock.common[0];
  for (int other = 0; other < num_warps_; ++other) {
    const AccessNumber* const lanes = clock.common.data() + other * kWarpSize;
    AccessNumber least = lanes[0];
    for (int lane = 1; lane < kWarpSize; ++lane) least = std::min(least, lanes[lane]);
    if (other == warp) clock.own = least;
    clock.of_lanes[static_cast<std::size_t>(other)] = least;
    const AccessNumber async = clock.common[static_cast<std::size_t>(num_warps_ * kWarpSize + other)];
    if (async <= warps_[static_cast<std::size_t>(other)].last_async) least = std::min(least, async);
    clock.of_warp[static_cast<std::size_t>(other)] = least;
    clock.least = other == 0 ? least : std::min(clock.least, least);
  }
  const auto first_engine = static_cast<std::size_t>(num_warps_ * (kWarpSize + 1));
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const AccessNumber async = clock.common[first_engine + i];
    if (async <= engines_[i]) clock.least = std::min(clock.least, async);
  }
}

void Clocks::part(int warp) {
  WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
  if (clock.lanes.empty()) clock.lanes.assign(kWarpSize, clock.common);
}

void Clocks::release(int warp, std::uint32_t lanes, Clock& into) {
  now();
  const WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
  if (clock.lanes.empty()) join(into, clock.common);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (!clock.lanes.empty()) join(into, clock.lanes[static_cast<std::size_t>(lane)]);
    into[static_cast<std::size_t>(warp * kWarpSize + lane)] = next_;
  }
  release_to_peers(warp, into);
}

void Clocks::acquire(int warp, std::uint32_t lanes, std::uint32_t alive, const Clock& clock) {
  WarpClock& own = warps_[static_cast<std::size_t>(warp)];
  if ((lanes & alive) == alive && own.lanes.empty()) {
    join(own.common, clock);
    summarise(warp);
    return;
  }
  part(warp);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane) & 1) join(own.lanes[static_cast<std::size_t>(lane)], clock);
  }
  // Dead lanes are given the knowledge of the live ones, because they will not need their own.
  own.common.clear();
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!((alive >> lane) & 1)) continue;
    const Clock& one = own.lanes[static_cast<std::size_t>(lane)];
    if (own.common.empty()) own.common = one;
    for (std::size_t i = 0; i < one.size(); ++i) own.common[i] = std::min(own.common[i], one[i]);
  }
  if (own.common.empty()) own.common = own.lanes[0];
  summarise(warp);
}

void Clocks::synchronise(int warp, std::uint32_t lanes, std::uint32_t alive) {
  WarpClock& own = warps_[static_cast<std::size_t>(warp)];
  now();
  if ((lanes & alive) == alive) {
    for (const Clock& lane : own.lanes) join(own.common, lane);
    own.lanes.clear();
    std::fill_n(own.common.begin() + warp * kWarpSize, kWarpSize, next_);
    release_to_peers(warp, own.common);
    summarise(warp);
    return;
  }
  Clock all = empty();
  release(warp, lanes, all);
  acquire(warp, lanes, alive, all);
}

void Clocks::synchronise_all() {
  // For threads: everything so far. For asynchronous copies: what any thread knew about them.
  now();
  Clock all = empty();
  for (WarpClock& warp : warps_) {
    join(all, warp.common);
    for (const Clock& lane : warp.lanes) join(all, lane);
    warp.lanes.clear();
  }
  std::fill_n(all.begin(), num_warps_ * kWarpSize, next_);
  for (int warp = 0; warp < num_warps_; ++warp) release_to_peers(warp, all);
  for (int warp = 0; warp < num_warps_; ++warp) {
    warps_[static_cast<std::size_t>(warp)].common = all;
    summarise(warp);
  }
}

void Clocks::publish_async(int warp, Clock& into) const {
  into[static_cast<std::size_t>(num_warps_ * kWarpSize + warp)] = next_;
}

}  // namespace flash_ladder::emulator
