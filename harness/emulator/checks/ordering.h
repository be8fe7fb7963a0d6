// The order between accesses of different threads: barriers, through Clocks; and communication through memory, with
// fences and with atomic operations that release and acquire. PTX ISA, "Memory Consistency Model": release patterns,
// acquire patterns.
//
// What a thread releases at an address is kept there, in a log. A thread that reads the address with a strong operation
// acquires the log up to that point, immediately if the operation acquires, otherwise after the thread's next fence or
// barrier.
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

/// A clock most of whose entries have the same value, `least`.
struct SparseClock {
  AccessNumber least = 0;
  std::vector<std::pair<std::uint32_t, AccessNumber>> more;  // entry → number

  explicit SparseClock(const Clock& clock);
  AccessNumber of(std::size_t entry) const;
};

/// What one thread has released at an address.
struct Release {
  std::uint32_t cta;
  std::uint32_t thread;
  bool to_block_only;           // the fence before it, or the operation itself, was for the block only
  SparseClock numbers, epochs;  // each entry of `epochs` is in the epochs of the CTA that it belongs to
};

/// Everything that was released at an address.
struct ReleaseLog {
  std::vector<Release> releases;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> of_cta;  // indices of the releases of each CTA
  std::size_t first = 0;  // a store has overwritten the releases before this one
};

/// What a thread of a CTA has acquired: part of a log.
struct Acquisition {
  const ReleaseLog* log;
  std::size_t first, end;  // indices of its releases
  std::uint32_t thread;
  std::uint32_t epoch;
};

/// Whether what a thread of another CTA did in an epoch is known to have happened before; or, for all lanes of the
/// warp, what any thread of that CTA did then.
enum class Known : std::uint8_t { no, of_thread, of_all_threads };

/// The communication between the CTAs of a launch. For use by one host thread.
class LaunchOrdering {
 public:
  /// The number of CTAs in a cluster, and the number of entries that each has in their clocks. CTAs are numbered
  /// cluster by cluster.
  void set_clusters(std::size_t size, std::size_t block_size) {
    cluster_size_ = static_cast<std::uint32_t>(size);
    block_size_ = block_size;
  }
  ReleaseLog* find(Address address);
  ReleaseLog& at(Address address) { return logs_[address & ~Address{3}]; }
  void acquired(std::uint32_t cta, const Acquisition& acquisition) { acquisitions_[cta].push_back(acquisition); }
  const std::vector<Acquisition>& acquisitions_of(std::uint32_t cta) const;
  /// Whether these acquisitions, directly or through what had been acquired before those releases, include what a
  /// thread of a CTA did in this epoch.
  Known known_from(const std::vector<Acquisition>& acquisitions, std::uint32_t cta, std::uint32_t thread,
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

/// What the threads of one CTA know about each other, and about other CTAs.
class Ordering {
 public:
  /// `launch` is null if CTAs cannot communicate.
  Ordering(int num_warps, LaunchOrdering* launch);

  Clocks& clocks() { return clocks_; }
  const Clocks& clocks() const { return clocks_; }
  /// Resets to the state at the start of a CTA; the clocks are reset with Clocks::reset().
  void reset(std::uint32_t cta);
  /// Calls Clocks::join_cluster(), and shares what the cluster acquires from other CTAs.
  void join_cluster(std::vector<Clocks*> peers, std::size_t rank);

  /// A thread that executes a fence releases more than the variable that it changes: a volatile access may be its part
  /// of a lock.
  Strength strength_of(Strength strength, int warp) const {
    return strength == kUpdate && (fenced_ >> warp & 1) != 0 ? kVolatile : strength;
  }

  /// A fence for the block, or for all threads.
  void fence(int warp, std::uint32_t lanes, std::uint32_t alive, bool block_only);
  /// Lanes arrive at a barrier: their reads come before what follows it.
  void arrive(int warp, std::uint32_t lanes, std::uint32_t alive);

  /// A strong operation at an address: an offset in shared memory, or an address in global memory.
  struct Place {
    bool shared;
    Address address;
  };
  struct Order {
    bool acquires, releases, block_only;
  };
  void strong_read(int warp, int lane, std::uint32_t alive, Place place, Order order);
  /// `adds`: an atomic operation, after which earlier releases remain valid. A store overwrites them.
  void strong_write(int warp, int lane, Place place, Order order, bool adds);

  /// Whether what a thread of another CTA did happened before what (warp, lane) does. `strong`: the access itself is
  /// strong, so reads that are still waiting for a fence count, too.
  Known known_of_other_block(std::uint32_t cta, std::uint32_t thread, std::uint32_t epoch, int warp, int lane,
                             bool strong);
  void renumber(const Renumbering& renumbering);

 private:
  struct LogRange {  // part of a log
    ReleaseLog* log;
    bool shared;
    std::size_t first, end;
  };
  // What a thread knew and had done when it reached a fence.
  struct Fenced {
    std::shared_ptr<Clock> clock;  // of the lanes that reached it together; without their own entries
    AccessNumber now = 0;
  };
  struct Thread {
    Fenced for_block, for_all;
    std::vector<LogRange> waiting;  // for a fence
    std::vector<LogRange> known;    // the latest for each log
  };
  ReleaseLog* find(Place place);
  // Calls f(cta, its rank, its clocks) for the CTAs of the cluster, or for this one only.
  template <typename F>
  void for_each_of_cluster(F f);
  void acquire(int warp, std::uint32_t lanes, std::uint32_t alive, const LogRange& range);
  void acquire_waiting(int warp, std::uint32_t lanes, std::uint32_t alive);
  Thread& thread(int warp, int lane) { return threads_[static_cast<std::size_t>(warp * kWarpSize + lane)]; }

  int num_warps_;
  std::uint32_t cta_ = 0;
  LaunchOrdering* launch_;
  Clocks clocks_;
  std::unordered_map<Address, ReleaseLog> shared_logs_;
  std::vector<Thread> threads_;
  std::uint32_t fenced_ = 0;  // warps that have executed a fence
  bool used_ = false;         // since reset(): there were fences or releases
  bool waiting_ = false;      // some thread has acquisitions that wait for a fence
};

}  // namespace flash_ladder::emulator
