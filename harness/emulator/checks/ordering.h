// What orders the accesses of threads: barriers, by Clocks; and what one thread tells another through memory, with fences, and with
// atomic operations that release and acquire. PTX ISA, "Memory Consistency Model": release patterns, acquire patterns.
//
// What a thread tells at an address is kept there, as a log. Whoever reads the address with a strong operation knows of the log
// up to there, at once if the operation acquires, else after its next fence or barrier.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/memory.h"
#include "emulator/memory/strength.h"

namespace flash_ladder::emulator {

/// A clock of which most entries are the same: `least`, but for some.
struct SparseClock {
  AccessNumber least = 0;
  std::vector<std::pair<std::uint32_t, AccessNumber>> more;  // entry → number

  explicit SparseClock(const Clock& clock);
  AccessNumber of(std::size_t entry) const;
};

/// What one thread has told at an address.
struct Release {
  std::uint32_t cta;
  std::uint32_t thread;
  bool to_block_only;           // the fence before it was for the block only, or the operation
  SparseClock numbers, epochs;  // each entry of `epochs` in those of the CTA whose it is
};

/// All that was told at an address.
struct ReleaseLog {
  std::vector<Release> releases;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> of_cta;  // which of them
  std::size_t first = 0;  // a store has overwritten what those before this have told
};

/// What a thread of a CTA has heard: part of a log.
struct Acquisition {
  const ReleaseLog* log;
  std::size_t first, end;  // of its releases
  std::uint32_t thread;
  std::uint32_t epoch;
};

/// Whether what a thread of another CTA did in an epoch is known to have happened before; or, to all lanes of the warp, what any
/// thread of that CTA did then.
enum class Known : std::uint8_t { no, of_thread, of_all_threads };

/// What the CTAs of a launch tell each other. For one host thread.
class LaunchOrdering {
 public:
  /// How many CTAs a cluster has, and how many entries one of them has in their clocks. CTAs are numbered cluster by cluster.
  void set_clusters(std::size_t size, std::size_t block_size) {
    cluster_size_ = static_cast<std::uint32_t>(size);
    block_size_ = block_size;
  }
  ReleaseLog* find(Address address);
  ReleaseLog& at(Address address) { return logs_[address & ~Address{3}]; }
  void acquired(std::uint32_t cta, const Acquisition& acquisition) { acquisitions_[cta].push_back(acquisition); }
  const std::vector<Acquisition>& acquisitions_of(std::uint32_t cta) const;
  /// Whether these acquisitions, or what those who were heard had heard before, tell of what a thread of a CTA did in this epoch.
  Known tell_of(const std::vector<Acquisition>& acquisitions, std::uint32_t cta, std::uint32_t thread,
                std::uint32_t epoch) const;
  void renumber(std::uint32_t cta, const Renumbering& renumbering);

 private:
  // The entry of a thread in the clock of a CTA of the same cluster.
  std::size_t entry_of(std::uint32_t cta, std::uint32_t thread, std::uint32_t in) const {
    return (cta + cluster_size_ - in) % cluster_size_ * block_size_ + thread;
  }
  template <typename F>
  bool any_of_cluster(std::uint32_t cta, F f) const;

  std::uint32_t cluster_size_ = 1;
  std::size_t block_size_ = 0;
  std::unordered_map<Address, ReleaseLog> logs_;
  std::unordered_map<std::uint32_t, std::vector<Acquisition>> acquisitions_;
};

/// What the threads of one CTA know of each other, and of other CTAs.
class Ordering {
 public:
  /// `launch` is null where CTAs cannot talk to each other.
  Ordering(int num_warps, LaunchOrdering* launch);

  Clocks& clocks() { return clocks_; }
  const Clocks& clocks() const { return clocks_; }
  /// As at the start of a CTA; the clocks begin anew by Clocks::reset().
  void reset(std::uint32_t cta);
  /// Clocks::join_cluster(), and what the cluster hears of other CTAs.
  void join_cluster(std::vector<Clocks*> peers, std::size_t rank);

  /// A thread that fences hands over more than the variable that it changes: what is volatile may be its part of a lock.
  Strength strength_of(Strength strength, int warp) const {
    return strength == kUpdate && (fenced_ >> warp & 1) != 0 ? kVolatile : strength;
  }

  /// A fence for the block, or for all.
  void fence(int warp, std::uint32_t lanes, std::uint32_t alive, bool block_only);
  /// Lanes come to a barrier: what they have read comes before what follows it.
  void arrive(int warp, std::uint32_t lanes, std::uint32_t alive);

  /// A strong operation at an address: in shared memory, by its offset, or in global memory.
  struct Place {
    bool shared;
    Address address;
  };
  struct Order {
    bool acquires, releases, block_only;
  };
  void strong_read(int warp, int lane, std::uint32_t alive, Place place, Order order);
  /// `adds`: an atomic operation; what was told before is still told. A store overwrites it.
  void strong_write(int warp, int lane, Place place, Order order, bool adds);

  /// Whether what a thread of another CTA did happened before what (warp, lane) does. `hears`: the access itself is strong, so that
  /// what was read before and is waiting for a fence counts, too.
  Known known_of_other_block(std::uint32_t cta, std::uint32_t thread, std::uint32_t epoch, int warp, int lane,
                             bool hears);
  void renumber(const Renumbering& renumbering);

 private:
  struct Heard {  // of a log
    ReleaseLog* log;
    bool shared;
    std::size_t first, end;
  };
  // What a thread knew and had done when it came to a fence.
  struct Fenced {
    std::shared_ptr<Clock> clock;  // of those that came with it; without their own entries
    AccessNumber now = 0;
  };
  struct Thread {
    Fenced for_block, for_all;
    std::vector<Heard> waiting;  // for a fence
    std::vector<Heard> known;    // the latest of each log
  };
  ReleaseLog* find(Place place);
  // Calls f(cta, its rank, its clocks) for the CTAs of the cluster, or for this one alone.
  template <typename F>
  void for_each_of_cluster(F f);
  void learn(int warp, std::uint32_t lanes, std::uint32_t alive, const Heard& heard);
  void learn_waiting(int warp, std::uint32_t lanes, std::uint32_t alive);
  Thread& thread(int warp, int lane) { return threads_[static_cast<std::size_t>(warp * kWarpSize + lane)]; }

  int num_warps_;
  std::uint32_t cta_ = 0;
  LaunchOrdering* launch_;
  Clocks clocks_;
  std::unordered_map<Address, ReleaseLog> shared_logs_;
  std::vector<Thread> threads_;
  std::uint32_t fenced_ = 0;  // warps that have
  bool used_ = false;         // since reset(): there were fences or releases
  bool waiting_ = false;      // some thread has something that waits for a fence
};

}  // namespace flash_ladder::emulator
