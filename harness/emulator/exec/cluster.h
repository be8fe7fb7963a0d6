// A CTA's part in its cluster: the barrier, and accesses to each other's shared memory. The CTAs of a cluster run in turn
// on one host thread. PTX ISA, "barrier.cluster", "mapa", "Cluster of Cooperative Thread Arrays".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/memory_access.h"
#include "emulator/exec/warp.h"
#include "emulator/memory/strength.h"

namespace flash_ladder::emulator {

/// A CTA that is launched without a cluster is the only member of its own.
class ClusterMember {
 public:
  explicit ClusterMember(CtaExecutor& cta) : cta_(cta) {}

  /// The CTAs of the cluster, among which this one has the given rank.
  void join(std::vector<CtaExecutor*> peers, std::size_t rank);
  /// A CTA begins.
  void start();

  bool has_peers() const { return !peers_.empty(); }
  std::size_t rank() const { return rank_; }
  std::size_t size() const { return peers_.empty() ? 1 : peers_.size(); }
  /// A CTA of the cluster; null if there is none with this rank.
  CtaExecutor* peer(std::size_t rank) {
    if (peers_.empty()) return rank == 0 ? &cta_ : nullptr;
    return rank < peers_.size() ? peers_[rank] : nullptr;
  }
  /// Each warp of the CTA has ended or waits at the barrier.
  bool waits() const;

  /// barrier.cluster.arrive and barrier.cluster.wait
  void arrive(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool relaxed);
  void wait(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  /// A fence that other CTAs of the cluster may acquire.
  void note_fence(Warp& warp, std::uint32_t mask);
  /// Whether the other CTA is running. Reports a finding if it cannot be running, or if nothing guarantees that it is.
  bool is_there(CtaExecutor& owner, const Warp& warp, const Instruction& instruction, int lane);
  /// Races in the shared memory of another CTA of the cluster.
  void read_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                 std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets);
  void write_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                  std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets, std::uint32_t unchanged);
  /// Lanes request a copy to the shared memory of another CTA: calls f(lanes, their PeerAccess) for each group of lanes
  /// that have the same knowledge; with null if races are not checked.
  void copy_to_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, std::uint32_t lanes,
                    const std::function<void(std::uint32_t, const PeerAccess*)>& f);
  /// Adds what the lanes know to the clock of a barrier of another CTA.
  void release_to_peer(const Warp& warp, CtaExecutor& owner, std::uint32_t lanes, Clock& into);
  /// Groups lanes by the CTA whose shared memory contains their addresses, null for this one, and removes the rank from
  /// the addresses. Leaves out lanes whose addresses are in no CTA's.
  std::vector<std::pair<CtaExecutor*, std::uint32_t>> owners_of(const Warp& warp, const Instruction& instruction,
                                                                std::uint32_t lanes, LaneAddresses& at);
  /// Flags in the shared memory of a cluster: a read acquires immediately what the writers of the flag knew.
  void release_flags(Warp& warp, const Instruction& instruction, const MemoryAccess& access);
  void acquire_flags(Warp& warp, const MemoryAccess& access);
  /// Lanes of a warp have ended.
  void end_lanes(const Warp& warp, std::uint32_t mask);
  void renumber(const Renumbering& renumbering);

 private:
  bool has_arrived() const;
  void pass();
  void leave(Warp& warp);
  template <typename F>
  void for_each_knowledge(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, std::uint32_t lanes,
                          F f);
  void check_uses_by_peers();
  const Clocks& clocks() const;

  CtaExecutor& cta_;
  struct {
    bool used = false;                            // a thread has arrived
    Clock released, known;                        // the knowledge of the threads that have arrived; what passing
                                                  // threads acquire
    std::uint64_t traced = 0, traced_passed = 0;  // when the last warp of this CTA arrived
  } barrier_;
  std::vector<CtaExecutor*> peers_;
  std::size_t rank_ = 0;
  struct PeerUse {  // the last use of this CTA's shared memory
    std::int32_t instruction = -1;
    int warp = 0, lane = 0;
  };
  std::vector<PeerUse> peer_uses_;        // by engine: Clocks::engine_of()
  std::map<std::uint32_t, Clock> flags_;  // by address in this CTA's shared memory: the knowledge of its writers
};

}  // namespace flash_ladder::emulator
