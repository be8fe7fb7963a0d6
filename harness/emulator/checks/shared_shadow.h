// What is known about every byte of shared memory: which thread wrote it last, and which have read it since. Finds
// reads of uninitialised memory, reads of memory that a cp.async has yet to write, and races (with the FastTrack
// method: Flanagan and Freund, PLDI 2009).
//
// Memory is divided into granules as large as the smallest access of the kernel. Each granule has a cell for its last
// writer and one per warp for its last reader. A cell is one word: the number of the access, whether several lanes of
// the warp read it, and the lane.
//
// Most accesses are by whole warps and in order, and are not examined cell by cell. A page is a range of some hundred
// cells. For each warp and page it is known whether all writes in the page happened before what the warp does (until
// the page is written again), and which of the warp's accesses read there last. What a warp has read is stored in cells
// only when a write follows that it may conflict with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/lanes/lane_table.h"
#include "emulator/memory/strength.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {

/// An access that conflicts with an earlier one.
struct Conflict {
  enum class Kind : std::uint8_t {
    uninitialised,  // a read of uninitialised memory
    pending_copy,   // a read of memory that a copy has yet to write
    write_to_pending_copy,
    overlapping_copies,  // a copy to memory that another copy in flight also writes
    read_after_write,    // races: the access is not ordered after the earlier one
    write_after_read,
    write_after_write,
    written_during_read,  // here the other access is the later one: a write while wgmma or TMA was reading
  };
  Kind kind{};
  int lane = 0;                         // of the access
  std::uint32_t offset = 0;             // of the first granule concerned
  std::int32_t other_instruction = -1;  // the instruction of the earlier access; -1 if it is no longer known
  int other_warp = -1;
  int other_lane = -1;
  bool at_once = false;                        // two lanes of one warp instruction
  std::optional<std::size_t> other_rank = {};  // of the earlier access, if it is one of another CTA of the cluster
  AccessNumber other_number = 0;               // number of a read that a thread made itself; 0: it is not such a read
};

class ConflictSink;

/// A warp that accesses the shared memory of another CTA of the cluster. Lanes of one warp are not distinguished there.
struct PeerAccess {
  const Clock& clock;  // the combined knowledge of the lanes
  std::size_t block;   // where the block of that other CTA begins in it
  int engine;          // the engine that represents the warp there
  std::size_t rank;    // of the CTA that makes the access
  std::size_t owner;   // of the CTA whose memory it is
  ConflictSink& sink;  // receives the conflicts
};

/// The access of one warp instruction to shared memory.
struct SharedAccess {
  int warp;
  std::int32_t instruction;
  Strength strength;
  std::uint32_t mask;
  unsigned bytes;                    // per lane
  const std::uint32_t* offsets;      // of each lane, checked and aligned; may be null if there is a pattern
  int as_lane = -1;                  // not -1: all of it is done by this lane, which requested it from a copy engine
  int engine = -1;                   // not -1: and completed by this engine (clocks.h)
  const PeerAccess* peer = nullptr;  // not null: by a warp of another CTA
  PlacedPattern placed = {};         // the same offsets, if a whole warp makes the access in a known pattern
};

/// Receives the conflicts, and keeps the clocks of barriers.
class ConflictSink {
 public:
  virtual ~ConflictSink() = default;
  virtual void report(const SharedAccess& access, const Conflict& conflict) = 0;
  virtual void renumber(const Renumbering& renumbering) = 0;
};

class SharedShadow {
 public:
  /// `granule` is 1, 2, 4, 8 or 16 bytes.
  SharedShadow(std::size_t shared_bytes, int granule, int num_warps, Clocks& clocks, ConflictSink& sink,
               int num_engines = 0);

  /// Resets everything to its state at the start of a CTA.
  void reset();
  /// The CTA, and its Clocks, belong to a cluster of this size.
  void join_cluster(std::size_t size);

  void read(const SharedAccess& access);
  /// Must be called before the patterns of earlier reads are destroyed.
  void forget_patterns();
  /// `unchanged`: lanes that write the value that is already there. That is not a race with the previous write, as when
  /// several threads set the same flag; but it is a race with reads, because only these values hide the missing order.
  /// Returns the lanes whose data another lane of the same instruction overwrites.
  std::uint32_t write(const SharedAccess& access, std::uint32_t unchanged);
  /// Reports those of the lanes that wrote a different value.
  void report_overwritten(const SharedAccess& access, std::uint32_t lanes);
  /// A cp.async, or a copy that an mbarrier completes, is issued: a write whose time is not known yet.
  void issue_copy(const SharedAccess& access, bool checks = true);
  /// For the copy issued last: the lanes whose data another lane of the same instruction overwrites.
  std::uint32_t overwritten_in_copy(const SharedAccess& access) const {
    return overwritten_lanes(access, kPending, clocks_.next() - 1);
  }
  /// The same for a read that does not need to be recorded.
  void check_read(const SharedAccess& access) {
    check_reads(access, (clocks_.known_to_warp(access.warp) << kLaneBits) - 1);
  }
  /// Checks whether the present write, by an instruction that has written there before, is the first to overwrite data that
  /// no thread has read. Most programs do that somewhere, and correctly so; in a ring of buffers that is stuck it explains
  /// the cause. (For reads that are not in cells yet, everything between the first byte and the last counts as read.)
  void look_for_lost(const SharedAccess& access);
  struct Lost {
    SharedAccess access;  // its offsets are no longer valid
    int lane;
    std::uint32_t offset;
    int other_warp;
  };
  const std::optional<Lost>& lost() const { return lost_; }
  /// The copy has completed, through a wait of the lanes that issued it or through an mbarrier (`async`).
  void complete_copy(const SharedAccess& access, bool async);

  /// A read through the asynchronous proxy begins: its lane must know about everything that was written before.
  void check_async_read(const SharedAccess& access);
  /// The read has ended, on behalf of the warp's asynchronous copies: accesses that wrote there with numbers from
  /// `since` on, the number when it began, did so while it was in flight.
  void complete_async_read(const SharedAccess& access, AccessNumber since);

  Clocks& clocks() { return clocks_; }

 private:
  struct Record {
    std::int32_t instruction;
    std::uint16_t warp;
    Strength strength;
    bool async;
    std::int8_t as_lane;
    std::int16_t engine;
  };
  // A number that is not an access: the end of an epoch (Clocks).
  static constexpr Record kNoAccess{
      .instruction = -1, .warp = 0, .strength = kWeak, .async = false, .as_lane = -1, .engine = -1};

  static constexpr std::uint32_t kPending = 0x80000000u;
  static constexpr std::uint32_t kSeveralLanes = 0x20;
  static constexpr int kLaneBits = 6;                 // with kSeveralLanes
  static constexpr AccessNumber kNumbers = 1u << 25;  // as many as fit in a cell

  // What whole warps have read and is not yet in readers_.
  struct Read {
    AccessNumber number, synced;
    PlacedPattern placed;
    bool enters = false;
  };

  static std::uint32_t cell(AccessNumber number, int lane) {
    return (number << kLaneBits) | static_cast<std::uint32_t>(lane);
  }
  unsigned cells_of(const SharedAccess& access) const { return access.bytes >> shift_; }
  void check_reads(const SharedAccess& access, std::uint32_t limit);
  // The range of an access including the gaps: bytes, and pages.
  struct Range {
    std::uint32_t begin, end;
  };
  Range range_of(const SharedAccess& access) const;
  struct Pages {
    std::size_t first, end;
  };
  static Pages pages_of(const Range& range) {
    return {range.begin >> kPageShift, range.end == range.begin ? 0 : ((range.end - 1) >> kPageShift) + 1};
  }
  Pages pages_of(const SharedAccess& access) const { return pages_of(range_of(access)); }
  bool knows_page(int warp, std::size_t page);
  bool knows_pages(const Pages& pages, int warp);
  bool has_known_pages(const Pages& pages, int warp) const;
  void note_read(const Pages& pages, int reader, AccessNumber number);
  bool has_read_since(const Pages& pages, int reader, AccessNumber bound) const;
  void enter_read(int warp, const Read& read);
  void enter_reads(int warp);
  void keep_read(const SharedAccess& access, AccessNumber number, AccessNumber synced);
  void enter_reads_in(Range range, int warp, AccessNumber bound);
  AccessNumber add_record(const SharedAccess& access, bool async);
  // Memory and numbers are limited: discards the records of accesses that are no longer the last in any cell, and their
  // numbers.
  void renumber();
  const Record* record_of(AccessNumber number) const;
  bool known(std::uint32_t cell, const SharedAccess& access, int lane, bool by_reader, int reader,
             Conflict& conflict) const;
  bool known_to_warp(std::uint32_t cell, int warp);
  bool known_to_peer(const PeerAccess& peer, std::uint32_t cell, const Record& record, int other) const;
  // All reads of `reader` below this number happened before whatever the warp does.
  AccessNumber known_reads(int warp, int reader) const {
    if (reader == warp) return clocks_.synced_in_warp(warp);
    return reads_asynchronously_[static_cast<std::size_t>(reader)] ? clocks_.known_of_warp(warp, reader)
                                                                   : clocks_.known_of_lanes(warp, reader);
  }
  // The row of readers_ for the origin of the access: a warp, or the whole of another CTA.
  int reader_of(const SharedAccess& access) const {
    return access.peer == nullptr ? access.warp : num_warps_ + static_cast<int>(access.peer->rank);
  }
  // All accesses below this number happened before this one.
  AccessNumber known_before(const SharedAccess& access) const {
    return access.peer == nullptr ? clocks_.known_to_warp(access.warp) : 0;
  }
  void report(const SharedAccess& access, const Conflict& conflict) {
    (access.peer == nullptr ? sink_ : access.peer->sink).report(access, conflict);
  }
  std::uint32_t* readers(int warp) { return readers_.data() + static_cast<std::size_t>(warp) * num_cells_; }
  void describe_pending(std::uint32_t cell, Conflict& conflict) const;
  std::uint32_t overwritten_lanes(const SharedAccess& access, std::uint32_t flags, AccessNumber number) const;
  // Atomic operations, of which one is in flight (red.async), do not race with each other.
  bool is_atomic_pending(std::uint32_t cell, const SharedAccess& access) const {
    const Record* const record = record_of((cell & ~kPending) >> kLaneBits);
    return record != nullptr && !can_race(access.strength, record->strength, false);
  }
  void check_write(const SharedAccess& access, std::uint32_t unchanged, bool is_copy = false);
  void check_write_against(const std::uint32_t* cells, AccessNumber bound, int reader, const SharedAccess& access,
                           std::uint32_t lanes, bool is_copy);
  void set_writers(const SharedAccess& access, std::uint32_t flags, AccessNumber number);

  ConflictSink& sink_;
  int shift_;  // log2 of the granule
  int num_warps_, num_engines_;
  int num_readers_;  // rows of readers_: the CTA's warps, followed by the CTAs of its cluster
  std::size_t num_cells_;
  std::vector<std::uint32_t> writers_, readers_;

  static constexpr int kPageShift = 10;
  std::size_t num_pages_;
  std::vector<std::uint32_t> page_versions_;  // counts writes to them
  // The writers of the present contents, if these are few writes that have all happened.
  struct PageWriters {
    static constexpr std::uint32_t kMost = 16, kMore = kMost + 1;
    std::uint32_t version = 0;
    std::uint32_t count = 0;
    AccessNumber numbers[kMost];
  };
  const PageWriters& writers_of_page(std::size_t page);
  std::vector<PageWriters> page_writers_;
  struct KnownPage {            // what a warp knows about a page
    std::uint32_t known = 0;    // the version whose writes all happened before what the warp does
    std::uint32_t unknown = 0;  // the version for which this did not hold,
    AccessNumber bound = 0;     // when the warp knew all accesses below this
  };
  std::vector<KnownPage> known_pages_;   // [warp][page]
  std::vector<AccessNumber> last_read_;  // [reader][page]
  static constexpr std::size_t kKeptReads = 1024;
  bool keeps_reads_ = true;
  std::vector<bool> reads_asynchronously_;  // [warp]
  std::vector<std::vector<Read>> reads_;    // [warp], in order of time
  // For each warp, accesses that happened before whatever it does: the last one whose number has this remainder. Warps
  // that run out of step have such accesses, and many that are later than those of slower warps, so that no single
  // bound separates them.
  static constexpr std::size_t kRemembered = 256;
  std::vector<AccessNumber> remembered_;
  Clocks& clocks_;
  std::optional<Lost> lost_;
  std::vector<Record> records_;  // for the access numbers from first_record_ on
  std::size_t most_records_;
  AccessNumber first_record_ = 1;
};

}  // namespace flash_ladder::emulator
