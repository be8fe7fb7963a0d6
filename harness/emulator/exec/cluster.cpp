#include "emulator/exec/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

const Clocks& ClusterMember::clocks() const { return cta_.ordering()->clocks(); }

void ClusterMember::join(std::vector<CtaExecutor*> peers, std::size_t rank) {
  peers_ = std::move(peers);
  rank_ = rank;
  if (cta_.ordering() == nullptr) return;
  std::vector<Clocks*> clocks;
  for (CtaExecutor* peer : peers_) clocks.push_back(&peer->ordering()->clocks());
  cta_.ordering()->join_cluster(std::move(clocks), rank);
  if (cta_.shadow() != nullptr) cta_.shadow()->join_cluster(peers_.size());
}

void ClusterMember::start() {
  barrier_ = {};
  flags_.clear();
  if (cta_.ordering() != nullptr && clocks().is_in_cluster())
    peer_uses_.assign(static_cast<std::size_t>(clocks().engine_of(peers_.size(), 0)), {});
}

// ---- the barrier ----

void ClusterMember::arrive(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool relaxed) {
  if (const std::uint32_t again = mask & (warp.cluster.arrived | warp.cluster.passed); again != 0) {
    cta_.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(again), std::nullopt,
              "an arrival at the cluster's barrier by a thread that has already arrived and has not waited since");
  }
  warp.cluster.passed &= ~mask;
  warp.cluster.arrived |= mask;
  barrier_.used = true;
  if (cta_.ordering() != nullptr) {
    Clocks& clocks = cta_.ordering()->clocks();
    if (barrier_.released.empty()) barrier_.released = clocks.empty();
    cta_.ordering()->arrive(warp.index, mask, warp.alive);
    if (!relaxed) {
      clocks.release(warp.index, mask, barrier_.released);
    } else if (!warp.cluster.fenced.empty()) {  // a fence before it has the same effect
      emulator::join(barrier_.released, warp.cluster.fenced);
    }
  }
  if (cta_.trace() != nullptr) {
    barrier_.traced = std::max(barrier_.traced, cta_.trace()->clock(warp.index));
    cta_.trace()->note({.warp = warp.index,
                        .barrier = TraceBarrier{false, kNamedBarriers, cta_.trace()->phase_of_barrier(kNamedBarriers)}},
                       cta_.index_of(instruction));
  }
  cta_.note_progress();
  pass();
}

void ClusterMember::wait(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (const std::uint32_t never = mask & ~(warp.cluster.arrived | warp.cluster.passed); never != 0) {
    cta_.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(never), std::nullopt,
              "a wait at the cluster's barrier by a thread that has not arrived there");
  }
  warp.cluster.waiting = mask;
  warp.cluster.instruction = cta_.index_of(instruction);
  warp.status = WarpStatus::waiting;
  if ((warp.cluster.arrived & mask) == 0) leave(warp);
}

void ClusterMember::leave(Warp& warp) {
  const std::uint32_t lanes = std::exchange(warp.cluster.waiting, 0);
  warp.cluster.passed &= ~lanes;
  if (cta_.ordering() != nullptr && !barrier_.known.empty())
    cta_.ordering()->clocks().acquire(warp.index, lanes, warp.alive, barrier_.known);
  if (cta_.trace() != nullptr)
    cta_.trace()->go_on(warp.index, barrier_.traced_passed,
                        {false, kNamedBarriers, cta_.trace()->phase_of_barrier(kNamedBarriers) - 1}, -1);
  warp.status = WarpStatus::ready;
  cta_.note_progress();
}

bool ClusterMember::has_arrived() const {
  return std::ranges::all_of(cta_.warps(), [](const Warp& warp) { return (warp.alive & ~warp.cluster.arrived) == 0; });
}

bool ClusterMember::waits() const {
  return std::ranges::all_of(cta_.warps(),
                             [](const Warp& warp) { return warp.alive == 0 || warp.cluster.waiting != 0; });
}

// If all threads of all CTAs have arrived or ended, the waiting ones continue.
void ClusterMember::pass() {
  CtaExecutor* const alone[] = {&cta_};
  const std::span<CtaExecutor* const> all = peers_.empty() ? std::span<CtaExecutor* const>(alone) : peers_;
  if (!std::ranges::all_of(all, [](CtaExecutor* peer) { return peer->cluster().has_arrived(); })) return;
  for (CtaExecutor* peer : all) {
    if (peer->ordering() == nullptr) continue;
    ClusterMember& member = peer->cluster();
    member.barrier_.known = member.clocks().empty();
    for (CtaExecutor* other : all) {
      const Clock& released = other->cluster().barrier_.released;
      if (!released.empty())
        emulator::join(member.barrier_.known,
                       other == peer ? released : member.clocks().converted(released, other->cluster().clocks()));
    }
  }
  for (CtaExecutor* peer : all) {
    ClusterMember& member = peer->cluster();
    member.barrier_.released.clear();
    member.barrier_.traced_passed = std::exchange(member.barrier_.traced, 0);
    if (peer->trace() != nullptr) peer->trace()->end_phase(kNamedBarriers);
    for (Warp& warp : peer->warps()) {
      warp.cluster.passed |= std::exchange(warp.cluster.arrived, 0);
      if (warp.cluster.waiting != 0) member.leave(warp);
    }
    peer->note_progress();
  }
}

void ClusterMember::note_fence(Warp& warp, std::uint32_t mask) {
  if (peers_.empty() || cta_.ordering() == nullptr) return;
  if (warp.cluster.fenced.empty()) warp.cluster.fenced = clocks().empty();
  cta_.ordering()->clocks().release(warp.index, mask, warp.cluster.fenced);
}

// ---- each other's shared memory ----

std::vector<std::pair<CtaExecutor*, std::uint32_t>> ClusterMember::owners_of(const Warp& warp,
                                                                             const Instruction& instruction,
                                                                             std::uint32_t lanes, LaneAddresses& at) {
  std::vector<std::pair<CtaExecutor*, std::uint32_t>> owners;
  while (lanes != 0) {
    const auto rank_at = [&](int lane) {
      const std::uint64_t rank = rank_of(at.at[static_cast<std::size_t>(lane)]).value_or(rank_);
      return rank < peers_.size() ? static_cast<std::size_t>(rank) : rank_;  // an invalid rank is out of bounds
    };
    const std::size_t rank = rank_at(std::countr_zero(lanes));
    std::uint32_t same = 0;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
      if (rank_at(std::countr_zero(rest)) == rank) same |= rest & (~rest + 1);
    lanes &= ~same;
    if (rank == rank_) {
      owners.emplace_back(nullptr, same);
      continue;
    }
    for (std::uint32_t rest = same; rest != 0; rest &= rest - 1) {
      std::uint64_t& address = at.at[static_cast<std::size_t>(std::countr_zero(rest))];
      address = without_rank(address);
    }
    if (is_there(*peers_[rank], warp, instruction, std::countr_zero(same))) owners.emplace_back(peers_[rank], same);
  }
  return owners;
}

// Whether another CTA is guaranteed to be running, not only by luck.
bool ClusterMember::is_there(CtaExecutor& owner, const Warp& warp, const Instruction& instruction, int lane) {
  if (owner.has_ended()) {
    cta_.find(
        FindingKind::in_flight, &warp, &instruction, lane, std::nullopt,
        fmt::format("an access to the shared memory of CTA {} of the cluster, which has ended: nothing made it wait "
                    "(barrier.cluster)",
                    owner.cluster().rank_));
    return false;
  }
  if (cta_.ordering() != nullptr) {
    const Clock& known = clocks().of(warp.index, lane);
    const auto block = known.begin() + static_cast<std::ptrdiff_t>(clocks().block_of(owner.cluster().rank_));
    // Only the entries of its threads count, because what this CTA itself has done there proves nothing.
    if (std::all_of(block, block + static_cast<std::ptrdiff_t>(cta_.warps().size() * kWarpSize),
                    [](AccessNumber number) { return number == 0; })) {
      cta_.find(
          FindingKind::race, &warp, &instruction, lane, std::nullopt,
          fmt::format("an access to the shared memory of CTA {} of the cluster, and nothing guarantees that it has "
                      "begun "
                      "(barrier.cluster)",
                      owner.cluster().rank_));
    }
  }
  return true;
}

// Calls f(lanes, peer) for groups of lanes that have the same knowledge.
template <typename F>
void ClusterMember::for_each_knowledge(const Warp& warp, const Instruction& instruction, CtaExecutor& owner,
                                       std::uint32_t lanes, F f) {
  const int engine = owner.cluster().clocks().engine_of(rank_, warp.index);
  while (lanes != 0) {
    const Clock& clock = clocks().of(warp.index, std::countr_zero(lanes));
    std::uint32_t same = 0;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
      if (&clocks().of(warp.index, std::countr_zero(rest)) == &clock) same |= rest & (~rest + 1);
    f(same, PeerAccess{clock, clocks().block_of(owner.cluster().rank_), engine, rank_, owner.cluster().rank_,
                       cta_.conflicts()});
    owner.cluster().peer_uses_[static_cast<std::size_t>(engine)] = {cta_.index_of(instruction), warp.index,
                                                                    std::countr_zero(same)};
    lanes &= ~same;
  }
}

void ClusterMember::read_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                              std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets) {
  if (owner.shadow() == nullptr) return;
  for_each_knowledge(warp, instruction, owner, lanes, [&](std::uint32_t same, const PeerAccess& peer) {
    SharedAccess access{warp.index, cta_.index_of(instruction), strength, same, bytes, offsets};
    access.peer = &peer;
    owner.shadow()->read(access);
  });
}

void ClusterMember::write_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                               std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets,
                               std::uint32_t unchanged) {
  if (owner.shadow() != nullptr) {
    for_each_knowledge(warp, instruction, owner, lanes, [&](std::uint32_t same, const PeerAccess& peer) {
      SharedAccess access{warp.index, cta_.index_of(instruction), strength, same, bytes, offsets};
      access.peer = &peer;
      owner.shadow()->write(access, unchanged & same);
    });
  }
  if (owner.async() != nullptr) owner.async()->proxy.forget_write(lanes, bytes, offsets);
  owner.note_progress();
}

void ClusterMember::copy_to_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner,
                                 std::uint32_t lanes, const std::function<void(std::uint32_t, const PeerAccess*)>& f) {
  if (owner.shadow() == nullptr) return f(lanes, nullptr);
  for_each_knowledge(warp, instruction, owner, lanes,
                     [&](std::uint32_t same, const PeerAccess& peer) { f(same, &peer); });
}

void ClusterMember::release_to_peer(const Warp& warp, CtaExecutor& owner, std::uint32_t lanes, Clock& into) {
  if (cta_.ordering() == nullptr || into.empty()) return;
  Clock released = clocks().empty();
  cta_.ordering()->clocks().release(warp.index, lanes, released);
  emulator::join(into, owner.cluster().clocks().converted(released, clocks()));
}

void ClusterMember::release_flags(Warp& warp, const Instruction& instruction, const MemoryAccess& access) {
  CtaExecutor& owner = access.peer == nullptr ? cta_ : *access.peer;
  for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Clock released = warp.cluster.fenced;
    if (instruction.releases) {
      released = clocks().empty();
      cta_.ordering()->clocks().release(warp.index, 1u << lane, released);
    }
    if (released.empty()) continue;
    Clock& flag = owner.cluster().flags_[access.offsets[lane] & ~3u];
    if (flag.empty()) flag = owner.cluster().clocks().empty();
    emulator::join(flag, owner.cluster().clocks().converted(released, clocks()));
  }
}

void ClusterMember::acquire_flags(Warp& warp, const MemoryAccess& access) {
  CtaExecutor& owner = access.peer == nullptr ? cta_ : *access.peer;
  for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto flag = owner.cluster().flags_.find(access.offsets[lane] & ~3u);
    if (flag == owner.cluster().flags_.end()) continue;
    cta_.ordering()->clocks().acquire(warp.index, 1u << lane, warp.alive,
                                      clocks().converted(flag->second, owner.cluster().clocks()));
  }
}

// The CTA ends: everything that others have done to its shared memory must have happened before, and one of its threads
// must know that.
void ClusterMember::check_uses_by_peers() {
  for (std::size_t engine = 0; engine < peer_uses_.size(); ++engine) {
    const PeerUse& use = peer_uses_[engine];
    if (use.instruction < 0 || clocks().any_thread_knows_all_of(static_cast<int>(engine))) continue;
    CtaExecutor& user = *peers_[*clocks().rank_of_engine(static_cast<int>(engine))];
    user.find(
        FindingKind::in_flight, &user.warps()[static_cast<std::size_t>(use.warp)],
        &cta_.code()[static_cast<std::size_t>(use.instruction)], use.lane, std::nullopt,
        fmt::format("CTA {} of the cluster, whose shared memory this accesses, does not wait for it before it ends "
                    "(barrier.cluster)",
                    rank_));
  }
}

// The other CTAs need not wait for threads that have ended, which counts as an arrival.
void ClusterMember::end_lanes(const Warp& warp, std::uint32_t mask) {
  if (!peers_.empty() && cta_.ordering() != nullptr) {
    if (barrier_.released.empty()) barrier_.released = clocks().empty();
    cta_.ordering()->clocks().release(warp.index, mask, barrier_.released);
    if (cta_.threads_alive() == 0) check_uses_by_peers();
  }
  if (barrier_.used || !peers_.empty()) pass();
}

void ClusterMember::renumber(const Renumbering& renumbering) {
  renumbering.apply_to(barrier_.released);
  renumbering.apply_to(barrier_.known);
}

}  // namespace flash_ladder::emulator
