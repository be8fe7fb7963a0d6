// Happens-before, by vector clocks. Every access to shared memory gets a number, counting up over the whole CTA; what a thread
// knows is, for each thread, below which number its accesses happened before. The lanes of a warp almost always know the same,
// so that a warp has one clock until something that only some of its lanes do sets them apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

/// The number of an access; 0 is none.
using AccessNumber = std::uint32_t;

/// What somebody knows. Entry t < num_threads: accesses of thread t below it happened before. Entry num_threads + w: those that
/// warp w's cp.async made on their own, completed by an mbarrier. Behind them, those of engines: what TMA brings for one mbarrier;
/// and, in a cluster, what the warps of its CTAs do here. Then a CTA's clock goes on with one such block for each of the other CTAs,
/// in numbers of theirs: behind that of CTA r comes that of CTA r + 1, and behind the last one that of CTA 0.
using Clock = std::vector<AccessNumber>;

void join(Clock& clock, const Clock& other);

/// What access numbers become when those that nobody holds any more are taken out of the count. The order stays. A number that
/// was taken out becomes the next one that was not, so that what is below a bound stays below it.
class Renumbering {
 public:
  /// `to`: of the numbers from `first` on; those before stay.
  Renumbering(AccessNumber first, std::vector<AccessNumber> to) : first_(first), to_(std::move(to)) {}
  AccessNumber operator()(AccessNumber number) const { return number < first_ ? number : to_[number - first_]; }
  void apply_to(Clock& clock) const;

 private:
  AccessNumber first_;
  std::vector<AccessNumber> to_;
};

class Clocks {
 public:
  /// For a CTA of so many warps; numbers begin at 1.
  void reset(int num_warps, AccessNumber first, int num_engines = 0);
  /// Those of a cluster, itself at `rank`. All have as many warps. To be called before they are used.
  void join_cluster(std::vector<Clocks*> peers, std::size_t rank);
  bool is_in_cluster() const { return !peers_.empty(); }
  std::size_t cluster_size() const { return std::max<std::size_t>(peers_.size(), 1); }
  const Clocks& peer(std::size_t rank) const { return *peers_[rank]; }
  /// The entries of one CTA.
  std::size_t block_size() const { return static_cast<std::size_t>(num_warps_) * (kWarpSize + 1) + engines_.size(); }
  /// Where the block of the CTA of this rank begins.
  std::size_t block_of(std::size_t rank) const { return (rank + peers_.size() - rank_) % peers_.size() * block_size(); }
  /// What the threads of another CTA of the cluster tell, in its clock, as one of this one's.
  Clock turned(const Clock& clock, const Clocks& from) const;
  /// The engine as which a warp of another CTA of the cluster does something here.
  int engine_of(std::size_t rank, int warp) const { return num_engines_ + static_cast<int>(rank) * num_warps_ + warp; }
  /// The inverse; nothing if the engine is one of this CTA's own.
  std::optional<std::size_t> rank_of_engine(int engine) const {
    if (engine < num_engines_) return std::nullopt;
    return static_cast<std::size_t>((engine - num_engines_) / num_warps_);
  }
  /// All that a warp has done so far in the memory of other CTAs is among what is told.
  void tell_peers(int warp, Clock& into) const;
  /// Whether a thread of this CTA knows that all happened before which this engine has done.
  bool anybody_knows_all_of(int engine) const;

  AccessNumber next() const { return next_; }
  AccessNumber take() { return next_++; }

  /// All accesses below this happened before whatever this warp does now.
  AccessNumber known_to_warp(int warp) const { return warps_[static_cast<std::size_t>(warp)].least; }
  /// The same for the accesses of the warp's own lanes.
  AccessNumber synced_in_warp(int warp) const { return warps_[static_cast<std::size_t>(warp)].own; }
  /// The same for the accesses of another warp.
  AccessNumber known_of_warp(int warp, int other) const {
    return warps_[static_cast<std::size_t>(warp)].of_warp[static_cast<std::size_t>(other)];
  }
  /// The same for what its lanes have done themselves, and no asynchronous copy of theirs.
  AccessNumber known_of_lanes(int warp, int other) const {
    return warps_[static_cast<std::size_t>(warp)].of_lanes[static_cast<std::size_t>(other)];
  }
  /// Whether access `number` of (other, other_lane), or of other's asynchronous copies, happened before what (warp, lane) does.
  bool happened_before(AccessNumber number, int other, int other_lane, bool async, int warp, int lane) const;
  /// The same before whatever any lane of the warp does, and of whatever lane of `other`.
  bool happened_before(AccessNumber number, int other, bool async, int warp) const;

  // Accesses to global memory have no numbers of their own, only the epoch in which they happen: a new one begins when somebody
  // tells others what was done. So a kernel that goes through gigabytes needs no numbers for that.

  /// That of an access that happens now.
  std::uint32_t epoch() {
    touched_ = true;
    return static_cast<std::uint32_t>(epochs_.size());
  }
  /// There are no more: accesses to global memory cannot be told apart in time any more.
  bool out_of_epochs() const { return epochs_.size() >= kMaxEpochs; }
  /// How many epochs end before this number: those happened before whoever knows all below it.
  std::uint32_t epochs_below(AccessNumber number) const;
  /// All accesses of epochs below this happened before whatever this warp does now; and those of its own lanes.
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
  /// The same of an epoch of a thread of another CTA of the cluster.
  bool epoch_of_peer_happened_before(std::size_t rank, std::uint32_t epoch, std::uint32_t thread, int warp,
                                     int lane) const;

  /// What a thread knows.
  const Clock& of(int warp, int lane) const { return clock_of(warp, lane); }
  /// What lanes of a warp tell others when they arrive at a barrier: all that they know and have done.
  void release(int warp, std::uint32_t lanes, Clock& into);
  /// The number below which all is that has been done so far. Ends the epoch.
  AccessNumber now();
  /// What they learn from one.
  void acquire(int warp, std::uint32_t lanes, std::uint32_t alive, const Clock& clock);
  /// __syncwarp: the lanes learn what each of them knows and has done.
  void synchronise(int warp, std::uint32_t lanes, std::uint32_t alive);
  /// __syncthreads of the whole CTA: everybody knows everything.
  void synchronise_all();
  /// An access by a copy of `warp` that an mbarrier completes: its number. The mbarrier tells others with publish_async().
  /// From num_warps on `warp` is that of an engine.
  AccessNumber take_async(int warp) { return last_async(warp) = next_++; }
  void publish_async(int warp, Clock& into) const;
  void renumber(const Renumbering& renumbering);
  Clock empty() const { return Clock(block_size() * std::max<std::size_t>(peers_.size(), 1)); }

 private:
  struct WarpClock {
    Clock common;              // what all lanes know
    std::vector<Clock> lanes;  // what each knows; empty while that is the same
    AccessNumber least = 0, own = 0;
    std::vector<AccessNumber> of_warp, of_lanes;
    // The numbers of which epochs_below() was asked last, with its answers.
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
  // Epochs that begin later end above every number that is known now, so that an answer stays right.
  std::uint32_t epochs_below(AccessNumber number, WarpClock::Asked& asked) const {
    if (asked.number != number) asked = {number, epochs_below(number)};
    return asked.epochs;
  }
  void summarise(int warp);
  void part(int warp);

  static constexpr std::size_t kMaxEpochs = std::size_t{1}
                                            << 22;  // their ends have numbers, too, of which there are 2^25

  int num_warps_ = 0, num_engines_ = 0;
  std::vector<Clocks*> peers_;  // by rank; empty: the CTA is alone
  std::size_t rank_ = 0;
  AccessNumber next_ = 1;
  std::vector<AccessNumber> epochs_;  // the number at which each has ended, upwards
  bool touched_ = false;              // whether there was an access in the present one
  std::vector<WarpClock> warps_;
  std::vector<AccessNumber> engines_;  // the last of each; behind the CTA's own those of the cluster's warps
};

}  // namespace flash_ladder::emulator
