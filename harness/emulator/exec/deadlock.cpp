#include "emulator/exec/deadlock.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "emulator/exec/cta_executor.h"
#include "emulator/exec/loops.h"

namespace flash_ladder::emulator {

namespace {

std::vector<int> numbers_of(std::uint32_t warps) {
  std::vector<int> numbers;
  for (; warps != 0; warps &= warps - 1) numbers.push_back(std::countr_zero(warps));
  return numbers;
}

// What a warp waits for, as the end of "warp 1 …" or "warps 1 and 2 …"; `at` is the instruction that waits.
std::string describe_wait(CtaExecutor& cta, const Warp& warp, std::int32_t& at) {
  at = std::max(warp.pc - 1, 0);
  if (warp.cluster.waiting != 0) {
    at = warp.cluster.instruction;
    return "at the barrier of the cluster, at which not all of its threads have arrived";
  }
  if (warp.status == WarpStatus::waiting) {
    for (std::size_t id = 0; id < cta.barriers().size(); ++id) {
      const Barrier& barrier = cta.barriers()[id];
      if (!((barrier.waiting >> warp.index) & 1)) continue;
      return fmt::format("at barrier {}, at which {} of {} threads have arrived", id, barrier.arrived,
                         barrier.expected == 0 ? cta.threads_alive() : barrier.expected);
    }
  }
  if (cta.async() != nullptr) {
    if (std::string wait = cta.async()->describe_wait(warp, at); !wait.empty()) return wait;
  }
  for (const Mbarrier& barrier : cta.mbarriers()) {
    if (warp.failed_wait.instruction < 0 || barrier.address != warp.failed_wait.address) continue;
    at = warp.failed_wait.instruction;
    // Lanes that did not wait may have ended since, so that those still alive do not say whether some are missing.
    const std::uint32_t rest = cta.num_threads() - static_cast<std::uint32_t>(warp.index) * kWarpSize;
    const std::uint32_t all = rest >= kWarpSize ? kAllLanes : (1u << rest) - 1;
    const std::string lanes =
        warp.failed_wait.lanes == all ? "" : fmt::format(", with lanes {:#010x},", warp.failed_wait.lanes);
    const std::uint32_t late = barrier.warps_before & ~barrier.warps;
    return fmt::format(
        "for phase {} (parity {}) of the mbarrier at byte {} of shared memory{} which expects {} arrivals and has "
        "received {}{}{}{}",
        barrier.phase, barrier.phase & 1, barrier.address, lanes.empty() ? "," : lanes, barrier.expected,
        barrier.expected - barrier.pending,
        barrier.warps == 0 ? "" : ", from " + list_of_warps(numbers_of(barrier.warps)),
        late == 0
            ? ""
            : fmt::format(" ({} arrived in the previous phase, but not in this one)", list_of_warps(numbers_of(late))),
        cta.async() == nullptr ? std::string() : cta.async()->copies.describe_transactions(barrier));
  }
  return "for something that no other warp does";
}

// The contents of a ring's stage were overwritten before they were read: then a warp waits for a phase that has already
// passed.
void report_lost(CtaExecutor& cta) {
  if (cta.shadow() == nullptr || !cta.shadow()->lost()) return;
  const auto [access, lane, offset, other_warp] = *cta.shadow()->lost();
  const Instruction& instruction = cta.code()[static_cast<std::size_t>(access.instruction)];
  cta.find(
      FindingKind::overwritten, &cta.warps()[static_cast<std::size_t>(access.warp)], &instruction, lane, offset,
      fmt::format("byte {} of shared memory, which warp {} wrote here, is overwritten before any thread has read it: "
                  "the thread that fills a stage must first wait until it is empty",
                  offset, other_warp));
}

struct AwaitedPlace {
  std::string text;      // " at byte 4 of `lock` of 4 bytes at 0x…"; empty if it is not known
  bool of_host = false;  // the host can write there, too
};

// The address that the first lane reads.
AwaitedPlace place_of_wait(CtaExecutor& cta, const Warp& warp, const Instruction& look) {
  const int lane = std::countr_zero(warp.active);
  LaneAddresses at;
  cta.memory().addresses(warp, look, look.r[look.writes], at);
  Address address = at.at[static_cast<std::size_t>(lane)];
  const bool generic = look.space == ptx::Space::generic;
  const bool in_shared = generic && address - kSharedWindow < kWindowSize;
  if (look.space == ptx::Space::shared || in_shared) {
    const std::uint64_t offset = address - (in_shared ? kSharedWindow : 0) - kSharedBase;
    return {.text = offset < cta.memory().shared_bytes() ? fmt::format(" at byte {} of shared memory", offset) : ""};
  }
  if (!generic && look.space != ptx::Space::global) return {};
  return {.text = fmt::format(" at {}", cta.context().memory.describe(address)),
          .of_host = cta.context().memory.is_of_host(address)};
}

struct Group {  // warps that wait for the same thing
  std::string wait;
  std::int32_t at;
  std::vector<int> warps;
};
// The warps that have not ended, by what they wait for.
std::vector<Group> waiting_groups(CtaExecutor& cta) {
  std::vector<Group> groups;
  for (const Warp& warp : cta.warps()) {
    if (warp.status == WarpStatus::ended) continue;
    std::int32_t at = 0;
    const std::string wait = describe_wait(cta, warp, at);
    const auto same = [&](const Group& group) {
      return group.wait == wait && cta.place_of(group.at) == cta.place_of(at);
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(group, {wait, at, {}});
    group->warps.push_back(warp.index);
  }
  // A warp that waits for registers, or for others of its warpgroup, waits for something that cannot happen; the other
  // warps may be waiting for it.
  std::stable_partition(groups.begin(), groups.end(), [&](const Group& group) {
    std::int32_t at = 0;
    const Warp& warp = cta.warps()[static_cast<std::size_t>(group.warps.front())];
    return cta.async() != nullptr && !cta.async()->describe_wait(warp, at).empty();
  });
  return groups;
}

std::string words_for(CtaExecutor& cta, const std::vector<Group>& groups) {
  std::string text;
  for (const Group& group : groups) {
    const SourcePosition position = cta.position_of(group.at);
    text += fmt::format("{}{} wait{} {}", text.empty() ? "" : "; ", list_of_warps(group.warps),
                        group.warps.size() == 1 ? "s" : "", group.wait);
    if (&group != &groups.front() && !position.empty()) text += ", at " + to_string(position);
  }
  std::vector<int> ended;
  for (const Warp& warp : cta.warps())
    if (warp.status == WarpStatus::ended) ended.push_back(warp.index);
  if (!ended.empty()) text += fmt::format("; {} {} ended", list_of_warps(ended), ended.size() == 1 ? "has" : "have");
  return text;
}

// Where the warps arrived whose arrival these wait for, if it was at another mbarrier.
std::optional<OtherAccess> arrival_elsewhere(CtaExecutor& cta, const Group& group) {
  // An arrival at an mbarrier at which no warp waits may have been meant for another mbarrier.
  const auto is_waited_for = [&](std::uint32_t address) {
    return std::ranges::any_of(cta.warps(), [&](const Warp& warp) {
      return warp.failed_wait.instruction >= 0 && warp.failed_wait.address == address;
    });
  };
  // Choose the arrival of a warp that others wait for, if there is one.
  const std::vector<int>& waiting = group.warps;
  const Warp& first = cta.warps()[static_cast<std::size_t>(waiting.front())];
  const auto awaited = std::ranges::find(cta.mbarriers(), first.failed_wait.address, &Mbarrier::address);
  const bool none_came =
      first.failed_wait.instruction >= 0 && awaited != cta.mbarriers().end() && awaited->pending == awaited->expected;
  const auto elsewhere = std::ranges::find_if(cta.warps(), [&](const Warp& warp) {
    const bool waits = std::ranges::find(waiting, warp.index) != waiting.end() && waiting.size() < cta.warps().size();
    return none_came && !waits && warp.last_arrival.instruction >= 0 && !is_waited_for(warp.last_arrival.address);
  });
  if (elsewhere == cta.warps().end()) return std::nullopt;
  const auto& [instruction, address] = elsewhere->last_arrival;
  return OtherAccess{.what = fmt::format("the last arrival was at the mbarrier at byte {},", address),
                     .position = cta.position_of(instruction),
                     .warp = elsewhere->index,
                     .lane = 0};
}

}  // namespace

void report_deadlock(CtaExecutor& cta) {
  const std::vector<Group> groups = waiting_groups(cta);
  const Warp& first = cta.warps()[static_cast<std::size_t>(groups.front().warps.front())];
  report_lost(cta);
  const std::int32_t at = groups.front().at;
  if (!cta.findings().is_new(FindingKind::deadlock, cta.place_of(at), -1)) return;
  RawFinding raw = cta.describe(FindingKind::deadlock, &first, &cta.code()[static_cast<std::size_t>(at)], -1,
                                std::nullopt, "the block cannot continue: " + words_for(cta, groups));
  raw.finding.other = arrival_elsewhere(cta, groups.front());
  cta.findings().add(std::move(raw));
}

void report_stuck(CtaExecutor& cta, std::uint64_t others, std::uint64_t unstarted) {
  const auto first = std::find_if(cta.warps().begin(), cta.warps().end(), [](const Warp& warp) {
    return warp.status == WarpStatus::yielded && !warp.tested_mbarrier();
  });
  if (first == cta.warps().end()) return report_deadlock(cta);
  const Instruction* const look = looked_at(cta, *first);
  std::string text = fmt::format("lanes {:#010x} repeat this loop for ever: ", first->active);
  const AwaitedPlace place = look != nullptr ? place_of_wait(cta, *first, *look) : AwaitedPlace();
  if (look == nullptr) {
    text += "nothing that could end it changes any more";
  } else if (look->instruction_class == InstructionClass::atomic) {
    text += fmt::format(
        "`{}` never finds the value that it waits for{}. If this is to acquire a lock, no thread "
        "releases it",
        cta.context().kernel.sources[look->source].text, place.text);
  } else {
    text += fmt::format("`{}` never reads the value that it waits for{}, and no thread will write it",
                        cta.context().kernel.sources[look->source].text, place.text);
  }
  if (others != 0) text += fmt::format("; {} other block{} cannot continue either", others, others == 1 ? "" : "s");
  if (unstarted != 0) {
    text += fmt::format(
        "; {} block{} not been started, because no more fit on the GPU at a time: a block must not wait for a later "
        "one",
        unstarted, unstarted == 1 ? " has" : "s have");
  }
  if (place.of_host)
    text +=
        ". If the host is meant to write there: while a kernel runs on the virtual GPU, the host waits, which it "
        "would not do for a GPU";
  const Instruction& at = look != nullptr ? *look : cta.code()[static_cast<std::size_t>(first->pc)];
  cta.find(FindingKind::endless_loop, &*first, &at, std::countr_zero(first->active), std::nullopt, text);
}

}  // namespace flash_ladder::emulator
