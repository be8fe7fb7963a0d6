#include "emulator/checks/shared_shadow.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "emulator/lanes/accesses.h"

namespace flash_ladder::emulator {
namespace {

constexpr std::size_t kRecords = std::size_t{1} << 20;

}  // namespace

SharedShadow::SharedShadow(std::size_t shared_bytes, int granule, int num_warps, Clocks& clocks, ConflictSink& sink,
                           int num_engines)
    : sink_(sink),
      shift_(std::countr_zero(static_cast<unsigned>(granule))),
      num_warps_(num_warps),
      num_engines_(num_engines),
      num_readers_(num_warps),
      num_cells_((shared_bytes >> shift_) + 1),
      writers_(num_cells_),
      readers_(num_cells_ * static_cast<std::size_t>(num_warps)),
      num_pages_((shared_bytes >> kPageShift) + 1),
      page_versions_(num_pages_, 1),
      page_writers_(num_pages_),
      known_pages_(num_pages_ * static_cast<std::size_t>(num_warps)),
      last_read_(num_pages_ * static_cast<std::size_t>(num_warps)),
      reads_asynchronously_(static_cast<std::size_t>(num_warps)),
      reads_(static_cast<std::size_t>(num_warps)),
      remembered_(static_cast<std::size_t>(num_warps) * kRemembered, ~AccessNumber{0}),
      clocks_(clocks),
      most_records_(kRecords) {
  clocks_.reset(num_warps, 1, num_engines);
}

void SharedShadow::join_cluster(std::size_t size) {
  num_readers_ = num_warps_ + static_cast<int>(size);
  readers_.assign(num_cells_ * static_cast<std::size_t>(num_readers_), 0);
  last_read_.assign(num_pages_ * static_cast<std::size_t>(num_readers_), 0);
  keeps_reads_ = false;  // other CTAs know nothing about pages
}

// Numbers are not reset, so everything that the previous CTA left in readers_ is older than anything in this one.
void SharedShadow::reset() {
  std::fill(writers_.begin(), writers_.end(), 0);
  if (clocks_.next() > kNumbers / 2) {
    std::fill(readers_.begin(), readers_.end(), 0);
    clocks_.reset(num_warps_, 1, num_engines_);
  } else {
    clocks_.reset(num_warps_, clocks_.next(), num_engines_);
  }
  for (std::uint32_t& version : page_versions_) ++version;
  std::fill(last_read_.begin(), last_read_.end(), 0);
  reads_asynchronously_.assign(reads_asynchronously_.size(), false);
  for (std::vector<Read>& reads : reads_) reads.clear();
  std::fill(remembered_.begin(), remembered_.end(), ~AccessNumber{0});
  lost_.reset();
  records_.clear();
  first_record_ = clocks_.next();
}

void SharedShadow::renumber() {
  // Other CTAs have these numbers in their clocks. It is better to forget what was done so far, which then counts as
  // ordered.
  if (clocks_.is_in_cluster()) {
    records_.clear();
    first_record_ = clocks_.next();
    if (clocks_.next() > kNumbers - 2 * kRecords)
      throw std::runtime_error(
          "a block of a cluster makes more accesses to shared memory than can be checked for races.");
    return;
  }
  for (int warp = 0; warp < num_warps_; ++warp) enter_reads(warp);
  const auto index_of = [&](std::uint32_t cell) {  // index of the record; past the end if the cell is older
    return std::size_t{((cell & ~kPending) >> kLaneBits) - first_record_};
  };
  std::vector<AccessNumber> to(records_.size() + 1);
  for (const auto* cells : {&writers_, &readers_}) {
    for (const std::uint32_t cell : *cells) {
      if (index_of(cell) < records_.size()) to[index_of(cell)] = 1;
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool keep = to[i] != 0 || (i < records_.size() && records_[i].instruction < 0);
    to[i] = first_record_ + static_cast<AccessNumber>(kept);
    if (keep) records_[kept++] = records_[i];
  }
  for (auto* cells : {&writers_, &readers_}) {
    for (std::uint32_t& cell : *cells) {
      if (index_of(cell) >= records_.size()) continue;
      constexpr std::uint32_t kFlags = kPending | ((1u << kLaneBits) - 1);
      cell = (cell & kFlags) | (to[index_of(cell)] << kLaneBits);
    }
  }
  records_.resize(kept);
  // Delay the next call. Cells hold at most 33 numbers for each byte of 227 KB, and reset() leaves more than twice as
  // many.
  most_records_ = std::max(kRecords, 2 * kept);
  const Renumbering renumbering(first_record_, std::move(to));
  clocks_.renumber(renumbering);
  renumbering.apply_to(last_read_);
  for (std::uint32_t& version : page_versions_) ++version;  // page_writers_ contains old numbers
  std::fill(remembered_.begin(), remembered_.end(), ~AccessNumber{0});
  sink_.renumber(renumbering);
}

AccessNumber SharedShadow::add_record(const SharedAccess& access, bool async) {
  records_.resize(clocks_.next() - first_record_, kNoAccess);
  if (records_.size() >= most_records_) renumber();
  records_.push_back({access.instruction, static_cast<std::uint16_t>(access.warp), access.strength, async,
                      static_cast<std::int8_t>(access.as_lane),
                      static_cast<std::int16_t>(access.peer != nullptr ? access.peer->engine : access.engine)});
  const int by = access.engine >= 0 ? num_warps_ + access.engine : access.warp;
  if (access.peer != nullptr) {
    records_.back().async = true;
    return async ? clocks_.take_async(num_warps_ + access.peer->engine) : clocks_.take();
  }
  return async ? clocks_.take_async(by) : clocks_.take();
}

const SharedShadow::Record* SharedShadow::record_of(AccessNumber number) const {
  const std::size_t index = number - first_record_;
  return number >= first_record_ && index < records_.size() ? &records_[index] : nullptr;
}

// Whether the write in a cell happened before what any lane of the warp does now. False if that needs a closer look.
inline bool SharedShadow::known_to_warp(std::uint32_t cell, int warp) {
  const AccessNumber number = cell >> kLaneBits;  // a pending write has no number
  AccessNumber& remembered = remembered_[static_cast<std::size_t>(warp) * kRemembered + number % kRemembered];
  if (remembered == number) return true;
  const Record* const record = record_of(number);
  if (record == nullptr || (record->engine >= 0 && !record->async)) return false;
  const int other = record->engine >= 0 ? num_warps_ + record->engine : record->warp;
  if (!clocks_.happened_before(number, other, record->async, warp)) return false;
  remembered = number;
  return true;
}

// Whether the access in a cell happened before what a lane does now, or cannot race with it. `inline` because accesses
// that are ordered only by an mbarrier come here for every lane.
inline bool SharedShadow::known(std::uint32_t cell, const SharedAccess& access, int lane, bool by_reader, int reader,
                                Conflict& conflict) const {
  if (cell == 0) return true;
  const AccessNumber number = (cell & ~kPending) >> kLaneBits;
  const Record* record = record_of(number);
  const int other_lane = static_cast<int>(cell & 31);
  if (record == nullptr) return true;  // from a previous CTA
  const bool of_peer = record->engine >= num_engines_;
  const int other = by_reader && !of_peer ? reader : record->warp;
  const bool same_warp = other == access.warp && !of_peer && access.peer == nullptr;
  if (!can_race(access.strength, record->strength, same_warp)) return true;
  const bool several = (cell & kSeveralLanes) != 0;
  if (access.peer != nullptr) {
    if (known_to_peer(*access.peer, cell, *record, other)) return true;
  } else if (several && same_warp && !record->async) {
    // Read by this lane and another one, or by two other lanes.
    if (number < clocks_.synced_in_warp(access.warp)) return true;
  } else if (clocks_.happened_before(number, record->engine >= 0 ? num_warps_ + record->engine : other, other_lane,
                                     record->async, access.warp, lane)) {
    return true;
  }
  conflict.other_instruction = record->instruction;
  conflict.other_warp = other;
  conflict.other_lane = record->as_lane >= 0 ? record->as_lane : other_lane;
  conflict.other_rank = clocks_.rank_of_engine(record->engine);
  if (by_reader && !record->async) conflict.other_number = number;
  return false;
}

bool SharedShadow::known_to_peer(const PeerAccess& peer, std::uint32_t cell, const Record& record, int other) const {
  if (record.engine == peer.engine) return true;
  const AccessNumber number = (cell & ~kPending) >> kLaneBits;
  const auto known = [&](int entry) { return number < peer.clock[peer.block + static_cast<std::size_t>(entry)]; };
  if (record.async) return known(num_warps_ * kWarpSize + (record.engine >= 0 ? num_warps_ + record.engine : other));
  if ((cell & kSeveralLanes) == 0) return known(other * kWarpSize + static_cast<int>(cell & 31));
  bool all = true;
  for (int lane = 0; lane < kWarpSize; ++lane) all &= known(other * kWarpSize + lane);
  return all;
}

void SharedShadow::read(const SharedAccess& access) {
  if (access.peer != nullptr) {
    const AccessNumber number = add_record(access, true);
    const int row = reader_of(access);
    note_read(pages_of(access), row, number);
    for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      std::fill_n(readers(row) + (access.offsets[lane] >> shift_), cells_of(access), cell(number, lane));
    }
    check_reads(access, ~std::uint32_t{0});
    return;
  }
  const AccessNumber number = add_record(access, false);
  const Range range = range_of(access);
  const Pages pages = pages_of(range);
  if (access.placed.pattern == nullptr) enter_reads_in(range, access.warp, 0);
  note_read(pages, access.warp, number);
  if (access.placed.pattern != nullptr) {
    keep_read(access, number, clocks_.synced_in_warp(access.warp));
    if (knows_pages(pages, access.warp)) return;
    std::uint32_t offsets[kWarpSize];
    access.placed.expand(offsets);
    SharedAccess by_lanes = access;
    by_lanes.offsets = offsets;
    check_read(by_lanes);
    return;
  }
  const std::uint32_t synced = clocks_.synced_in_warp(access.warp) << kLaneBits;
  const unsigned cells = cells_of(access);
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t own = cell(number, lane);
    std::uint32_t* const read_by = readers(access.warp) + (access.offsets[lane] >> shift_);
    for (unsigned i = 0; i < cells; ++i) {
      const std::uint32_t old = read_by[i];
      // Decide exactly, because these may be lanes that take turns with a lock.
      const bool several = old >= synced && ((old ^ own) & 63) != 0 &&
                           ((old & kSeveralLanes) != 0 ||
                            !clocks_.happened_before(old >> kLaneBits, access.warp, static_cast<int>(old & 31), false,
                                                     access.warp, lane));
      read_by[i] = own | (several ? kSeveralLanes : 0);
    }
  }
  check_read(access);
}

SharedShadow::Range SharedShadow::range_of(const SharedAccess& access) const {
  if (access.placed.pattern != nullptr) return {access.placed.base, access.placed.base + access.placed.pattern->span};
  if (access.mask == 0) return {0, 0};
  std::uint32_t lowest = ~0u, highest = 0;
  if (access.mask == kAllLanes) {
    lanes::offset_range(access.offsets, &lowest, &highest);
  } else {
    for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
      const std::uint32_t offset = access.offsets[std::countr_zero(rest)];
      lowest = std::min(lowest, offset);
      highest = std::max(highest, offset);
    }
  }
  return {lowest, highest + access.bytes};
}

// Whether a whole page was written, and all writes to it happened before what any lane of the warp does now.
bool SharedShadow::knows_page(int warp, std::size_t page) {
  KnownPage& known = known_pages_[static_cast<std::size_t>(warp) * num_pages_ + page];
  const std::uint32_t version = page_versions_[page];
  const AccessNumber bound = clocks_.known_to_warp(warp);
  if (known.unknown == version && known.bound == bound) return false;
  const PageWriters& writers = writers_of_page(page);
  const bool all_known = writers.count <= PageWriters::kMost &&
                         std::all_of(writers.numbers, writers.numbers + writers.count, [&](AccessNumber number) {
                           return number < bound || known_to_warp(number << kLaneBits, warp);
                         });
  if (all_known) {
    known.known = version;
  } else {
    known.unknown = version;
    known.bound = bound;
  }
  return all_known;
}

const SharedShadow::PageWriters& SharedShadow::writers_of_page(std::size_t page) {
  PageWriters& writers = page_writers_[page];
  if (writers.version == page_versions_[page]) return writers;
  writers.version = page_versions_[page];
  writers.count = 0;
  const auto end = static_cast<std::uint32_t>(std::min(num_cells_ - 1, (page + 1) << kPageShift >> shift_));
  for (auto i = static_cast<std::uint32_t>(page << kPageShift >> shift_); i < end;) {
    const AccessNumber number = writers_[i] >> kLaneBits;
    if (std::find(writers.numbers, writers.numbers + writers.count, number) == writers.numbers + writers.count) {
      if (writers.count == PageWriters::kMost || number == 0 || (writers_[i] & kPending) != 0) {
        writers.count = PageWriters::kMore;
        return writers;
      }
      writers.numbers[writers.count++] = number;
    }
    i = lanes::end_of_run(writers_.data(), i, end, kLaneBits);
  }
  return writers;
}

inline bool SharedShadow::knows_pages(const Pages& pages, int warp) {
  const KnownPage* const known = known_pages_.data() + static_cast<std::size_t>(warp) * num_pages_;
  for (std::size_t page = pages.first; page < pages.end; ++page) {
    if (known[page].known != page_versions_[page] && !knows_page(warp, page)) return false;
  }
  return true;
}

// The same without examining cells: most writes are to pages that have just been written, and would find the cells as
// they were.
inline bool SharedShadow::has_known_pages(const Pages& pages, int warp) const {
  const KnownPage* const known = known_pages_.data() + static_cast<std::size_t>(warp) * num_pages_;
  for (std::size_t page = pages.first; page < pages.end; ++page) {
    if (known[page].known != page_versions_[page]) return false;
  }
  return true;
}

inline void SharedShadow::note_read(const Pages& pages, int reader, AccessNumber number) {
  AccessNumber* const last = last_read_.data() + static_cast<std::size_t>(reader) * num_pages_;
  std::fill(last + pages.first, last + pages.end, number);
}

inline bool SharedShadow::has_read_since(const Pages& pages, int reader, AccessNumber bound) const {
  const AccessNumber* const last = last_read_.data() + static_cast<std::size_t>(reader) * num_pages_;
  return std::any_of(last + pages.first, last + pages.end, [&](AccessNumber number) { return number >= bound; });
}

// Keeps what a whole warp has read, for later writes to compare with.
void SharedShadow::keep_read(const SharedAccess& access, AccessNumber number, AccessNumber synced) {
  std::vector<Read>& reads = reads_[static_cast<std::size_t>(access.warp)];
  if (reads.size() == kKeptReads) {
    // Reads that happened before whatever any warp does are no longer needed.
    AccessNumber bound = synced;
    for (int warp = 0; warp < num_warps_; ++warp) bound = std::min(bound, known_reads(warp, access.warp));
    // The reads that stay are separated from the previous one only by `synced`.
    const auto first = std::find_if(reads.begin(), reads.end(), [&](const Read& read) { return read.number >= bound; });
    if (first != reads.end()) bound = std::min(bound, first->synced);
    std::erase_if(reads, [&](const Read& read) { return read.number < bound; });
    if (reads.size() > kKeptReads / 2) enter_reads(access.warp);
  }
  reads.push_back({.number = number, .synced = synced, .placed = access.placed});
  if (!keeps_reads_) enter_reads(access.warp);
}

void SharedShadow::forget_patterns() {
  for (int warp = 0; warp < num_warps_; ++warp) enter_reads(warp);
}

void SharedShadow::enter_read(int warp, const Read& read) {
  const AccessPattern& pattern = *read.placed.pattern;
  lanes::read_cells(pattern.bytes >> shift_, readers(warp), read.placed.base, pattern.distinct.data(),
                    pattern.distinct_lanes.data(), pattern.num_distinct, shift_, read.synced << kLaneBits,
                    cell(read.number, 0));
}

void SharedShadow::enter_reads(int warp) {
  std::vector<Read>& reads = reads_[static_cast<std::size_t>(warp)];
  for (const Read& read : reads) enter_read(warp, read);
  reads.clear();
}

// The reads of a warp in this range, if there are any from `bound` on. Earlier reads are entered first: with a read,
// those before it at the same place are entered too.
void SharedShadow::enter_reads_in(Range range, int warp, AccessNumber bound) {
  std::vector<Read>& reads = reads_[static_cast<std::size_t>(warp)];
  if (reads.empty() || !has_read_since(pages_of(range), warp, std::max(bound, reads.front().number))) return;
  std::size_t entered = 0;
  for (auto read = reads.rbegin(); read != reads.rend() && (entered > 0 || read->number >= bound); ++read) {
    const std::uint32_t begin = read->placed.base, end = begin + read->placed.pattern->span;
    read->enters = begin < range.end && range.begin < end;
    if (!read->enters) continue;
    ++entered;
    range = {std::min(range.begin, begin), std::max(range.end, end)};
  }
  if (entered == 0) return;
  for (const Read& read : reads) {
    if (read.enters) enter_read(warp, read);
  }
  std::erase_if(reads, [](const Read& read) { return read.enters; });
}

// Writer cells from 1 up to the limit are ordered; 0, which means uninitialised, wraps around to the top.
void SharedShadow::check_reads(const SharedAccess& access, std::uint32_t limit) {
  const unsigned cells = cells_of(access);
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::size_t first = access.offsets[lane] >> shift_;
    const std::uint32_t* const writer = writers_.data() + first;
    for (unsigned i = 0; i < cells; ++i) {
      const std::uint32_t found = writer[i];
      if (i > 0 && found == writer[i - 1]) continue;
      if (access.peer == nullptr && (found - 1 < limit || known_to_warp(found, access.warp))) continue;
      const int by = access.as_lane >= 0 ? access.as_lane : lane;
      Conflict conflict{.lane = by, .offset = static_cast<std::uint32_t>((first + i) << shift_)};
      if (found == 0) {
        conflict.kind = Conflict::Kind::uninitialised;
      } else if ((found & kPending) != 0) {
        if (is_atomic_pending(found, access)) continue;
        describe_pending(found, conflict);
      } else if (known(found, access, by, false, -1, conflict)) {
        continue;
      } else {
        conflict.kind = Conflict::Kind::read_after_write;
      }
      report(access, conflict);
    }
  }
}

void SharedShadow::describe_pending(std::uint32_t cell, Conflict& conflict) const {
  conflict.kind = Conflict::Kind::pending_copy;
  conflict.other_lane = static_cast<int>(cell & 31);
  if (const Record* record = record_of((cell & ~kPending) >> kLaneBits)) {
    conflict.other_instruction = record->instruction;
    conflict.other_warp = record->warp;
    if (record->as_lane >= 0) conflict.other_lane = record->as_lane;
    conflict.other_rank = clocks_.rank_of_engine(record->engine);
  }
}

void SharedShadow::check_write(const SharedAccess& access, std::uint32_t unchanged, bool is_copy) {
  const Range range = range_of(access);
  const Pages pages = pages_of(range);
  if (access.mask != unchanged && (access.peer != nullptr || !has_known_pages(pages, access.warp))) {
    check_write_against(writers_.data(), known_before(access), -1, access, access.mask & ~unchanged, is_copy);
  }
  for (int reader = 0; reader < num_readers_; ++reader) {
    const bool of_peers = access.peer != nullptr || reader >= num_warps_;
    const AccessNumber bound = of_peers ? 1 : known_reads(access.warp, reader);
    if (!has_read_since(pages, reader, bound)) continue;  // everything that it has read there is ordered
    if (reader < num_warps_) enter_reads_in(range, reader, bound);
    check_write_against(readers(reader), bound, reader, access, access.mask, is_copy);
  }
}

// `cells`: the cells of the writers (reader < 0), or of one warp as a reader. All accesses below `bound` are ordered.
void SharedShadow::check_write_against(const std::uint32_t* cells, AccessNumber bound, int reader,
                                       const SharedAccess& access, std::uint32_t lanes, bool is_copy) {
  const std::uint32_t limit = bound << kLaneBits;
  const unsigned count = cells_of(access);
  if (access.mask == kAllLanes && !lanes::any_at_least(count, cells, access.offsets, shift_, limit)) {
    return;
  }
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::size_t first = access.offsets[lane] >> shift_;
    for (unsigned i = 0; i < count; ++i) {
      const std::uint32_t found = cells[first + i];
      if (found < limit || (i > 0 && found == cells[first + i - 1])) continue;
      const int by = access.as_lane >= 0 ? access.as_lane : lane;
      Conflict conflict{.lane = by, .offset = static_cast<std::uint32_t>((first + i) << shift_)};
      if ((found & kPending) != 0) {
        if (is_atomic_pending(found, access)) continue;
        describe_pending(found, conflict);
        conflict.kind = is_copy ? Conflict::Kind::overlapping_copies : Conflict::Kind::write_to_pending_copy;
      } else if (known(found, access, by, reader >= 0, reader, conflict)) {
        continue;
      } else {
        conflict.kind = reader >= 0 ? Conflict::Kind::write_after_read : Conflict::Kind::write_after_write;
      }
      report(access, conflict);
    }
  }
}

void SharedShadow::set_writers(const SharedAccess& access, std::uint32_t flags, AccessNumber number) {
  const Pages pages = pages_of(access);
  for (std::size_t page = pages.first; page < pages.end; ++page) ++page_versions_[page];
  const unsigned count = cells_of(access);
  if (access.mask == kAllLanes) {
    lanes::write_cells(count, writers_.data(), access.offsets, shift_, flags | cell(number, 0));
    return;
  }
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::uint32_t* const writer = writers_.data() + (access.offsets[lane] >> shift_);
    for (unsigned i = 0; i < count; ++i) writer[i] = flags | cell(number, lane);
  }
}

std::uint32_t SharedShadow::write(const SharedAccess& access, std::uint32_t unchanged) {
  check_write(access, unchanged);
  const AccessNumber number = add_record(access, access.peer != nullptr);
  set_writers(access, 0, number);
  return overwritten_lanes(access, 0, number);
}

std::uint32_t SharedShadow::overwritten_lanes(const SharedAccess& access, std::uint32_t flags,
                                              AccessNumber number) const {
  std::uint32_t overwritten = 0;
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (writers_[access.offsets[lane] >> shift_] != (flags | cell(number, lane))) overwritten |= 1u << lane;
  }
  return overwritten;
}

void SharedShadow::report_overwritten(const SharedAccess& access, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Conflict conflict{.kind = Conflict::Kind::write_after_write, .lane = lane, .offset = access.offsets[lane]};
    conflict.at_once = true;
    conflict.other_instruction = access.instruction;
    conflict.other_warp = access.warp;
    conflict.other_lane = static_cast<int>(writers_[access.offsets[lane] >> shift_] & 31);
    report(access, conflict);
  }
}

void SharedShadow::look_for_lost(const SharedAccess& access) {
  if (lost_) return;
  const auto writer_at = [&](int lane) { return writers_[access.offsets[lane] >> shift_]; };
  std::uint32_t unread = 0;  // lanes
  AccessNumber oldest = ~AccessNumber{0};
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t writer = writer_at(lane);
    const Record* record = (writer & kPending) != 0 ? nullptr : record_of(writer >> kLaneBits);
    if (record == nullptr || record->instruction != access.instruction) continue;
    unread |= 1u << lane;
    oldest = std::min(oldest, writer >> kLaneBits);
  }
  if (unread == 0) return;
  const Range range = range_of(access);
  // Removes the lanes for which f(lane), the time when the data that they overwrite were last read, is after those data
  // were written.
  const auto take_out = [&](auto f) {
    for (std::uint32_t rest = unread; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (f(lane) > writer_at(lane) >> kLaneBits) unread &= ~(1u << lane);
    }
  };
  for (int reader = 0; reader < num_readers_ && unread != 0; ++reader) {
    if (!has_read_since(pages_of(range), reader, oldest + 1)) continue;
    if (reader < num_warps_) {
      const std::vector<Read>& reads = reads_[static_cast<std::size_t>(reader)];
      for (auto read = reads.rbegin(); read != reads.rend() && read->number > oldest && unread != 0; ++read) {
        const std::uint32_t begin = read->placed.base, end = begin + read->placed.pattern->span;
        if (begin >= range.end || range.begin >= end) continue;
        take_out(
            [&](int lane) { return begin <= access.offsets[lane] && access.offsets[lane] < end ? read->number : 0; });
      }
    }
    take_out([&](int lane) { return readers(reader)[access.offsets[lane] >> shift_] >> kLaneBits; });
  }
  if (unread == 0) return;
  const int lane = std::countr_zero(unread);
  lost_ = {.access = access,
           .lane = lane,
           .offset = access.offsets[lane],
           .other_warp = record_of(writer_at(lane) >> kLaneBits)->warp};
}

void SharedShadow::issue_copy(const SharedAccess& access, bool checks) {
  if (checks) check_write(access, 0, true);
  set_writers(access, kPending, add_record(access, false));
}

void SharedShadow::complete_copy(const SharedAccess& access, bool async) {
  set_writers(access, 0, add_record(access, async));
}

void SharedShadow::check_async_read(const SharedAccess& access) {
  if (access.peer == nullptr && knows_pages(pages_of(access), access.warp)) return;
  SharedAccess written = access;
  if (access.as_lane < 0) {
    // wgmma: kernels may multiply uninitialised data, if that is simpler than a branch, and discard the product.
    for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (writers_[access.offsets[lane] >> shift_] == 0) written.mask &= ~(1u << lane);
    }
  }
  check_read(written);
}

void SharedShadow::complete_async_read(const SharedAccess& access, AccessNumber since) {
  const AccessNumber number = add_record(access, true);
  const Range range = range_of(access);
  reads_asynchronously_[static_cast<std::size_t>(access.warp)] = true;
  enter_reads_in(range, access.warp, 0);
  note_read(pages_of(range), access.warp, number);
  const unsigned cells = cells_of(access);
  const std::uint32_t from = since << kLaneBits;
  for (std::uint32_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::size_t first = access.offsets[lane] >> shift_;
    std::uint32_t* const read_by = readers(access.warp) + first;
    for (unsigned i = 0; i < cells; ++i) {
      const std::uint32_t writer = writers_[first + i];
      if (writer >= from && (i == 0 || writer != writers_[first + i - 1])) {
        Conflict conflict{.lane = std::max(access.as_lane, 0),
                          .offset = static_cast<std::uint32_t>((first + i) << shift_)};
        describe_pending(writer, conflict);
        conflict.kind = Conflict::Kind::written_during_read;
        sink_.report(access, conflict);
      }
      read_by[i] = cell(number, 0);
    }
  }
}

}  // namespace flash_ladder::emulator
