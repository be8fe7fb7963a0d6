// Records the accesses to global memory while CTAs run: which thread wrote a granule last, and which threads have read
// it since. It finds races between the threads of a CTA; between the CTAs of a cluster, which run in turn; and between
// all CTAs if they can communicate, in which case they run one at a time. (For CTAs that cannot communicate, see
// block_races.h.)
//
// Like shared_shadow.h, but in pages that are created on first access. A cell is a word: the record of the access,
// whether several lanes of the warp read it, and the lane. Of the readers, only the last one and the last one of
// another warp are stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/checks/ordering.h"
#include "emulator/memory.h"
#include "emulator/memory/strength.h"

namespace flash_ladder::emulator {

/// The access of one warp instruction to global memory.
struct GlobalAccess {
  std::uint32_t cta;
  int warp;
  std::int32_t instruction;
  Strength strength;
  std::uint32_t mask;
  unsigned bytes;                  // per lane
  const std::uint64_t* addresses;  // of each lane, checked and aligned
  bool consecutive = false;        // all lanes take part, and their accesses are adjacent, in order of lanes
};

/// An access that is not ordered after an earlier one.
struct GlobalConflict {
  enum class Kind : std::uint8_t { read_after_write, write_after_read, write_after_write };
  Kind kind{};
  int lane = 0;
  Address address = 0;
  std::uint32_t other_cta = 0;
  std::int32_t other_instruction = -1;
  int other_warp = -1;
  int other_lane = -1;
  bool at_once = false;  // two lanes of one warp instruction
};

class GlobalConflictSink {
 public:
  virtual ~GlobalConflictSink() = default;
  virtual void report(const GlobalAccess& access, const GlobalConflict& conflict) = 0;
};

/// The accesses of a CTA to global memory, by lines of 128 bytes: which instructions made them, and what was written.
struct MemoryUse {
  static constexpr std::size_t kLineBytes = 128;
  static constexpr std::int32_t kNothing = -1, kMixed = -2;
  struct Line {
    Address address = 0;
    std::int32_t read = kNothing, write = kNothing;  // the instruction that accessed all of its granules; or kMixed:
    std::uint32_t reads = 0, writes = 0;             // where the instructions for each granule begin in `mixed`
    std::uint32_t written = 0;                       // where its bytes begin in `written`, if anything was written
  };
  std::vector<Line> lines;  // by address
  std::vector<std::int32_t> mixed;
  std::vector<std::byte> written;
};

class GlobalShadow {
 public:
  enum class Of : std::uint8_t {
    cta,      // one CTA after another
    cluster,  // races between the CTAs of a cluster, one cluster after another, but not races inside a CTA
    launch,   // all CTAs, which run one at a time
  };
  /// `granule` is 1, 2, 4 or 8 bytes.
  GlobalShadow(int granule, Of of);

  /// Resets everything to its state at the start of a CTA, of a cluster, or of the launch.
  void reset();
  void read(const GlobalAccess& access, Ordering& ordering, GlobalConflictSink& sink);
  /// `unchanged`: lanes that write the value that is already there, which is not a race with the previous write.
  /// Returns the lanes whose data another lane of the same instruction overwrites.
  std::uint32_t write(const GlobalAccess& access, std::uint32_t unchanged, Ordering& ordering,
                      GlobalConflictSink& sink);
  /// A write to memory that certainly has not been accessed before; if it may have been, returns false and records nothing.
  bool write_untouched(const GlobalAccess& access, Ordering& ordering);
  /// Reports those of the lanes that wrote a different value.
  void report_overwritten(const GlobalAccess& access, std::uint32_t lanes, GlobalConflictSink& sink);
  /// The places that keep what each lane writes until it is compared with other CTAs' writes, because by then another
  /// CTA may have overwritten the memory; false if nothing is kept.
  bool kept_at(const GlobalAccess& access, std::byte** places);
  /// Returns the accesses of the CTA, by address, and resets.
  MemoryUse take_use();

  int granule() const { return 1 << shift_; }

 private:
  static constexpr int kPageShift = 10;
  static constexpr std::size_t kPageBytes = std::size_t{1} << kPageShift;
  static constexpr int kLaneBits = 6;                   // with kSeveralLanes
  static constexpr std::uint32_t kSeveralLanes = 0x20;  // for a reader
  static constexpr std::uint32_t kReadBefore = 0x20;    // for a writer: the CTA had read the granule before it wrote it
  static constexpr std::uint32_t kRecords = (1u << 26) - 1;

  struct Record {
    std::uint32_t cta, epoch;
    std::int32_t instruction;
    std::uint16_t warp;
    Strength strength;
  };
  struct Page {
    std::uint32_t *writers, *readers, *other_readers;
    std::uint32_t* written_in;  // the generation of the last write to it
    std::byte* written;
  };
  struct Slot {
    Address page = 0;
    std::uint32_t number = 0;
    std::uint32_t generation = 0;  // if it is not the present one, the slot is free
  };

  static std::uint32_t cell(std::uint32_t record, int lane) {
    return (record << kLaneBits) | static_cast<std::uint32_t>(lane);
  }
  const Record& record_of(std::uint32_t cell) const { return records_[(cell >> kLaneBits) - first_]; }
  const Page& page_of(Address address) {
    const Address wanted = address >> kPageShift;
    RecentPage& recent = recent_pages_[hash_of(wanted) % recent_pages_.size()];
    if (recent.address != wanted) recent = {.address = wanted, .page = page(page_number(wanted))};
    return recent.page;
  }
  static std::size_t hash_of(Address page) { return (page * 0x9e3779b97f4a7c15u) >> 40; }
  // The cells of a consecutive access; empty if the access is not consecutive, is not within one page, or has several
  // lanes per granule.
  struct Cells {
    Page page;
    std::size_t first = 0, count = 0;
  };
  Cells cells_of(const GlobalAccess& access);
  static void fill(std::uint32_t* cells, std::size_t count, std::uint32_t record);
  std::uint32_t page_number(Address page);
  Page page(std::uint32_t number) const;
  bool stale(std::uint32_t cell) const { return (cell >> kLaneBits) < first_; }
  // Whether the access in a cell happened before, or cannot conflict.
  bool known(std::uint32_t cell, const GlobalAccess& access, int lane, Ordering& ordering);
  bool begin(const GlobalAccess& access, Ordering& ordering, std::uint32_t& record);
  bool read_consecutive(const GlobalAccess& access, std::uint32_t record);
  void note_reader(std::uint32_t& reader, std::uint32_t& other_reader, std::uint32_t own, const GlobalAccess& access,
                   Ordering& ordering) const;
  void report(std::uint32_t cell, GlobalConflict::Kind kind, const GlobalAccess& access, int lane, Address address,
              GlobalConflictSink& sink, bool at_once = false) const;

  const int shift_;
  const Of of_;
  const std::size_t cells_;  // of a page
  std::vector<Slot> table_;
  std::uint32_t generation_ = 1;
  std::vector<std::unique_ptr<std::uint32_t[]>> pages_;
  std::vector<Address> used_;  // their addresses, as far as the pages are in use
  // Recently accessed pages: the accesses of a warp's lanes fall into few pages, but neighbouring lanes often alternate
  // between them.
  struct RecentPage {
    Address address = ~Address{0};
    Page page{};
  };
  std::array<RecentPage, 64> recent_pages_{};
  std::vector<Record> records_;
  std::uint32_t first_ = 1;  // the number of records_[0]; cells of records before it are stale
  std::array<std::uint32_t, 64> recent_{};
  bool full_ = false;
  // For the current access: everything that the threads of this CTA did up to this epoch happened before.
  struct {
    std::uint32_t cta = 0, epochs = 0;
  } ordered_{};
};

}  // namespace flash_ladder::emulator
