// The interaction of the CTAs of a cluster: its barrier, and accesses to each other's shared memory. PTX ISA,
// "barrier.cluster", "mapa", "Cluster of Cooperative Thread Arrays". They run in turn on one host thread.

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

void CtaExecutor::join_cluster(std::vector<CtaExecutor*> peers, std::size_t rank, GlobalShadow* global) {
  peers_ = std::move(peers);
  rank_ = rank;
  cluster_global_ = global;
  if (ordering_ == nullptr) return;
  std::vector<Clocks*> clocks;
  for (CtaExecutor* peer : peers_) clocks.push_back(&peer->ordering_->clocks());
  ordering_->join_cluster(std::move(clocks), rank);
  if (shadow_ != nullptr) shadow_->join_cluster(peers_.size());
}

// ---- the barrier ----

void CtaExecutor::arrive_at_cluster(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool relaxed) {
  if (const std::uint32_t again = mask & (warp.cluster.arrived | warp.cluster.passed); again != 0) {
    find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(again), std::nullopt,
         "an arrival at the cluster's barrier by a thread that has already arrived and has not waited since");
  }
  warp.cluster.passed &= ~mask;
  warp.cluster.arrived |= mask;
  cluster_barrier_.used = true;
  if (ordering_ != nullptr) {
    Clocks& clocks = ordering_->clocks();
    if (cluster_barrier_.told.empty()) cluster_barrier_.told = clocks.empty();
    ordering_->arrive(warp.index, mask, warp.alive);
    if (!relaxed) {
      clocks.release(warp.index, mask, cluster_barrier_.told);
    } else if (!warp.cluster.fenced.empty()) {  // a fence before it has the same effect
      join(cluster_barrier_.told, warp.cluster.fenced);
    }
  }
  if (trace_ != nullptr) {
    cluster_barrier_.traced = std::max(cluster_barrier_.traced, trace_->clock(warp.index));
    trace_->note(
        {.warp = warp.index, .barrier = TraceBarrier{false, kNamedBarriers, trace_->phase_of_barrier(kNamedBarriers)}},
        index_of(instruction));
  }
  note_progress();
  pass_cluster();
}

void CtaExecutor::wait_for_cluster(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (const std::uint32_t never = mask & ~(warp.cluster.arrived | warp.cluster.passed); never != 0) {
    find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(never), std::nullopt,
         "a wait at the cluster's barrier by a thread that has not arrived there");
  }
  warp.cluster.waiting = mask;
  warp.cluster.instruction = index_of(instruction);
  warp.status = WarpStatus::waiting;
  if ((warp.cluster.arrived & mask) == 0) leave_cluster_barrier(warp);
}

void CtaExecutor::leave_cluster_barrier(Warp& warp) {
  const std::uint32_t lanes = std::exchange(warp.cluster.waiting, 0);
  warp.cluster.passed &= ~lanes;
  if (ordering_ != nullptr && !cluster_barrier_.known.empty())
    ordering_->clocks().acquire(warp.index, lanes, warp.alive, cluster_barrier_.known);
  if (trace_ != nullptr)
    trace_->go_on(warp.index, cluster_barrier_.traced_passed,
                  {false, kNamedBarriers, trace_->phase_of_barrier(kNamedBarriers) - 1}, -1);
  warp.status = WarpStatus::ready;
  note_progress();
}

bool CtaExecutor::has_come_to_cluster() const {
  return std::ranges::all_of(warps_, [](const Warp& warp) { return (warp.alive & ~warp.cluster.arrived) == 0; });
}

bool CtaExecutor::waits_for_cluster() const {
  return std::ranges::all_of(warps_, [](const Warp& warp) { return warp.alive == 0 || warp.cluster.waiting != 0; });
}

// If all threads of all CTAs have arrived or ended, the waiting ones continue.
void CtaExecutor::pass_cluster() {
  CtaExecutor* const alone[] = {this};
  const std::span<CtaExecutor* const> all = peers_.empty() ? std::span<CtaExecutor* const>(alone) : peers_;
  if (!std::ranges::all_of(all, [](const CtaExecutor* peer) { return peer->has_come_to_cluster(); })) return;
  for (CtaExecutor* peer : all) {
    if (peer->ordering_ == nullptr) continue;
    Clocks& clocks = peer->ordering_->clocks();
    peer->cluster_barrier_.known = clocks.empty();
    for (const CtaExecutor* other : all) {
      const Clock& told = other->cluster_barrier_.told;
      if (!told.empty())
        join(peer->cluster_barrier_.known, other == peer ? told : clocks.turned(told, other->clocks()));
    }
  }
  for (CtaExecutor* peer : all) {
    peer->cluster_barrier_.told.clear();
    peer->cluster_barrier_.traced_passed = std::exchange(peer->cluster_barrier_.traced, 0);
    if (peer->trace_ != nullptr) peer->trace_->end_phase(kNamedBarriers);
    for (Warp& warp : peer->warps_) {
      warp.cluster.passed |= std::exchange(warp.cluster.arrived, 0);
      if (warp.cluster.waiting != 0) peer->leave_cluster_barrier(warp);
    }
    peer->note_progress();
  }
}

void CtaExecutor::note_cluster_fence(Warp& warp, std::uint32_t mask) {
  if (peers_.empty() || ordering_ == nullptr) return;
  if (warp.cluster.fenced.empty()) warp.cluster.fenced = clocks().empty();
  ordering_->clocks().release(warp.index, mask, warp.cluster.fenced);
}

// ---- each other's shared memory ----

// Groups lanes by the CTA whose shared memory contains their addresses, and removes the rank from the addresses. Leaves
// out lanes whose addresses are in no CTA's.
std::vector<std::pair<CtaExecutor*, std::uint32_t>> CtaExecutor::owners_of(const Warp& warp,
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
bool CtaExecutor::is_there(const CtaExecutor& owner, const Warp& warp, const Instruction& instruction, int lane) {
  if (owner.has_ended()) {
    find(FindingKind::in_flight, &warp, &instruction, lane, std::nullopt,
         fmt::format("an access to the shared memory of CTA {} of the cluster, which has ended: nothing made it wait "
                     "(barrier.cluster)",
                     owner.rank_));
    return false;
  }
  if (ordering_ != nullptr) {
    const Clock& known = clocks().of(warp.index, lane);
    const auto block = known.begin() + static_cast<std::ptrdiff_t>(clocks().block_of(owner.rank_));
    // Only the entries of its threads count, because what this CTA itself has done there proves nothing.
    if (std::all_of(block, block + static_cast<std::ptrdiff_t>(warps_.size() * kWarpSize),
                    [](AccessNumber number) { return number == 0; })) {
      find(FindingKind::race, &warp, &instruction, lane, std::nullopt,
           fmt::format("an access to the shared memory of CTA {} of the cluster, and nothing guarantees that it has "
                       "begun "
                       "(barrier.cluster)",
                       owner.rank_));
    }
  }
  return true;
}

// Calls f(lanes, peer) for groups of lanes that have the same knowledge.
template <typename F>
void CtaExecutor::for_each_knowledge(const Warp& warp, const Instruction& instruction, CtaExecutor& owner,
                                     std::uint32_t lanes, F f) {
  const int engine = owner.clocks().engine_of(rank_, warp.index);
  while (lanes != 0) {
    const Clock& clock = clocks().of(warp.index, std::countr_zero(lanes));
    std::uint32_t same = 0;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
      if (&clocks().of(warp.index, std::countr_zero(rest)) == &clock) same |= rest & (~rest + 1);
    f(same, PeerAccess{clock, clocks().block_of(owner.rank_), engine, rank_, owner.rank_, *this});
    owner.peer_uses_[static_cast<std::size_t>(engine)] = {index_of(instruction), warp.index, std::countr_zero(same)};
    lanes &= ~same;
  }
}

void CtaExecutor::read_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                            std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets) {
  if (owner.shadow_ == nullptr) return;
  for_each_knowledge(warp, instruction, owner, lanes, [&](std::uint32_t same, const PeerAccess& peer) {
    SharedAccess access{warp.index, index_of(instruction), strength, same, bytes, offsets};
    access.peer = &peer;
    owner.shadow_->read(access);
  });
}

void CtaExecutor::write_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                             std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets,
                             std::uint32_t unchanged) {
  if (owner.shadow_ != nullptr) {
    for_each_knowledge(warp, instruction, owner, lanes, [&](std::uint32_t same, const PeerAccess& peer) {
      SharedAccess access{warp.index, index_of(instruction), strength, same, bytes, offsets};
      access.peer = &peer;
      owner.shadow_->write(access, unchanged & same);
    });
  }
  if (owner.async_ != nullptr) owner.async_->proxy.forget_write(lanes, bytes, offsets);
  owner.note_progress();
}

void CtaExecutor::copy_to_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner,
                               std::uint32_t lanes, const std::function<void(std::uint32_t, const PeerAccess*)>& f) {
  if (owner.shadow_ == nullptr) return f(lanes, nullptr);
  for_each_knowledge(warp, instruction, owner, lanes,
                     [&](std::uint32_t same, const PeerAccess& peer) { f(same, &peer); });
}

void CtaExecutor::tell_peer(const Warp& warp, CtaExecutor& owner, std::uint32_t lanes, Clock& into) {
  if (ordering_ == nullptr || into.empty()) return;
  Clock told = clocks().empty();
  ordering_->clocks().release(warp.index, lanes, told);
  join(into, owner.clocks().turned(told, clocks()));
}

// Flags in the shared memory of a cluster: a read acquires immediately what the writers of the flag knew.
void CtaExecutor::tell_cluster(Warp& warp, const Instruction& instruction, const MemoryAccess& access) {
  CtaExecutor& owner = access.peer == nullptr ? *this : *access.peer;
  for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Clock told = warp.cluster.fenced;
    if (instruction.releases) {
      told = clocks().empty();
      ordering_->clocks().release(warp.index, 1u << lane, told);
    }
    if (told.empty()) continue;
    Clock& flag = owner.flags_[access.offsets[lane] & ~3u];
    if (flag.empty()) flag = owner.clocks().empty();
    join(flag, owner.clocks().turned(told, clocks()));
  }
}

void CtaExecutor::hear_cluster(Warp& warp, const MemoryAccess& access) {
  CtaExecutor& owner = access.peer == nullptr ? *this : *access.peer;
  for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto flag = owner.flags_.find(access.offsets[lane] & ~3u);
    if (flag == owner.flags_.end()) continue;
    ordering_->clocks().acquire(warp.index, 1u << lane, warp.alive, clocks().turned(flag->second, owner.clocks()));
  }
}

// The CTA ends: everything that others have done to its shared memory must have happened before, and one of its threads
// must know that.
void CtaExecutor::check_uses_by_peers() {
  for (std::size_t engine = 0; engine < peer_uses_.size(); ++engine) {
    const PeerUse& use = peer_uses_[engine];
    if (use.instruction < 0 || clocks().anybody_knows_all_of(static_cast<int>(engine))) continue;
    CtaExecutor& user = *peers_[*clocks().rank_of_engine(static_cast<int>(engine))];
    user.find(
        FindingKind::in_flight, &user.warps_[static_cast<std::size_t>(use.warp)],
        &code_[static_cast<std::size_t>(use.instruction)], use.lane, std::nullopt,
        fmt::format("CTA {} of the cluster, whose shared memory this accesses, does not wait for it before it ends "
                    "(barrier.cluster)",
                    rank_));
  }
}

// The other CTAs need not wait for threads that have ended, which counts as an arrival.
void CtaExecutor::end_in_cluster(const Warp& warp, std::uint32_t mask) {
  if (!peers_.empty() && ordering_ != nullptr) {
    if (cluster_barrier_.told.empty()) cluster_barrier_.told = clocks().empty();
    ordering_->clocks().release(warp.index, mask, cluster_barrier_.told);
    if (threads_alive_ == 0) check_uses_by_peers();
  }
  if (cluster_barrier_.used || !peers_.empty()) pass_cluster();
}

}  // namespace flash_ladder::emulator
