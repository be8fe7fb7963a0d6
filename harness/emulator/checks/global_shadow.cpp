#include "emulator/checks/global_shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "emulator/lanes/accesses.h"

namespace flash_ladder::emulator {

GlobalShadow::GlobalShadow(int granule, Of of)
    : shift_(std::countr_zero(static_cast<unsigned>(granule))), of_(of), cells_(kPageBytes >> shift_), table_(256) {}

// Numbers are not reset, so everything that the previous CTA left in the cells is older than anything in this one.
void GlobalShadow::reset() {
  first_ += static_cast<std::uint32_t>(records_.size());
  records_.clear();
  used_.clear();
  ++generation_;
  recent_pages_.fill({});
  recent_.fill(0);
  full_ = false;
  if (first_ > kRecords / 2) {
    pages_.clear();
    first_ = 1;
  }
}

std::uint32_t GlobalShadow::page_number(Address page) {
  while (true) {
    const std::size_t mask = table_.size() - 1;
    for (std::size_t i = hash_of(page);; ++i) {
      Slot& slot = table_[i & mask];
      if (slot.generation == generation_) {
        if (slot.page == page) return slot.number;
        continue;
      }
      if (2 * used_.size() >= table_.size()) break;  // enlarge it first
      slot = {.page = page, .number = static_cast<std::uint32_t>(used_.size()), .generation = generation_};
      used_.push_back(page);
      if (used_.size() > pages_.size()) {
        pages_.push_back(std::make_unique<std::uint32_t[]>(3 * cells_ + 1 +
                                                           (of_ == Of::cta ? kPageBytes / sizeof(std::uint32_t) : 0)));
      }
      return slot.number;
    }
    std::vector<Slot> old(4 * table_.size());
    old.swap(table_);
    const std::size_t new_mask = table_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.generation != generation_) continue;
      std::size_t i = hash_of(slot.page);
      while (table_[i & new_mask].generation == generation_) ++i;
      table_[i & new_mask] = slot;
    }
  }
}

GlobalShadow::Page GlobalShadow::page(std::uint32_t number) const {
  std::uint32_t* const cells = pages_[number].get();
  return {.writers = cells,
          .readers = cells + cells_,
          .other_readers = cells + 2 * cells_,
          .written_in = cells + 3 * cells_,
          .written = reinterpret_cast<std::byte*>(cells + 3 * cells_ + 1)};
}

// One record for everything that a warp does with one instruction in one epoch.
bool GlobalShadow::begin(const GlobalAccess& access, Ordering& ordering, std::uint32_t& record) {
  if (full_ || ordering.clocks().out_of_epochs()) return false;
  ordered_ = {};
  const Record wanted{.cta = access.cta,
                      .epoch = ordering.clocks().epoch(),
                      .instruction = access.instruction,
                      .warp = static_cast<std::uint16_t>(access.warp),
                      .strength = access.strength};
  std::uint32_t& recent = recent_[static_cast<std::size_t>(access.warp * 7 + access.instruction) % recent_.size()];
  if (recent >= first_) {
    const Record& known = records_[recent - first_];
    if (known.cta == wanted.cta && known.epoch == wanted.epoch && known.instruction == wanted.instruction &&
        known.warp == wanted.warp) {
      record = recent;
      return true;
    }
  }
  record = recent = first_ + static_cast<std::uint32_t>(records_.size());
  if (record >= kRecords) {  // no further accesses of this launch can be distinguished
    full_ = true;
    return false;
  }
  records_.push_back(wanted);
  return true;
}

bool GlobalShadow::known(std::uint32_t cell, const GlobalAccess& access, int lane, Ordering& ordering) {
  const Record& record = record_of(cell);
  const int other_lane = static_cast<int>(cell & 31);
  Clocks& clocks = ordering.clocks();
  if (record.cta != access.cta) {
    if (!can_race(access.strength, record.strength, false)) return true;
    if (ordered_.cta == record.cta && record.epoch < ordered_.epochs) return true;
    const auto thread = static_cast<std::uint32_t>(record.warp * kWarpSize + other_lane);
    const Known known =
        ordering.known_of_other_block(record.cta, thread, record.epoch, access.warp, lane, is_strong(access.strength));
    if (known == Known::of_all_threads) ordered_ = {.cta = record.cta, .epochs = record.epoch + 1};
    return known != Known::no;
  }
  if (of_ == Of::cluster || !can_race(access.strength, record.strength, record.warp == access.warp)) return true;
  if (record.epoch < clocks.epochs_known_to_warp(access.warp)) return true;
  if (record.warp == access.warp && (cell & kSeveralLanes) != 0) {
    // Read by this lane and another one, or by two other lanes.
    return record.epoch < clocks.epochs_synced_in_warp(access.warp);
  }
  return clocks.epoch_happened_before(record.epoch, record.warp, other_lane, access.warp, lane);
}

void GlobalShadow::report(std::uint32_t cell, GlobalConflict::Kind kind, const GlobalAccess& access, int lane,
                          Address address, GlobalConflictSink& sink, bool at_once) const {
  const Record& record = record_of(cell);
  sink.report(access, {.kind = kind,
                       .lane = lane,
                       .address = address,
                       .other_cta = record.cta,
                       .other_instruction = record.instruction,
                       .other_warp = record.warp,
                       .other_lane = static_cast<int>(cell & 31),
                       .at_once = at_once});
}

GlobalShadow::Cells GlobalShadow::cells_of(const GlobalAccess& access) {
  const std::size_t bytes = std::size_t{kWarpSize} * access.bytes, offset = access.addresses[0] & (kPageBytes - 1);
  if (!access.consecutive || access.bytes < 1u << shift_ || offset + bytes > kPageBytes) return {};
  return {.page = page_of(access.addresses[0]), .first = offset >> shift_, .count = bytes >> shift_};
}

// The cells of all lanes, which are adjacent.
void GlobalShadow::fill(std::uint32_t* cells, std::size_t count, std::uint32_t record) {
  if (count == kWarpSize) {
    for (int lane = 0; lane < kWarpSize; ++lane) cells[lane] = cell(record, lane);
    return;
  }
  const std::size_t each = count / kWarpSize;
  for (int lane = 0; lane < kWarpSize; ++lane)
    std::fill_n(cells + static_cast<std::size_t>(lane) * each, each, cell(record, lane));
}

bool GlobalShadow::write_untouched(const GlobalAccess& access, Ordering& ordering) {
  std::uint32_t record = 0;
  const Cells cells = cells_of(access);
  if (cells.count == 0 || !begin(access, ordering, record)) return false;
  std::uint32_t latest = 0;
  for (std::size_t i = cells.first; i < cells.first + cells.count; ++i)
    latest = std::max(latest, std::max(cells.page.writers[i], cells.page.readers[i]));
  if (!stale(latest)) return false;
  *cells.page.written_in = generation_;
  fill(cells.page.writers + cells.first, cells.count, record);
  return true;
}

// Adjacent reads of lanes, of granules that have not been written; if they need a closer look, returns false and
// records nothing.
bool GlobalShadow::read_consecutive(const GlobalAccess& access, std::uint32_t record) {
  const Cells cells = cells_of(access);
  if (cells.count == 0 || *cells.page.written_in == generation_) return false;
  std::uint32_t* const readers = cells.page.readers + cells.first;
  std::uint32_t latest = 0;
  for (std::size_t i = 0; i < cells.count; ++i) latest = std::max(latest, readers[i]);
  if (!stale(latest)) {
    // Granules that one instruction of another warp has read are equally simple, because the lanes of this warp were
    // not the last readers.
    const auto count = static_cast<std::uint32_t>(cells.count);
    if (stale(readers[0]) || lanes::end_of_run(readers, 0, count, kLaneBits) != count) return false;
    const Record& before = record_of(readers[0]);
    if (before.warp == access.warp && before.cta == access.cta) return false;
    std::copy_n(readers, count, cells.page.other_readers + cells.first);
  }
  fill(readers, cells.count, record);
  return true;
}

// Records the read of a granule; `own` is its cell.
void GlobalShadow::note_reader(std::uint32_t& reader, std::uint32_t& other_reader, std::uint32_t own,
                               const GlobalAccess& access, Ordering& ordering) const {
  if (stale(reader)) {
    reader = own;
    return;
  }
  if ((reader ^ own) < kSeveralLanes) {  // by the same instruction in the same epoch, so its lanes are unordered
    if (reader != own) reader = own | kSeveralLanes;
    return;
  }
  if ((reader | kSeveralLanes) == (own | kSeveralLanes)) return;
  const Record& before = record_of(reader);
  if (before.warp != access.warp || before.cta != access.cta) {
    other_reader = reader;
    reader = own;
    return;
  }
  // Read earlier by another lane, and the lanes have not been ordered since.
  Clocks& clocks = ordering.clocks();
  const int lane = static_cast<int>(own & 31);
  bool several = false;
  if (before.epoch >= clocks.epochs_synced_in_warp(access.warp) && ((reader ^ own) & 63) != 0) {
    several =
        before.epoch == record_of(own).epoch || (reader & kSeveralLanes) != 0 ||
        !clocks.epoch_happened_before(before.epoch, before.warp, static_cast<int>(reader & 31), access.warp, lane);
  }
  reader = own | (several ? kSeveralLanes : 0);
}

void GlobalShadow::read(const GlobalAccess& access, Ordering& ordering, GlobalConflictSink& sink) {
  std::uint32_t record = 0;
  if (!begin(access, ordering, record) || read_consecutive(access, record)) return;
  const unsigned count = std::max(1u, access.bytes >> shift_);
  // Blocks of 16 × 16 threads have warps whose two halves read the same data.
  constexpr int kHalf = kWarpSize / 2;
  const bool halves =
      access.mask == kAllLanes && std::equal(access.addresses, access.addresses + kHalf, access.addresses + kHalf);
  Address last = 0;
  bool written = true;
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = access.addresses[lane];
    // If adjacent lanes read the same address, recording the first and the last one is enough.
    if (address == last && !written && ((rest >> lane) & 2) != 0 && access.addresses[lane + 1] == address) continue;
    last = address;
    const Page& page = page_of(address);
    written = *page.written_in == generation_;
    if (halves && lane < kHalf && !written) continue;  // the lane of the other half stands for both
    const std::uint32_t several = halves && lane >= kHalf ? kSeveralLanes : 0;
    const std::size_t first = (address & (kPageBytes - 1)) >> shift_;
    const std::uint32_t own = cell(record, lane);
    std::uint32_t* const readers = page.readers + first;
    if (written) {
      const std::uint32_t* const writers = page.writers + first;
      std::uint32_t last_writer = 0;
      for (unsigned i = 0; i < count; ++i) {
        const std::uint32_t writer = writers[i] & ~kReadBefore;
        if (stale(writer) || writer == last_writer) continue;
        last_writer = writer;
        if (!known(writer, access, lane, ordering))
          report(writer, GlobalConflict::Kind::read_after_write, access, lane, address + (i << shift_), sink);
      }
    }
    if (count > 1) {  // the common case: adjacent granules
      std::uint32_t latest = 0;
      for (unsigned i = 0; i < count; ++i) latest = std::max(latest, readers[i]);
      if (stale(latest)) {
        std::fill_n(readers, count, own | several);
        continue;
      }
    }
    for (unsigned i = 0; i < count; ++i) {
      note_reader(readers[i], page.other_readers[first + i], own, access, ordering);
      readers[i] |= several;
    }
  }
}

std::uint32_t GlobalShadow::write(const GlobalAccess& access, std::uint32_t unchanged, Ordering& ordering,
                                  GlobalConflictSink& sink) {
  std::uint32_t record = 0;
  if (!begin(access, ordering, record)) return 0;
  const unsigned count = std::max(1u, access.bytes >> shift_);
  const auto for_each_lane = [&](auto f) {
    for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const Address address = access.addresses[lane];
      f(lane, page_of(address), (address & (kPageBytes - 1)) >> shift_, address & ~Address{kPageBytes - 1});
    }
  };
  // The state before this instruction, which writes for all lanes at once.
  for_each_lane([&](int lane, const Page& page, std::size_t first, Address base) {
    const bool same_value = (unchanged >> lane) & 1;
    for (std::size_t i = first; i < first + count; ++i) {
      const auto check = [&](std::uint32_t cell, GlobalConflict::Kind kind) {
        if (!stale(cell) && !known(cell, access, lane, ordering))
          report(cell, kind, access, lane, base + (i << shift_), sink);
      };
      if (!same_value) check(page.writers[i] & ~kReadBefore, GlobalConflict::Kind::write_after_write);
      if (stale(page.readers[i])) continue;
      check(page.readers[i], GlobalConflict::Kind::write_after_read);
      check(page.other_readers[i], GlobalConflict::Kind::write_after_read);
    }
  });
  for_each_lane([&](int lane, const Page& page, std::size_t first, Address) {
    *page.written_in = generation_;
    for (std::size_t i = first; i < first + count; ++i) {
      const std::uint32_t before = page.writers[i];
      const bool read_before = stale(before) ? !stale(page.readers[i]) : (before & kReadBefore) != 0;
      page.writers[i] = cell(record, lane) | (read_before ? kReadBefore : 0);
    }
    if (of_ == Of::cta) return;  // take_use() needs them
    std::fill_n(page.readers + first, count, 0);
    std::fill_n(page.other_readers + first, count, 0);
  });
  std::uint32_t overwritten = 0;
  for_each_lane([&](int lane, const Page& page, std::size_t first, Address) {
    if ((page.writers[first] & ~kReadBefore) != cell(record, lane)) overwritten |= 1u << lane;
  });
  return overwritten;
}

void GlobalShadow::report_overwritten(const GlobalAccess& access, std::uint32_t lanes, GlobalConflictSink& sink) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = access.addresses[lane];
    const Page page = page_of(address);
    report(page.writers[(address & (kPageBytes - 1)) >> shift_] & ~kReadBefore, GlobalConflict::Kind::write_after_write,
           access, lane, address, sink, true);
  }
}

bool GlobalShadow::kept_at(const GlobalAccess& access, std::byte** places) {
  if (of_ != Of::cta || full_) return false;
  if (const Cells cells = cells_of(access); cells.count != 0) {
    std::byte* const first = cells.page.written + (cells.first << shift_);
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) places[lane] = first + lane * access.bytes;
    return true;
  }
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Address address = access.addresses[lane];
    places[lane] = page_of(address).written + (address & (kPageBytes - 1));
  }
  return true;
}

MemoryUse GlobalShadow::take_use() {
  MemoryUse use;
  const std::size_t per_line = MemoryUse::kLineBytes >> shift_;
  std::vector<std::uint32_t> order(used_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return used_[a] < used_[b]; });
  // The instruction that all granules of a line have in common, if there is one; otherwise the instructions go to `mixed`.
  const auto instruction_of = [&](const std::uint32_t* cells, std::uint32_t& begin, bool all_count, auto counts) {
    const auto one = [&](std::size_t i) {
      return stale(cells[i]) || !counts(i) ? MemoryUse::kNothing : record_of(cells[i]).instruction;
    };
    const std::int32_t first = one(0);
    const auto count = static_cast<std::uint32_t>(per_line);
    if (all_count && lanes::end_of_run(cells, 0, count, kLaneBits) == count) return first;
    bool same = true;
    for (std::size_t i = 1; same && i < per_line; ++i) same = one(i) == first;
    if (same) return first;
    begin = static_cast<std::uint32_t>(use.mixed.size());
    for (std::size_t i = 0; i < per_line; ++i) use.mixed.push_back(one(i));
    return MemoryUse::kMixed;
  };
  for (const std::uint32_t number : order) {
    const Page cells = page(number);
    const bool written = *cells.written_in == generation_;
    for (std::size_t first = 0; first < cells_; first += per_line) {
      MemoryUse::Line line;
      const std::uint32_t* const writers = cells.writers + first;
      if (written) line.write = instruction_of(writers, line.writes, true, [](std::size_t) { return true; });
      // Data that a CTA reads after writing them itself are its own.
      line.read = instruction_of(cells.readers + first, line.reads, !written, [&](std::size_t i) {
        return !written || stale(writers[i]) || (writers[i] & kReadBefore) != 0;
      });
      if (line.read == MemoryUse::kNothing && line.write == MemoryUse::kNothing) continue;
      line.address = (used_[number] << kPageShift) + (first << shift_);
      if (line.write != MemoryUse::kNothing && of_ == Of::cta) {
        const std::byte* const from = cells.written + (first << shift_);
        line.written = static_cast<std::uint32_t>(use.written.size());
        use.written.insert(use.written.end(), from, from + MemoryUse::kLineBytes);
      }
      use.lines.push_back(line);
    }
  }
  reset();
  return use;
}

}  // namespace flash_ladder::emulator
