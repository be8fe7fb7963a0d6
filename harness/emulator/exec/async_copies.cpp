#include "emulator/exec/async_copies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "emulator/exec/async_chunks.h"
#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

AsyncCopies::AsyncCopies(CtaExecutor& cta, AsyncProxy& proxy, std::size_t num_warps)
    : cta_(cta), proxy_(proxy), num_warps_(num_warps), store_groups_(num_warps * kWarpSize) {}

void AsyncCopies::start() {
  loads_.clear();
  stores_.clear();
  std::fill(store_groups_.begin(), store_groups_.end(), 0);
}

void AsyncCopies::finish() {
  finish_loads();
  finish_stores();
}

void AsyncCopies::finish_loads() {
  for (auto& [number, load] : loads_) {
    report(FindingKind::in_flight, load, load.shared(),
           fmt::format("{} ends while {} still writes {} bytes of its shared memory: no thread has waited for the "
                       "phase of the mbarrier at byte {}",
                       load.by == &cta_ ? "the block" : fmt::format("CTA {} of the cluster", cta_.cluster().rank()),
                       name_of(load), load.bytes(), load.barrier));
  }
  for (std::size_t rank = 0; rank < cta_.cluster().size(); ++rank) {
    CtaExecutor* const there = cta_.cluster().peer(rank);
    if (there == &cta_) continue;
    for (auto& [number, load] : there->async()->copies.loads_) {
      const auto* const transfer = std::get_if<BulkTransfer>(&load.what);
      if (load.by != &cta_ || transfer == nullptr || !transfer->source) continue;
      report(
          FindingKind::in_flight, load, transfer->source->offset,
          fmt::format("the block ends while TMA still copies {} bytes of its shared memory to CTA {} of the cluster: "
                      "nothing made it wait for that CTA, which is waiting for the bytes",
                      load.bytes(), rank));
    }
  }
  loads_.clear();
}

void AsyncCopies::finish_stores() {
  for (Store& store : stores_) {
    const Warp& warp = cta_.warps()[static_cast<std::size_t>(store.warp)];
    if (!store.is_read) {
      cta_.find(FindingKind::in_flight, warp, store.instruction, store.lane, store.transfer.shared,
                "the block ends while TMA still reads its shared memory: the thread that requested the store has not "
                "waited "
                "(cp.async.bulk.wait_group.read)");
      read(store);
    }
    write_global(store);
  }
  stores_.clear();
}

void AsyncCopies::renumber(const Renumbering& renumbering) {
  for (Store& store : stores_) store.since = renumbering(store.since);
  for (auto& [number, load] : loads_) {
    renumbering.apply_to(load.released);
    auto* const transfer = std::get_if<BulkTransfer>(&load.what);
    if (transfer != nullptr && transfer->source) transfer->source->since = renumbering(transfer->source->since);
  }
}

bool AsyncCopies::checks() const { return cta_.context().options.checks; }

// Reports an operation in flight, attributed to the CTA of the warp that issued it. The other side is the latest expect_tx
// of this CTA, if that matters.
void AsyncCopies::report(FindingKind kind, const Load& load, std::optional<Address> address, const std::string& message,
                         std::int32_t expected_by) {
  load.by->find(kind, load.by->warps()[static_cast<std::size_t>(load.warp)], load.instruction, load.lane, address,
                message,
                {.what = "expect_tx", .instruction = expected_by, .warp = load.warp, .lane = load.lane, .cta = &cta_});
}

// ---- loads, and copies within a cluster ----

// From global to shared memory.
void AsyncCopies::write_shared(const BulkTransfer& transfer) {
  std::vector<std::uint16_t> row(transfer.row_bytes / 2);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(row));
  std::uint32_t at = transfer.shared;
  for (const BulkTransfer::Row& from : transfer.rows) {
    std::ranges::fill(row, transfer.fill);
    if (from.begin < from.end) std::memcpy(bytes.data() + from.begin, from.host, from.end - from.begin);
    for (std::uint32_t i = 0; i < transfer.row_bytes; i += kChunk)
      std::memcpy(cta_.memory().shared() + swizzled(at + i, transfer.swizzle), bytes.data() + i, kChunk);
    at += transfer.row_pitch();
  }
}

void AsyncCopies::begin_source(Warp& warp, const Instruction& instruction, int lane, BulkTransfer& transfer) {
  const std::int32_t index = cta_.index_of(instruction);
  const std::vector<std::uint32_t> chunks = transfer.source_chunks();
  if (SharedShadow* shadow = cta_.shadow()) {
    transfer.source->since = shadow->clocks().next();
    for_each_access(warp, index, lane, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
  }
  if (checks()) proxy_.check_visible(warp, index, lane, chunks);
}

// The bytes have been read: records that in `into`, a clock of `owner`.
void AsyncCopies::end_source(const Load& load, CtaExecutor& owner, Clock& into) {
  const auto& transfer = std::get<BulkTransfer>(load.what);
  SharedShadow* const shadow = cta_.shadow();
  const Warp& warp = cta_.warps()[static_cast<std::size_t>(load.warp)];
  for_each_access(warp, load.instruction, load.lane, transfer.source_chunks(),
                  [&](const SharedAccess& access) { shadow->complete_async_read(access, transfer.source->since); });
  Clock released = shadow->clocks().empty();
  shadow->clocks().publish_async(load.warp, released);
  join(into, &owner == &cta_ ? released : owner.shadow()->clocks().converted(released, shadow->clocks()));
}

std::uint32_t AsyncCopies::Load::shared() const {
  const auto* const stores = std::get_if<LaneStores>(&what);
  return stores == nullptr ? std::get<BulkTransfer>(what).shared
                           : stores->offsets[static_cast<std::size_t>(std::countr_zero(stores->lanes))];
}

void AsyncCopies::write_shared(const LaneStores& stores) {
  for (std::uint32_t rest = stores.lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* const to = cta_.memory().shared() + stores.offsets[static_cast<std::size_t>(lane)];
    if (stores.combine == nullptr) {
      std::memcpy(to, stores.value(lane), stores.bytes_each);
      continue;
    }
    std::uint64_t old = 0, operand = 0;
    std::memcpy(&old, to, stores.bytes_each);
    std::memcpy(&operand, stores.value(lane), stores.bytes_each);
    const std::uint64_t combined = stores.combine(stores.type, old, operand);
    std::memcpy(to, &combined, stores.bytes_each);
  }
}

const char* AsyncCopies::name_of(const Load& load) const {
  const auto* const stores = std::get_if<LaneStores>(&load.what);
  return stores == nullptr ? "TMA" : stores->combine == nullptr ? "st.async" : "red.async";
}

// Names the origin of the data in flight: "TMA brings".
std::string AsyncCopies::bringers(const Mbarrier& barrier) const {
  std::vector<std::string> names;
  for (const std::uint64_t number : barrier.deliveries) {
    const std::string name = name_of(loads_.at(number));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "nothing brings";
  return fmt::format("{} {}", fmt::join(names, " and "), names.size() == 1 ? "brings" : "bring");
}

void AsyncCopies::issue_lane_stores(CtaExecutor& by, Warp& warp, const Instruction& instruction,
                                    const LaneStores& stores, Mbarrier& barrier, const PeerAccess* peer) {
  const std::int32_t index = cta_.index_of(instruction);
  Load load{&by, warp.index, std::countr_zero(stores.lanes), index, barrier.address, stores};
  if (cta_.shadow() != nullptr) check_lane_stores(by, warp, stores, barrier, peer, load);
  // Whether the asynchronous proxy can see it is not tracked.
  proxy_.forget_write(stores.lanes, stores.bytes_each, stores.offsets.data());
  if (cta_.context().options.early_async) {
    write_shared(stores);
  } else if (stores.combine == nullptr) {
    for (std::uint32_t rest = stores.lanes; rest != 0; rest &= rest - 1)
      std::memset(cta_.memory().shared() + stores.offsets[static_cast<std::size_t>(std::countr_zero(rest))], kPoison,
                  stores.bytes_each);
  }
  barrier.deliveries.push_back(next_load_);
  loads_.emplace(next_load_++, std::move(load));
  cta_.note_progress();
}

void AsyncCopies::check_lane_stores(CtaExecutor& by, Warp& warp, const LaneStores& stores, const Mbarrier& barrier,
                                    const PeerAccess* peer, Load& load) {
  SharedShadow* const shadow = cta_.shadow();
  const std::int32_t index = load.instruction;
  const bool reduces = stores.combine != nullptr;
  SharedAccess access{warp.index,           index, reduces ? kStrong : kWeak, stores.lanes, stores.bytes_each,
                      stores.offsets.data()};
  access.peer = peer;
  // The mbarrier had already been initialised.
  std::array<std::uint32_t, kWarpSize> at;
  at.fill(barrier.address);
  SharedAccess of_barrier{warp.index, index, kStrong, 1u << load.lane, 8, at.data()};
  of_barrier.peer = peer;
  shadow->check_read(of_barrier);
  if (reduces) shadow->check_read(access);
  shadow->issue_copy(access);
  std::uint32_t overwritten = shadow->overwritten_in_copy(access);
  for (std::uint32_t rest = reduces ? 0 : overwritten; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t to = stores.offsets[static_cast<std::size_t>(lane)];
    int last = lane;
    for (int other = lane + 1; other < kWarpSize; ++other)
      if (((stores.lanes >> other) & 1) != 0 && stores.offsets[static_cast<std::size_t>(other)] == to) last = other;
    if (std::memcmp(stores.value(lane), stores.value(last), stores.bytes_each) == 0) overwritten &= ~(1u << lane);
  }
  if (!reduces) shadow->report_overwritten(access, overwritten);
  // Unlike the completion of cp.async.bulk, this one also releases everything before it: nothing in "Asynchronous
  // Operations" of the ISA's "Program Order" exempts it.
  load.released = shadow->clocks().empty();
  if (&by == &cta_)
    shadow->clocks().release(warp.index, stores.lanes, load.released);
  else
    by.cluster().release_to_peer(warp, cta_, stores.lanes, load.released);
}

void AsyncCopies::issue_load(CtaExecutor& by, Warp& warp, const Instruction& instruction, int lane,
                             BulkTransfer transfer, Mbarrier& barrier, const PeerAccess* peer) {
  const bool from_peer = &by != &cta_;
  const std::int32_t index = cta_.index_of(instruction);
  if (checks() && !from_peer) proxy_.check_initialised(warp, index, lane, barrier);
  const std::vector<std::uint32_t> chunks = transfer.chunks();
  if (SharedShadow* shadow = cta_.shadow()) {
    for_each_access(warp, index, lane, chunks, [&](SharedAccess access) {
      access.peer = peer;
      shadow->issue_copy(access, !from_peer || peer != nullptr);
    });
  }
  proxy_.note_copy(chunks, index, transfer.of_tensor ? &transfer.swizzle : nullptr);
  if (cta_.context().options.early_async) {
    write_shared(transfer);
  } else {
    for (const std::uint32_t offset : chunks) std::memset(cta_.memory().shared() + offset, kPoison, kChunk);
  }
  if (TraceRecorder* trace = cta_.trace(); trace != nullptr && !from_peer) {
    trace->note({.warp = warp.index,
                 .kind = TraceEvent::Kind::tma_load,
                 .barrier = TraceBarrier{true, barrier.address, barrier.phase},
                 .shared = transfer.shared,
                 .bytes = transfer.bytes()},
                index);
  }
  if (!from_peer) warp.work.loads = true;
  barrier.deliveries.push_back(next_load_);
  loads_.emplace(next_load_++, Load{&by, warp.index, lane, index, barrier.address, std::move(transfer)});
  cta_.note_progress();
}

void AsyncCopies::arrive(Load& load, Mbarrier& barrier) {
  if (!cta_.context().options.early_async) std::visit([&](const auto& what) { write_shared(what); }, load.what);
  barrier.transactions -= load.bytes();
  if (SharedShadow* shadow = cta_.shadow()) {
    if (const auto* const stores = std::get_if<LaneStores>(&load.what)) {
      SharedAccess access{load.warp,     load.instruction,   stores->combine == nullptr ? kWeak : kStrong,
                          stores->lanes, stores->bytes_each, stores->offsets.data()};
      access.engine = barrier.engine;
      shadow->complete_copy(access, true);
      join(barrier.arriving, load.released);
    } else {
      const Warp& warp = cta_.warps()[static_cast<std::size_t>(load.warp)];
      for_each_access(warp, load.instruction, load.lane, std::get<BulkTransfer>(load.what).chunks(),
                      [&](SharedAccess access) {
                        access.engine = barrier.engine;
                        shadow->complete_copy(access, true);
                      });
    }
    const auto* const transfer = std::get_if<BulkTransfer>(&load.what);
    if (transfer != nullptr && transfer->source) load.by->async()->copies.end_source(load, cta_, barrier.arriving);
    shadow->clocks().publish_async(static_cast<int>(num_warps_) + barrier.engine, barrier.arriving);
  }
  cta_.note_progress();
}

void AsyncCopies::deliver(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.deliveries.empty()) return;
  std::int64_t in_flight = 0;
  for (const std::uint64_t number : barrier.deliveries) in_flight += loads_.at(number).bytes();
  if (in_flight < barrier.transactions) return;  // more bytes must follow
  if (in_flight > barrier.transactions) {
    report(FindingKind::transaction_count, loads_.at(barrier.deliveries.back()), barrier.address,
           fmt::format("{} {} bytes for phase {} of the mbarrier at byte {} of shared memory, but expect_tx has "
                       "announced {}: the phase may end before all of them have arrived",
                       bringers(barrier), in_flight, barrier.phase, barrier.address, barrier.promised),
           barrier.promised_by);
  }
  for (const std::uint64_t number : barrier.deliveries) {
    arrive(loads_.at(number), barrier);
    loads_.erase(number);
  }
  barrier.deliveries.clear();
  barrier.transactions = 0;
}

void AsyncCopies::expect(Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier, std::uint32_t bytes) {
  constexpr std::uint32_t kMost = (1u << 20) - 1;
  if (bytes > kMost || barrier.transactions + bytes > kMost) {
    cta_.find(
        FindingKind::invalid_operation, &warp, &instruction, lane, barrier.address,
        fmt::format("expect_tx of {} bytes; a phase can wait for {} at most", barrier.transactions + bytes, kMost));
    return;
  }
  barrier.transactions += bytes;
  barrier.promised += bytes;
  barrier.promised_by = cta_.index_of(instruction);
}

void AsyncCopies::end_phase(Mbarrier& barrier) {
  if (!barrier.deliveries.empty()) {
    const Load& load = loads_.at(barrier.deliveries.front());
    report(FindingKind::transaction_count, load, barrier.address,
           fmt::format("phase {} of the mbarrier at byte {} of shared memory has ended, but this {} of {} bytes is "
                       "still in flight: expect_tx has announced {} bytes",
                       barrier.phase - 1, barrier.address,
                       std::holds_alternative<BulkTransfer>(load.what) ? "load" : name_of(load), load.bytes(),
                       barrier.promised),
           barrier.promised_by);
  }
  barrier.promised = 0;
}

std::string AsyncCopies::describe_transactions(const Mbarrier& barrier) const {
  if (barrier.transactions == 0) return {};
  std::int64_t in_flight = 0;
  for (const std::uint64_t number : barrier.deliveries) in_flight += loads_.at(number).bytes();
  return fmt::format(", and {} bytes, of which {} {}", barrier.transactions, bringers(barrier),
                     in_flight == 0 ? "any" : std::to_string(in_flight));
}

const Mbarrier* AsyncCopies::signalled_by_load(std::int32_t instruction, std::uint32_t offset) const {
  const auto writes = [&](const Load& load) {
    if (const auto* const stores = std::get_if<LaneStores>(&load.what)) {
      for (std::uint32_t rest = stores->lanes; rest != 0; rest &= rest - 1)
        if (offset - stores->offsets[static_cast<std::size_t>(std::countr_zero(rest))] < stores->bytes_each)
          return true;
      return false;
    }
    const std::vector<std::uint32_t> chunks = std::get<BulkTransfer>(load.what).chunks();
    return std::ranges::any_of(chunks, [&](std::uint32_t chunk) { return offset - chunk < kChunk; });
  };
  for (auto entry = loads_.rbegin(); entry != loads_.rend(); ++entry) {
    const Load& load = entry->second;
    if (load.instruction != instruction || !writes(load)) continue;
    const auto barrier = std::ranges::find(cta_.mbarriers(), load.barrier, &Mbarrier::address);
    return barrier == cta_.mbarriers().end() ? nullptr : &*barrier;
  }
  return nullptr;
}

// ---- stores ----

void AsyncCopies::issue_store(Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer) {
  const std::int32_t index = cta_.index_of(instruction);
  const std::vector<std::uint32_t> chunks = transfer.chunks();
  AccessNumber since = 0;
  if (SharedShadow* shadow = cta_.shadow()) {
    since = shadow->clocks().next();
    for_each_access(warp, index, lane, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
  }
  if (checks()) proxy_.check_visible(warp, index, lane, chunks);
  warp.work.stores = true;
  if (TraceRecorder* trace = cta_.trace()) {
    trace->note(
        {.warp = warp.index, .kind = TraceEvent::Kind::tma_store, .shared = transfer.shared, .bytes = transfer.bytes()},
        index);
  }
  const std::size_t thread = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  Store& store = stores_.emplace_back(
      Store{warp.index, lane, index, store_groups_[thread], since, std::move(transfer), false, {}});
  if (cta_.context().options.early_async) {
    read(store);
    store.is_read = false;  // not known
  }
  cta_.note_progress();
}

void AsyncCopies::commit_stores(Warp& warp, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    ++store_groups_[static_cast<std::size_t>(warp.index) * kWarpSize +
                    static_cast<std::size_t>(std::countr_zero(rest))];
}

// Reads the data to be stored from shared memory.
void AsyncCopies::read(Store& store) {
  if (store.data.empty()) {
    store.data.resize(store.transfer.bytes());
    std::size_t at = 0;
    for (const std::uint32_t offset : store.transfer.chunks()) {
      std::memcpy(store.data.data() + at, cta_.memory().shared() + offset, kChunk);
      at += kChunk;
    }
  }
  store.is_read = true;
}

void AsyncCopies::write_global(Store& store) {
  const std::byte* row = store.data.data();
  for (const BulkTransfer::Row& to : store.transfer.rows) {
    if (to.begin < to.end) std::memcpy(to.host, row + to.begin, to.end - to.begin);
    row += store.transfer.row_bytes;
  }
}

void AsyncCopies::wait_for_stores(Warp& warp, std::uint32_t lanes, std::uint32_t newest_left, bool read_only) {
  SharedShadow* shadow = cta_.shadow();
  bool any = false;
  std::vector<Store> left;
  for (Store& store : stores_) {
    const bool own = store.warp == warp.index && ((lanes >> store.lane) & 1) != 0;
    const std::size_t thread = static_cast<std::size_t>(store.warp) * kWarpSize + static_cast<std::size_t>(store.lane);
    if (!own || std::uint64_t{store.group} + newest_left >= store_groups_[thread]) {
      left.push_back(std::move(store));
      continue;
    }
    if (!store.is_read) {
      any = true;
      read(store);
      if (shadow != nullptr) {
        for_each_access(warp, store.instruction, store.lane, store.transfer.chunks(),
                        [&](const SharedAccess& access) { shadow->complete_async_read(access, store.since); });
      }
    }
    if (read_only) {
      left.push_back(std::move(store));
    } else {
      write_global(store);
      any = true;
    }
  }
  stores_ = std::move(left);
  if (!any) return;
  if (shadow != nullptr) {
    Clock clock = shadow->clocks().empty();
    shadow->clocks().publish_async(warp.index, clock);
    shadow->clocks().acquire(warp.index, lanes, warp.alive, clock);
  }
  cta_.note_progress();
}

}  // namespace flash_ladder::emulator
