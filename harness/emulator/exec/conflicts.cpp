#include "emulator/exec/conflicts.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

std::string describe_ended(const EndedWait& wait) {
  if (!wait.of_mbarrier) {
    if (wait.newest_left == 0) return "for all of its own copies";
    return fmt::format("for its own copies, but not for those of its newest {}",
                       wait.newest_left == 1 ? "group" : fmt::format("{} groups", wait.newest_left));
  }
  const std::string text =
      fmt::format("for parity {} of the mbarrier at byte {} of shared memory", wait.parity, wait.address);
  if (wait.phases_ended == 0) return text + ", none of whose phases had ended: a wait for parity 1 then ends at once";
  return text + fmt::format(", whose phase {} had ended", wait.phases_ended - 1);
}

// A thread's own copy in flight at that place; null if there is none.
const PendingCopy* pending_copy(const Warp& warp, const Conflict& conflict) {
  const auto copy = std::find_if(warp.copies.rbegin(), warp.copies.rend(), [&](const PendingCopy& pending) {
    return pending.instruction == conflict.other_instruction && ((pending.mask >> conflict.other_lane) & 1) != 0 &&
           conflict.offset - pending.to[conflict.other_lane] < pending.bytes;
  });
  return copy == warp.copies.rend() ? nullptr : &*copy;
}

// The mbarrier of the CTA that is signalled at the end of a copy to its shared memory; null: none.
const Mbarrier* signalled_by_copy(CtaExecutor& cta, const Conflict& conflict) {
  if (cta.async() != nullptr) {
    if (const Mbarrier* barrier = cta.async()->copies.signalled_by_load(conflict.other_instruction, conflict.offset))
      return barrier;
  }
  const Warp& warp = cta.warps()[static_cast<std::size_t>(conflict.other_warp)];
  const PendingCopy* const copy = pending_copy(warp, conflict);
  if (copy == nullptr) return nullptr;
  for (const Mbarrier& barrier : cta.mbarriers())
    for (const Mbarrier::AsyncArrival& arrival : barrier.async)
      if (arrival.warp == warp.index && ((arrival.mask >> conflict.other_lane) & 1) != 0 &&
          copy->number < arrival.issued)
        return &barrier;
  return nullptr;
}

}  // namespace

// The last wait of a thread that ended before its access with this number; 0: its present access. `at`: its last wait
// at this mbarrier, if there was any.
void ConflictReporter::add_wait(Finding& finding, int warp, int lane, AccessNumber number, const Mbarrier* at) const {
  const std::deque<EndedWait>& waits = cta_.warps()[static_cast<std::size_t>(warp)].waits;
  const auto find = [&](auto also) {
    return std::find_if(waits.rbegin(), waits.rend(), [&](const EndedWait& wait) {
      return ((wait.lanes >> lane) & 1) != 0 && (number == 0 || wait.before <= number) && also(wait);
    });
  };
  auto last = waits.rend();
  if (at != nullptr)
    last = find([&](const EndedWait& wait) { return wait.of_mbarrier && wait.address == at->address; });
  if (last == waits.rend()) last = find([](const EndedWait&) { return true; });
  if (last == waits.rend()) return;
  finding.waits.push_back(
      {.what = describe_ended(*last), .position = cta_.position_of(last->instruction), .warp = warp, .lane = lane});
}

// Why a copy to this CTA's shared memory is still in flight when a warp of this CTA or of another one accesses the same
// memory.
std::string ConflictReporter::why_in_flight(const ConflictReporter& by, const SharedAccess& access,
                                            const Conflict& conflict, const Mbarrier* signalled) const {
  if (signalled != nullptr)
    return fmt::format(
        "it signals phase {} (parity {}) of the mbarrier at byte {}, which this thread has not waited "
        "for",
        signalled->phase, signalled->phase & 1, signalled->address);
  const Warp& warp = cta_.warps()[static_cast<std::size_t>(conflict.other_warp)];
  const int lane = conflict.other_lane;
  const PendingCopy* const copy = pending_copy(warp, conflict);
  if (copy == nullptr) return "nothing has waited for it";
  const auto wait = std::find_if(warp.waits.rbegin(), warp.waits.rend(), [&](const EndedWait& ended) {
    return !ended.of_mbarrier && ((ended.lanes >> lane) & 1) != 0 && copy->number < ended.copies_issued;
  });
  const bool own = &by == this && access.warp == warp.index && conflict.lane == lane;
  if (wait == warp.waits.rend()) {
    if (own) return "nothing has waited for it";
    return fmt::format(
        "it is a copy of another thread, warp {}, lane {}, which has not waited for it yet; a barrier must come "
        "between "
        "its wait and this access",
        warp.index, lane);
  }
  const std::string at = to_string(cta_.position_of(wait->instruction));
  if (copy->group[lane] == warp.groups[lane])
    return fmt::format("no cp.async.commit_group has put it into a group, so the wait at {} does not cover it", at);
  if (wait->newest_left == 1)
    return fmt::format("cp.async.wait_group 1 at {} leaves the newest group pending, and this copy is in it", at);
  return fmt::format(
      "cp.async.wait_group {} at {} leaves the {} newest groups pending, and this copy is in one of them",
      wait->newest_left, at, wait->newest_left);
}

// Whether a thread fills the same buffer again at the same line; otherwise two copies have the same destination.
bool ConflictReporter::is_filled_again(const SharedAccess& access, const Conflict& conflict) const {
  return conflict.kind == Conflict::Kind::overlapping_copies && conflict.other_warp == access.warp &&
         conflict.other_lane == conflict.lane &&
         cta_.place_of(access.instruction) == cta_.place_of(conflict.other_instruction);
}

ConflictReporter& ConflictReporter::reporter_of(const SharedAccess& access) const {
  return access.peer == nullptr ? cta_.conflicts() : cta_.cluster().peer(access.peer->owner)->conflicts();
}

// What the finding says, and what it calls the other access. `signalled`: the mbarrier that a copy in flight will signal.
ConflictReporter::Words ConflictReporter::words_for(const SharedAccess& access, const Conflict& conflict,
                                                    const Mbarrier* signalled) const {
  const Instruction& instruction = cta_.code()[static_cast<std::size_t>(access.instruction)];
  const std::string memory = access.peer == nullptr
                                 ? "shared memory"
                                 : fmt::format("the shared memory of CTA {} of the cluster", access.peer->owner);
  const bool again = is_filled_again(access, conflict);
  // What may be in flight when the access is made.
  const auto other_class = conflict.other_instruction < 0
                               ? InstructionClass::other
                               : cta_.code()[static_cast<std::size_t>(conflict.other_instruction)].instruction_class;
  const bool by_tma = other_class == InstructionClass::tma;
  const bool by_warp = other_class == InstructionClass::cp_async || other_class == InstructionClass::other;
  const char* const copy = by_tma                                          ? "load by TMA"
                           : by_warp                                       ? "cp.async"
                           : other_class == InstructionClass::shared_store ? "store by st.async"
                                                                           : "reduction by red.async";
  const std::string issued = by_tma ? "TMA load issued" : fmt::format("{} issued", copy);
  switch (conflict.kind) {
    case Conflict::Kind::uninitialised:
      return {fmt::format("a read of byte {} of {}, to which nothing has been written", conflict.offset, memory), ""};
    case Conflict::Kind::pending_copy:
    case Conflict::Kind::write_to_pending_copy:
      return {fmt::format("a {} byte {} of {}, to which a {} is in flight: {}",
                          conflict.kind == Conflict::Kind::pending_copy ? "read of" : "write to", conflict.offset,
                          memory, copy, reporter_of(access).why_in_flight(*this, access, conflict, signalled)),
              issued};
    case Conflict::Kind::overlapping_copies:
      return {again ? fmt::format(
                          "a copy to byte {} of {}, where the last copy by this line is still in flight: the buffer is "
                          "filled again before anything has waited for it",
                          conflict.offset, memory)
                    : fmt::format(
                          "two copies write the same byte, byte {} of {}: the {} issued before this one is still in "
                          "flight",
                          conflict.offset, memory, copy),
              issued};
    case Conflict::Kind::written_during_read:
      return {
          fmt::format("byte {} of shared memory was written while this {} that reads it was in flight", conflict.offset,
                      instruction.wgmma >= 0                      ? "wgmma"
                      : instruction.role == MemoryRole::tma_store ? "store by TMA"
                                                                  : "copy by TMA"),
          by_tma ? "TMA load issued" : "written"};
    case Conflict::Kind::read_after_write:
      return {fmt::format("a read of byte {} of {}, and nothing orders it after the write", conflict.offset, memory),
              "written"};
    case Conflict::Kind::write_after_read:
      return {fmt::format("a write to byte {} of {}, and nothing orders it after a read", conflict.offset, memory),
              "read"};
    case Conflict::Kind::write_after_write:
      return {conflict.at_once
                  ? fmt::format("two lanes write different values to byte {} of {}", conflict.offset, memory)
                  : fmt::format("a write to byte {} of {}, and nothing orders it after the write before it",
                                conflict.offset, memory),
              "written"};
  }
  return {};
}

void ConflictReporter::report(const SharedAccess& access, const Conflict& conflict) {
  // Only CUDA's own headers use the memory that the system reserves. They do not initialise all of it, and assume that
  // shfl.sync and vote.sync order the memory accesses of a warp's lanes, which the PTX ISA does not guarantee.
  if (conflict.offset < cta_.context().kernel.reserved_shared_bytes) return;
  const Warp& warp = cta_.warps()[static_cast<std::size_t>(access.warp)];
  const Instruction& instruction = cta_.code()[static_cast<std::size_t>(access.instruction)];
  const FindingKind kind = conflict.kind == Conflict::Kind::uninitialised ? FindingKind::uninitialised_read
                           : conflict.kind == Conflict::Kind::overlapping_copies && !is_filled_again(access, conflict)
                               ? FindingKind::overlapping_copies
                               : FindingKind::race;
  if (!cta_.findings().is_new(kind, cta_.place_of(access.instruction), cta_.place_of(conflict.other_instruction)))
    return;
  CtaExecutor& owner = access.peer == nullptr ? cta_ : *cta_.cluster().peer(access.peer->owner);
  const std::size_t rank = cta_.cluster().rank();
  const bool in_flight =
      conflict.kind == Conflict::Kind::pending_copy || conflict.kind == Conflict::Kind::write_to_pending_copy;
  const Mbarrier* const signalled = in_flight ? signalled_by_copy(owner, conflict) : nullptr;
  const Words words = words_for(access, conflict, signalled);
  RawFinding raw = cta_.describe(kind, &warp, &instruction, conflict.lane, conflict.offset, words.message);
  raw.other_place = cta_.place_of(conflict.other_instruction);
  if (conflict.other_instruction >= 0) {
    raw.finding.other = {.what = words.other,
                         .position = cta_.position_of(conflict.other_instruction),
                         .warp = conflict.other_warp,
                         .lane = conflict.other_lane};
    const std::size_t other_rank = conflict.other_rank.value_or(owner.cluster().rank());
    if (other_rank != rank) raw.finding.other->cta = cta_.cluster().peer(other_rank)->cta();
  }
  add_wait(raw.finding, access.warp, instruction.wgmma >= 0 ? 0 : conflict.lane, 0, signalled);
  if (conflict.other_number != 0 && conflict.other_rank.value_or(rank) == rank && access.peer == nullptr)
    add_wait(raw.finding, conflict.other_warp, conflict.other_lane, conflict.other_number, nullptr);
  cta_.findings().add(std::move(raw));
}

// The same for global memory.
void ConflictReporter::report(const GlobalAccess& access, const GlobalConflict& conflict) {
  const bool of_another_block = conflict.other_cta != cta_.index();
  if (!cta_.findings().is_new(FindingKind::race, cta_.place_of(access.instruction),
                              cta_.place_of(conflict.other_instruction)))
    return;
  const LaunchContext& context = cta_.context();
  RawFinding raw = emulator::describe(
      context, FindingKind::race, cta_.cta(), access.warp, access.instruction, conflict.lane, conflict.address,
      conflict.at_once ? fmt::format("two lanes write different values to global memory at {:#x}: {}", conflict.address,
                                     cta_.context().memory.describe(conflict.address))
                       : message_of(context, conflict.kind, conflict.address, of_another_block));
  raw.other_place = cta_.place_of(conflict.other_instruction);
  raw.finding.other = {.what = conflict.kind == GlobalConflict::Kind::write_after_read ? "read" : "written",
                       .position = cta_.position_of(conflict.other_instruction),
                       .warp = conflict.other_warp,
                       .lane = conflict.other_lane};
  if (of_another_block) raw.finding.other->cta = cta_at(context, conflict.other_cta);
  cta_.findings().add(std::move(raw));
}

void ConflictReporter::renumber(const Renumbering& renumbering) { cta_.renumber(renumbering); }

}  // namespace flash_ladder::emulator
