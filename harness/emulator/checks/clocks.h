// Happens-before, by vector clocks. Every access to shared memory gets a number, counting up over the whole CTA; a thread's
// knowledge is, for each thread, the number below which that thread's accesses happened before. The lanes of a warp almost
// always have the same knowledge, so a warp has one clock until an operation of only some of its lanes separates them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

/// The number of an access; 0 means no access.
using AccessNumber = std::uint32_t;

/// The knowledge of a thread or warp. Entry t < num_threads: accesses of thread t with lower numbers happened before.
/// Entry num_threads + w: the same for accesses made asynchronously by warp w's cp.async and completed by an mbarrier.
/// Then follow the entries of engines: the data that TMA brings for one mbarrier and, in a cluster, what the warps of
/// its CTAs do here. After these, a CTA's clock has one such block for each of the other CTAs, in the numbering of that
/// CTA: CTA r is followed by CTA r + 1, and the last one by CTA 0.
using Clock = std::vector<AccessNumber>;

void join(Clock& clock, const Clock& other);

/// How access numbers change when numbers that are no longer stored anywhere are removed. The order is kept. A removed
/// number becomes the next number that was not removed, so that a number below a bound stays below it.
class Renumbering {
 public:
  /// `to`: new values for the numbers from `first` on; earlier numbers stay.
  Renumbering(AccessNumber first, std::vector<AccessNumber> to) : first_(first), to_(std::move(to)) {}
  AccessNumber operator()(AccessNumber number) const { return number < first_ ? number : to_[number - first_]; }
  void apply_to(Clock& clock) const;

 private:
  AccessNumber first_;
  std::vector<AccessNumber> to_;
};

class Clocks {
 public:
  /// For a CTA with this many warps; numbers begin at 1.
  void reset(int num_warps, AccessNumber first, int num_engines = 0);
  /// The clocks of a cluster, in which this one has rank `rank`. All CTAs have the same number of warps. Must be called
  /// before the clocks are used.
  void join_cluster(std::vector<Clocks*> peers, std::size_t rank);
  bool is_in_cluster() const { return !peers_.empty(); }
  std::size_t cluster_size() const { return std::max<std::size_t>(peers_.size(), 1); }
  const Clocks& peer(std::size_t rank) const { return *peers_[rank]; }
  /// The number of entries of one CTA.
  std::size_t block_size() const { return static_cast<std::size_t>(num_warps_) * (kWarpSize + 1) + engines_.size(); }
  /// Where the block of the CTA with this rank begins.
  std::size_t block_of(std::size_t rank) const { return (rank + peers_.size() - rank_) % peers_.size() * block_size(); }
  /// Converts what the threads of another CTA of the cluster release, in that CTA's clock, to a clock of this CTA.
  Clock converted(const Clock& clock, const Clocks& from) const;
  /// The engine that represents a warp of another CTA of the cluster here.
  int engine_of(std::size_t rank, int warp) const { return num_engines_ + static_cast<int>(rank) * num_warps_ + warp; }
  /// The inverse; nullopt if the engine is one of this CTA's own.
  std::optional<std::size_t> rank_of_engine(int engine) const {
    if (engine < num_engines_) return std::nullopt;
    return static_cast<std::size_t>((engine - num_engines_) / num_warps_);
  }
  /// Adds to a release everything that a warp has done so far in the memory of other CTAs.
  void release_to_peers(int warp, Clock& into) const;
  /// Whether a thread of this CTA knows that everything this engine has done happened before.
  bool any_thread_knows_all_of(int engine) const;

  AccessNumber next() const { return next_; }
  AccessNumber take() { return next_++; }

  /// All accesses below this number happened before whatever this warp does now.
  AccessNumber known_to_warp(int warp) const { return warps_[static_cast<std::size_t>(warp)].least; }
  /// The same for accesses of the warp's own lanes.
  AccessNumber synced_in_warp(int warp) const { return warps_[static_cast<std::size_t>(warp)].own; }
  /// The same for accesses of another warp.
  AccessNumber known_of_warp(int warp, int other) const {
    return warps_[static_cast<std::size_t>(warp)].of_warp[static_cast<std::size_t>(other)];
  }
  /// The same for accesses that its lanes made themselves, excluding their asynchronous copies.
  AccessNumber known_of_lanes(int warp, int other) const {
    return warps_[static_cast<std::size_t>(warp)].of_lanes[static_cast<std::size_t>(other)];
  }
  /// Whether access `number` of (other, other_lane), or of the asynchronous copies of `other`, happened before what
  /// (warp, lane) does.
  bool happened_before(AccessNumber number, int other, int other_lane, bool async, int warp, int lane) const;
  /// Whether it happened before whatever any lane of the warp does, for any lane of `other`.
  bool happened_before(AccessNumber number, int other, bool async, int warp) const;

  // Accesses to global memory have no numbers of their own, only the epoch in which they happen: a new one begins at
  // each release. So a kernel that accesses gigabytes needs no numbers for that.

  /// The epoch of an access that happens now.
  std::uint32_t epoch() {
    touched_ = true;
    return static_cast<std::uint32_t>(epochs_.size());
  }
  /// No epochs are left: accesses to global memory can no longer be ordered.
  bool out_of_epochs() const { return epochs_.size() >= kMaxEpochs; }
  /// The number of epochs that end before this access. They happened before anything that knows all earlier accesses.
  std::uint32_t epochs_below(AccessNumber number) const;
  /// All accesses in earlier epochs happened before whatever this warp does now; the second function is for accesses of
  /// the warp's own lanes.
  std::uint32_t epochs_known_to_warp(int warp) {
    WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
    return epochs_below(clock.least, clock.known);
  }
  std::uint32_t epochs_synced_in_warp(int warp) {
    WarpClock& clock = warps_[static_cast<std::size_t>(warp)];
    return epochs_below(clock.own, clock.synced);
  }
  /// Whether what (other, other_lane) did in this epoch happened before what (warp, lane) does.
  bool epoch_happened_before(std::uint32_t epoch, int other, int other_lane, int warp, int lane) const;
  /// The same for an epoch of a thread of another CTA of the cluster.
  bool epoch_of_peer_happened_before(std::size_t rank, std::uint32_t epoch, std::uint32_t thread, int warp,
                                     int lane) const;

  /// The knowledge of a thread.
  const Clock& of(int warp, int lane) const { return clock_of(warp, lane); }
  /// Adds to `into` what lanes of a warp release when they arrive at a barrier: everything that they know and have done.
  void release(int warp, std::uint32_t lanes, Clock& into);
  /// A number above all accesses so far. Ends the epoch.
  AccessNumber now();
  /// What lanes acquire from a barrier.
  void acquire(int warp, std::uint32_t lanes, std::uint32_t alive, const Clock& clock);
  /// __syncwarp: the lanes acquire what each of them knows and has done.
  void synchronise(int warp, std::uint32_t lanes, std::uint32_t alive);
  /// __syncthreads of the whole CTA: every thread knows everything.
  void synchronise_all();
  /// Returns the number of an access by a copy of `warp` that an mbarrier completes. The mbarrier releases it with
  /// publish_async(). From num_warps on, `warp` stands for an engine.
  AccessNumber take_async(int warp) { return last_async(warp) = next_++; }
  void publish_async(int warp, Clock& into) const;
  void renumber(const Renumbering& renumbering);
  Clock empty() const { return Clock(block_size() * std::max<std::size_t>(peers_.size(), 1)); }

 private:
  struct WarpClock {
    Clock common;              // the knowledge common to all lanes
    std::vector<Clock> lanes;  // the knowledge of each lane; empty as long as it is the same
    AccessNumber least = 0, own = 0;
    std::vector<AccessNumber> of_warp, of_lanes;
    // The numbers for which epochs_below() was last called, with its answers.
    struct Asked {
      AccessNumber number = 0;
      std::uint32_t epochs = 0;
    } known, synced;
    AccessNumber last_async = 0;
  };
  AccessNumber& last_async(int warp) {
    return warp < num_warps_ ? warps_[static_cast<std::size_t>(warp)].last_async
                             : engines_[static_cast<std::size_t>(warp - num_warps_)];
  }
  const Clock& clock_of(int warp, int lane) const;
  // Epochs that begin later end above every number that is known now, so an answer remains valid.
  std::uint32_t epochs_below(AccessNumber number, WarpClock::Asked& asked) const {
    if (asked.number != number) asked = {number, epochs_below(number)};
    return asked.epochs;
  }
  void summarise(int warp);
  void part(int warp);

  static constexpr std::size_t kMaxEpochs = std::size_t{1}
                                            << 22;  // the ends of epochs have numbers, too, of which there are 2^25

  int num_warps_ = 0, num_engines_ = 0;
  std::vector<Clocks*> peers_;  // by rank; empty: the CTA is alone
  std::size_t rank_ = 0;
  AccessNumber next_ = 1;
  std::vector<AccessNumber> epochs_;  // the number at which each epoch ended, ascending
  bool touched_ = false;              // whether there was an access in the present epoch
  std::vector<WarpClock> warps_;
  std::vector<AccessNumber> engines_;  // last access of each of the CTA's own engines, then of the cluster's warps
};

}  // namespace flash_ladder::emulator
