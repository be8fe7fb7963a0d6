// mbarrier. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/phase_order.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;
using Kind = Operand::Kind;

enum class Operation {
  init,
  inval,
  arrive,
  arrive_drop,
  expect_tx,
  complete_tx,
  test_wait,
  test_wait_parity,
  pending_count
};

// The state that mbarrier.arrive returns: the phase, and the number of pending arrivals. Opaque to programs.
std::uint64_t state_of(std::uint32_t phase, std::uint32_t pending) { return (std::uint64_t{phase} << 32) | pending; }

constexpr std::uint32_t kMaxArrivals = (1u << 20) - 1;

// For the race detector, an mbarrier is written when it is initialised or invalidated, and read by all other operations.
// Whether these come before the invalidation is not checked: an operation that comes after it gets a finding of its own,
// and cuda::pipeline relies on match.sync, which does not order memory, for the order of a warp's lanes.
void note_mbarrier_access(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t lanes,
                          const std::uint32_t* offsets, bool writes, bool initialises = false) {
  if (cta.shadow() == nullptr || lanes == 0) return;
  const SharedAccess access{warp.index, cta.index_of(instruction), initialises ? kWeak : kStrong, lanes, 8, offsets};
  if (writes) {
    cta.shadow()->write(access, 0);
  } else {
    cta.shadow()->read(access);
  }
}

Mbarrier* find_mbarrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane, std::uint32_t address) {
  for (Mbarrier& barrier : cta.mbarriers()) {
    if (barrier.address == address) return &barrier;
  }
  cta.find(
      FindingKind::invalid_operation, &warp, &instruction, lane, address,
      fmt::format("byte {} of shared memory holds no mbarrier: it was not initialised, or was invalidated", address));
  return nullptr;
}

// The phase ends when all threads have arrived, and all bytes that TMA was to bring.
void end_if_complete(CtaExecutor& cta, Mbarrier& barrier) {
  if (barrier.pending == 0 && barrier.transactions == 0) {
    check_end_of_phase(cta, barrier);
    ++barrier.phase;
    barrier.warps_before = std::exchange(barrier.warps, 0);
    barrier.traced_completed = std::exchange(barrier.traced_arriving, 0);
    barrier.traced_completed_by = std::exchange(barrier.traced_by, -1);
    if (cta.shadow() != nullptr) {
      join(barrier.completed, barrier.arriving);
      barrier.arriving = cta.shadow()->clocks().empty();
    }
    barrier.expected = barrier.pending = barrier.count;
    if (cta.async() != nullptr) cta.async()->copies.end_phase(barrier);
  }
}

void arrive(CtaExecutor& cta, Mbarrier& barrier, std::uint32_t count) {
  cta.note_progress();
  barrier.pending -= count;
  end_if_complete(cta, barrier);
}

void complete_async_arrivals(CtaExecutor& cta, Mbarrier& barrier) {
  for (const Mbarrier::AsyncArrival& arrival : std::exchange(barrier.async, {})) {
    Warp& warp = cta.warps()[static_cast<std::size_t>(arrival.warp)];
    for (std::uint32_t rest = arrival.mask; rest != 0 && barrier.pending > 0;) {
      // Lanes in excess of those that complete the phase belong to the next one, and a thread that waits for this phase
      // does not wait for their copies.
      std::uint32_t lanes = rest;
      while (static_cast<std::uint32_t>(std::popcount(lanes)) > barrier.pending) lanes &= ~std::bit_floor(lanes);
      rest &= ~lanes;
      for (PendingCopy& copy : warp.copies) {
        if (copy.number < arrival.issued && (copy.mask & lanes) != 0)
          complete(cta, warp, copy, copy.mask & lanes, true);
      }
      if (cta.shadow() != nullptr) cta.shadow()->clocks().publish_async(arrival.warp, barrier.arriving);
      barrier.trace_arrival(arrival.traced, arrival.warp);
      barrier.warps |= 1u << arrival.warp;
      arrive(cta, barrier, static_cast<std::uint32_t>(std::popcount(lanes)));
    }
    std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
  }
}

// Arrivals at mbarriers of other CTAs of the cluster. Stores addresses in this CTA's own shared memory in `at`, and
// returns the lanes that have those.
std::uint32_t arrive_at_peers(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask,
                              LaneAddresses& at) {
  std::uint32_t own = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::uint64_t& address = at.at[static_cast<std::size_t>(lane)];
    const std::optional<std::uint64_t> rank = rank_of(address);
    if (!rank || address >= kSharedWindow) continue;
    address = without_rank(address);
    if (*rank == cta.cluster().rank()) continue;
    own &= ~(1u << lane);
    CtaExecutor* peer = cta.cluster().peer(*rank);
    const auto offset = static_cast<std::uint32_t>(address) - kSharedBase;
    if (peer == nullptr || peer->has_ended()) {
      cta.find(FindingKind::in_flight, &warp, &instruction, lane, offset,
               fmt::format("an arrival at an mbarrier of CTA {} of the cluster, which has ended", *rank));
      continue;
    }
    const auto found = std::find_if(peer->mbarriers().begin(), peer->mbarriers().end(),
                                    [&](const Mbarrier& known) { return known.address == offset; });
    if (found == peer->mbarriers().end()) {
      cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, offset,
               fmt::format("byte {} of the shared memory of CTA {} of the cluster holds no mbarrier", offset, *rank));
      continue;
    }
    const std::uint32_t count =
        reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes + 1u])[lane];
    if (count == 0 || count > found->pending) {
      cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, offset,
               fmt::format("{} arrivals at an mbarrier of CTA {} of the cluster that expects {} more in this phase",
                           count, *rank, found->pending));
      continue;
    }
    if (instruction.has_count && peer->async() != nullptr) {
      const auto* bytes =
          reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes + 2u]);
      peer->async()->copies.expect(warp, instruction, lane, *found, bytes[lane]);
    }
    if (!cta.cluster().is_there(*peer, warp, instruction, lane)) continue;
    std::uint32_t offsets[kWarpSize];
    std::fill_n(offsets, kWarpSize, offset);
    cta.cluster().read_peer(warp, instruction, *peer, kStrong, 1u << lane, 8,
                            offsets);  // it had already been initialised
    cta.cluster().release_to_peer(warp, *peer, 1u << lane, found->arriving);
    found->peers_arrived = true;
    arrive(*peer, *found, count);
  }
  return own;
}

void pending_count(CtaExecutor&, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const auto* states = reinterpret_cast<const std::uint64_t*>(warp.registers + instruction.r[1]);
  auto* counts = reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane) & 1) counts[lane] = static_cast<std::uint32_t>(states[lane]);
  }
}

void init(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane, std::uint32_t address,
          std::uint32_t count) {
  if (count == 0 || count > kMaxArrivals) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, address,
             fmt::format("an mbarrier for {} arrivals; it can be 1 to {}", count, kMaxArrivals));
    return;
  }
  std::erase_if(cta.mbarriers(), [&](const Mbarrier& barrier) { return barrier.address == address; });
  Mbarrier& barrier = cta.mbarriers().emplace_back();
  barrier.address = address;
  barrier.count = barrier.expected = barrier.pending = count;
  if (cta.shadow() != nullptr) barrier.arriving = barrier.completed = cta.shadow()->clocks().empty();
  if (cta.async() != nullptr) cta.async()->proxy.note_initialised(barrier, warp.index, lane, cta.index_of(instruction));
  if (cta.trace() != nullptr) cta.trace()->note_mbarrier(address, count, cta.index_of(instruction));
  cta.note_progress();
}

// One lane's arrival at an mbarrier of its own CTA.
void arrive_here(CtaExecutor& cta, Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier,
                 std::uint32_t count, bool drops) {
  reinterpret_cast<std::uint64_t*>(warp.registers + instruction.r[0])[lane] = state_of(barrier.phase, barrier.pending);
  if (count == 0 || count > barrier.pending || (instruction.count != 0 && count == barrier.pending)) {
    cta.find(FindingKind::invalid_operation, &warp, &instruction, lane, barrier.address,
             fmt::format("{} arrivals{} at an mbarrier that expects {} more in this phase", count,
                         instruction.count != 0 ? " that must not complete the phase" : "", barrier.pending));
    return;
  }
  if (instruction.has_count) {  // .expect_tx
    const auto* bytes = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[instruction.writes + 2u]);
    cta.async()->copies.expect(warp, instruction, lane, barrier, bytes[lane]);
  }
  if (drops) barrier.count -= count;
  barrier.warps |= 1u << warp.index;
  warp.last_arrival = {cta.index_of(instruction), barrier.address};
  note_arrival(cta, warp, instruction, lane, barrier);
  if (cta.shadow() != nullptr) cta.shadow()->clocks().release(warp.index, 1u << lane, barrier.arriving);
  if (TraceRecorder* trace = cta.trace()) {
    barrier.trace_arrival(trace->clock(warp.index), warp.index);
    trace->note({.warp = warp.index, .barrier = TraceBarrier{true, barrier.address, barrier.phase}},
                cta.index_of(instruction));
  }
  arrive(cta, barrier, count);
}

// What a warp's tests of mbarriers have found.
struct Tests {
  bool of_parity = false;
  std::uint32_t passed = 0;
  const Mbarrier* ended = nullptr;                  // the tested barrier whose phase ended last: for a trace
  std::map<std::uint32_t, std::uint32_t> acquired;  // mbarrier → lanes that have seen its phase complete
};

template <bool kParity>
void test(CtaExecutor& cta, int lane, Mbarrier& barrier, const std::byte* operand, Tests& tests) {
  complete_async_arrivals(cta, barrier);
  const auto has_ended = [&] {
    if (!kParity) {
      const std::uint64_t state = reinterpret_cast<const std::uint64_t*>(operand)[lane];
      return static_cast<std::uint32_t>(state >> 32) != barrier.phase;
    }
    const std::uint32_t parity = reinterpret_cast<const std::uint32_t*>(operand)[lane];
    return (barrier.phase & 1) != (parity & 1);
  };
  bool done = has_ended();
  // A test of the current phase is the first to notice that it has ended.
  if (!done && cta.async() != nullptr && barrier.pending == 0) {
    cta.async()->copies.deliver(barrier);
    end_if_complete(cta, barrier);
    done = has_ended();
  }
  if (done) {
    tests.passed |= 1u << lane;
    if (tests.ended == nullptr || barrier.traced_completed > tests.ended->traced_completed) tests.ended = &barrier;
    if (cta.shadow() != nullptr) tests.acquired[barrier.address] |= 1u << lane;
  }
}

// After a test that failed, the warp yields so that others can run.
void finish_tests(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask, std::uint32_t good,
                  const std::uint32_t* offsets, const Tests& tests) {
  auto& bits = *reinterpret_cast<std::uint32_t*>(warp.registers + instruction.r[0]);
  bits = (bits & ~mask) | tests.passed;
  const std::uint32_t failed = good & ~tests.passed;
  warp.failed_wait = {};
  if (TraceRecorder* trace = cta.trace()) {
    if (failed != 0)
      trace->ask_again(warp.index);
    else if (tests.ended != nullptr)
      trace->go_on(warp.index, tests.ended->traced_completed,
                   {true, tests.ended->address, std::int64_t{tests.ended->phase} - 1},
                   tests.ended->traced_completed_by);
  }
  if (failed != 0) warp.failed_wait = {cta.index_of(instruction), offsets[std::countr_zero(failed)], failed};
  for (const auto& [address, lanes] : tests.acquired) {
    Mbarrier* barrier = find_mbarrier(cta, warp, instruction, std::countr_zero(lanes), address);
    if (tests.of_parity) check_wait(cta, warp, instruction, lanes, *barrier);
    cta.shadow()->clocks().acquire(warp.index, lanes, warp.alive, barrier->completed);
    warp.note_wait({.instruction = cta.index_of(instruction),
                    .lanes = lanes,
                    .before = cta.shadow()->clocks().next(),
                    .of_mbarrier = true,
                    .address = address,
                    .parity = (barrier->phase & 1) ^ 1,
                    .phases_ended = barrier->phase});
  }
  if (failed != 0) warp.status = WarpStatus::yielded;
}

template <Operation operation>
void mbarrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  constexpr bool kTests = operation == Operation::test_wait || operation == Operation::test_wait_parity;
  LaneAddresses at;
  cta.memory().addresses(warp, instruction, instruction.r[instruction.writes], at);
  if (operation == Operation::arrive || operation == Operation::arrive_drop) {
    const std::uint32_t own = arrive_at_peers(cta, warp, instruction, mask, at);
    if (own == 0) return;
    mask = own;
  }
  std::uint32_t offsets[kWarpSize];
  const std::uint32_t good = cta.memory().check_shared(warp, instruction, at, mask, 8, offsets);
  const std::byte* operand =
      instruction.operands > instruction.writes + 1 ? warp.registers + instruction.r[instruction.writes + 1u] : nullptr;
  note_mbarrier_access(cta, warp, instruction, good, offsets,
                       operation == Operation::init || operation == Operation::inval, operation == Operation::init);
  const auto operand_of = [&](int lane) { return reinterpret_cast<const std::uint32_t*>(operand)[lane]; };
  Tests tests;
  tests.of_parity = operation == Operation::test_wait_parity;
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t address = offsets[lane];
    if (operation == Operation::init) {
      init(cta, warp, instruction, lane, address, operand_of(lane));
      continue;
    }
    Mbarrier* barrier = find_mbarrier(cta, warp, instruction, lane, address);
    if (barrier == nullptr) {
      tests.passed |= 1u << lane;  // do not spin for ever on something that cannot happen
      continue;
    }
    switch (operation) {
      case Operation::inval:
        std::erase_if(cta.mbarriers(), [&](const Mbarrier& known) { return known.address == address; });
        break;
      case Operation::arrive:
      case Operation::arrive_drop:
        arrive_here(cta, warp, instruction, lane, *barrier, operand_of(lane), operation == Operation::arrive_drop);
        break;
      case Operation::expect_tx:
        cta.async()->copies.expect(warp, instruction, lane, *barrier, operand_of(lane));
        break;
      case Operation::complete_tx:
        barrier->transactions -= operand_of(lane);
        end_if_complete(cta, *barrier);
        cta.note_progress();
        break;
      case Operation::test_wait:
      case Operation::test_wait_parity:
        test<operation == Operation::test_wait_parity>(cta, lane, *barrier, operand, tests);
        break;
      default:
        break;
    }
  }
  if (kTests) finish_tests(cta, warp, instruction, mask, good, offsets, tests);
}

struct MbarrierForm {
  Operation operation{};
  bool no_complete = false;  // .noComplete
  bool tries = false;        // try_wait, which may name a time
  bool expects = false;      // .expect_tx
};

MbarrierForm form_of(KernelDecoder& d) {
  MbarrierForm form;
  std::optional<Operation> operation;
  bool parity = false;
  for (std::size_t i = 1; i + 1 < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (part == "init") {
      operation = Operation::init;
    } else if (part == "inval") {
      operation = Operation::inval;
    } else if (part == "arrive") {
      operation = Operation::arrive;
    } else if (part == "arrive_drop") {
      operation = Operation::arrive_drop;
    } else if (part == "test_wait" || part == "try_wait") {
      operation = Operation::test_wait;
      form.tries = part == "try_wait";
    } else if (part == "expect_tx") {
      form.expects = true;
    } else if (part == "complete_tx") {
      operation = Operation::complete_tx;
    } else if (part == "pending_count") {
      operation = Operation::pending_count;
    } else if (part == "noComplete") {
      form.no_complete = true;
    } else if (part == "parity") {
      parity = true;
    } else if (part != "shared" && part != "shared::cta" && part != "shared::cluster" && part != "release" &&
               part != "acquire" && part != "relaxed" && part != "cta" && part != "cluster") {
      d.fail_unknown();
    }
  }
  if (!operation && form.expects) operation = Operation::expect_tx;
  if (form.expects && operation != Operation::arrive && operation != Operation::arrive_drop &&
      operation != Operation::expect_tx) {
    d.fail_unknown();
  }
  if (!operation || d.parts().back() != "b64") d.fail_unknown();
  if (parity) {
    if (operation != Operation::test_wait) d.fail_unknown();
    operation = Operation::test_wait_parity;
  }
  form.operation = *operation;
  return form;
}

struct MbarrierOperands {
  std::vector<int> writes, reads;
  std::int64_t offset = 0;
  bool wide = true;
};

MbarrierOperands operands_of(KernelDecoder& d, const MbarrierForm& form) {
  MbarrierOperands operands;
  auto& [writes, reads, offset, wide] = operands;
  const auto address = [&](std::size_t i) { return d.address_operand(d.operand(i), Space::shared, offset, wide); };
  switch (form.operation) {
    case Operation::init:
      d.expect_operands(2);
      reads = {address(0), d.read(d.operand(1), Slot::b32)};
      break;
    case Operation::inval:
      d.expect_operands(1);
      reads = {address(0)};
      break;
    case Operation::arrive:
    case Operation::arrive_drop:
      // A remote arrival has no state to return: its first operand is _, or missing.
      d.expect_operands(form.no_complete || form.expects ? 3 : 2, 3);
      if (form.expects) {
        reads = {address(1), d.constant(Slot::b32, 1), d.read(d.operand(2), Slot::b32)};
      } else {
        reads = {address(1), d.num_operands() == 3 ? d.read(d.operand(2), Slot::b32) : d.constant(Slot::b32, 1)};
      }
      writes = {d.write(d.operand(0), Slot::b64)};
      break;
    case Operation::expect_tx:
    case Operation::complete_tx:
      d.expect_operands(2);
      reads = {address(0), d.read(d.operand(1), Slot::b32)};
      break;
    case Operation::test_wait:
      d.expect_operands(3, form.tries ? 4 : 3);  // optionally with a time
      reads = {address(1), d.read(d.operand(2), Slot::b64)};
      writes = {d.write(d.operand(0), Slot::predicate)};
      break;
    case Operation::test_wait_parity:
      d.expect_operands(3, form.tries ? 4 : 3);
      reads = {address(1), d.read(d.operand(2), Slot::b32)};
      writes = {d.write(d.operand(0), Slot::predicate)};
      break;
    case Operation::pending_count:
      d.expect_operands(2);
      reads = {d.read(d.operand(1), Slot::b64)};
      writes = {d.write(d.operand(0), Slot::b32)};
      break;
  }
  return operands;
}

void decode_mbarrier(KernelDecoder& d) {
  const MbarrierForm form = form_of(d);
  const auto [writes, reads, offset, wide] = operands_of(d, form);
  constexpr Execute kExecute[] = {mbarrier<Operation::init>,
                                  mbarrier<Operation::inval>,
                                  mbarrier<Operation::arrive>,
                                  mbarrier<Operation::arrive_drop>,
                                  mbarrier<Operation::expect_tx>,
                                  mbarrier<Operation::complete_tx>,
                                  mbarrier<Operation::test_wait>,
                                  mbarrier<Operation::test_wait_parity>,
                                  pending_count};
  Instruction& out =
      d.emit(kExecute[static_cast<std::size_t>(form.operation)], InstructionClass::barrier, writes, reads);
  out.offset = offset;
  out.wide_address = wide;
  out.bytes = 8;
  out.space = Space::shared;
  out.count = form.no_complete;
  out.has_count = form.expects && form.operation != Operation::expect_tx;
  d.kernel().uses_mbarriers = true;
  if (form.expects || form.operation == Operation::complete_tx) d.kernel().uses_async_proxy = true;
}

// cp.async.mbarrier.arrive: the lanes arrive when all copies that they have issued so far are complete. That is as late
// as possible: when a thread tests the phase.
template <bool kCounts>
void arrive_when_copied(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  LaneAddresses at;
  cta.memory().addresses(warp, instruction, instruction.r[0], at);
  std::uint32_t offsets[kWarpSize];
  const std::uint32_t good = cta.memory().check_shared(warp, instruction, at, mask, 8, offsets);
  note_mbarrier_access(cta, warp, instruction, good, offsets, false);
  for (std::uint32_t rest = good; rest != 0;) {
    const int lane = std::countr_zero(rest);
    std::uint32_t same = 0;  // the lanes that name the same mbarrier
    for (int other = lane; other < kWarpSize; ++other) {
      if (((rest >> other) & 1) && offsets[other] == offsets[lane]) same |= 1u << other;
    }
    rest &= ~same;
    Mbarrier* barrier = find_mbarrier(cta, warp, instruction, lane, offsets[lane]);
    if (barrier == nullptr) continue;
    barrier->copies_arrive = true;
    // Without .noinc the arrival is in addition to those that the phase expects.
    if (!kCounts) {
      barrier->expected += static_cast<std::uint32_t>(std::popcount(same));
      barrier->pending += static_cast<std::uint32_t>(std::popcount(same));
    }
    barrier->async.push_back({.warp = warp.index,
                              .mask = same,
                              .issued = warp.copies_issued,
                              .counts = kCounts,
                              .traced = cta.trace() != nullptr ? cta.trace()->clock(warp.index) : 0});
  }
  cta.note_progress();
}

}  // namespace

void decode_arrive_when_copied(KernelDecoder& d) {
  const bool no_increment = d.has("noinc");
  if (d.parts().size() != (no_increment ? 7u : 6u) || d.parts()[3] != "arrive" || d.parts().back() != "b64" ||
      !(d.has("shared") || d.has("shared::cta"))) {
    d.fail_unknown();
  }
  d.expect_operands(1);
  std::int64_t offset = 0;
  bool wide = true;
  const int address = d.address_operand(d.operand(0), Space::shared, offset, wide);
  Instruction& out = d.emit(no_increment ? arrive_when_copied<true> : arrive_when_copied<false>,
                            InstructionClass::barrier, {}, {address});
  out.offset = offset;
  out.wide_address = wide;
  out.bytes = 8;
  out.space = Space::shared;
}

void add_mbarrier_operations(OperationTable& table) { table.add("mbarrier", decode_mbarrier); }

}  // namespace flash_ladder::emulator
