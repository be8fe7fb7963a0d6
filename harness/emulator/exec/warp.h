// The state of one warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

enum class WarpStatus : std::uint8_t {
  ready,
  waiting,  // at a barrier
  yielded,  // after a failed test_wait, a nanosleep or many loops: goes on in the next round
  ended,
};

/// A cp.async that has been issued and not completed: 32 copies of `bytes` bytes.
struct PendingCopy {
  std::int32_t instruction;
  std::uint64_t number;  // of the warp's copies
  std::uint32_t mask;    // lanes whose copies are under way
  std::uint8_t bytes;
  // Of each lane in the mask:
  std::uint32_t group[kWarpSize];      // how many groups it had committed before
  std::uint32_t to[kWarpSize];         // shared memory
  std::byte* from[kWarpSize];          // in host memory
  std::uint8_t from_bytes[kWarpSize];  // that are read there; the rest is filled with zeros

  PendingCopy() {}  // so that what is filled in anyway is not filled with zeros before
};

/// A wait of some lanes that has come to its end: for their own copies, or for a phase of an mbarrier.
struct EndedWait {
  std::int32_t instruction = -1;
  std::uint32_t lanes = 0;
  AccessNumber before = 0;  // numbers of accesses to shared memory from here on came after it
  // cp.async.wait_group and wait_all: copies of the warp that had been issued, and how many of the newest groups it leaves.
  std::uint64_t copies_issued = 0;
  std::uint32_t newest_left = 0;
  // mbarrier.test_wait and try_wait:
  bool of_mbarrier = false;
  std::uint32_t address = 0;
  std::uint32_t parity = 0;
  std::uint32_t phases_ended = 0;  // so far
};

/// Of a register that may be read before anything has written it.
struct UndefinedLanes {
  std::uint32_t lanes = 0;   // in which nothing has, or what it was computed from
  std::int32_t origin = -1;  // the instruction that read what was never written, -1: none has yet
};

/// What a warp looked like when it gave way. If it looks the same later and no memory has changed in between, it will look the same
/// for ever, unless another CTA changes memory. What it looks like is where it is, and the registers that decide where it goes and
/// what it does to memory.
struct Turn {
  static constexpr unsigned kMostTurns = 64;  // between two snapshots: a longer cycle is not recognised
  bool taken = false;
  std::uint64_t changes = 0;
  std::vector<std::byte> registers;
  std::int32_t pc = 0, reconverge = -1;
  std::uint32_t active = 0;
  std::size_t depth = 0;         // of the stack
  unsigned since = 0, next = 1;  // turns since this snapshot, and after how many the next one is taken
  // Which instructions it has executed since, if that is written down: once no memory has changed between two snapshots.
  bool records = false;
  std::vector<bool> executed;
};

struct Warp {
  std::byte* registers = nullptr;
  std::int32_t pc = 0;
  std::int32_t reconverge = -1;  // the active lanes wait there for those that they parted from
  std::uint32_t active = 0;
  std::uint32_t alive = 0;  // lanes that have not ended
  WarpStatus status = WarpStatus::ready;
  int index = 0;

  // Lanes that have parted: who goes on where, once the lanes above in the stack have reached `reconverge` or ended.
  struct Parted {
    std::int32_t pc, reconverge;
    std::uint32_t mask;
    std::int32_t branch;  // where they parted
    // They wait at a __syncwarp() for others that this mask names, which are on another way; -1: they do not.
    std::int32_t sync = -1;
    std::uint32_t sync_mask = 0;
  };
  std::vector<Parted> stack;

  // The mbarrier whose phase was not complete when the warp last asked.
  struct FailedWait {
    std::int32_t instruction = -1;  // -1: it was, or the warp never asked
    std::uint32_t address = 0;
    std::uint32_t lanes = 0;
  };
  FailedWait failed_wait;
  // Its last arrival at an mbarrier of the CTA, for a deadlock.
  struct Arrival {
    std::int32_t instruction = -1;  // -1: it has never arrived
    std::uint32_t address = 0;
  };
  Arrival last_arrival;
  /// Whether that was the last thing that it did.
  bool asked_mbarrier() const { return failed_wait.instruction >= 0 && failed_wait.instruction == pc - 1; }

  Turn turn;
  // The warp goes round in a circle that nothing but a change of memory ends, and none has come since there were `stuck_at` of them.
  bool stuck = false;
  bool has_been_stuck = false;
  std::uint64_t stuck_at = 0;
  std::uint64_t tried_at = 0;  // when lanes last gave way to others of the warp,
  unsigned tried = 0;          // and how often, without a change of memory
  bool gave_way = false;       // so that lanes may come to a barrier one after the other
  unsigned waited = 0;         // turns that ended in a loop which may wait, and without coming back to where it was

  // The barrier of the cluster: lanes that have arrived and wait for others to do so, those for which all have and that have not
  // waited yet, and those that wait.
  struct AtCluster {
    std::uint32_t arrived = 0, passed = 0, waiting = 0;
    std::int32_t instruction = -1;  // that waits
    Clock fenced;                   // what lanes knew at their last fence; empty if there was none, or the CTA is alone
  };
  AtCluster cluster;

  std::uint64_t executed = 0;       // instructions: %clock
  std::vector<PendingCopy> copies;  // oldest first
  std::uint64_t copies_issued = 0;
  std::uint32_t groups[kWarpSize] = {};  // committed so far, per lane

  // For findings: the latest of them, oldest first. Empty where nobody looks for races.
  static constexpr std::size_t kKeptWaits = 64;
  std::deque<EndedWait> waits;
  void note_wait(const EndedWait& wait) {
    if (waits.size() == kKeptWaits) waits.pop_front();
    waits.push_back(wait);
  }

  std::vector<UndefinedLanes> undefined;  // by number (WatchedOperands); empty without checks
};

}  // namespace flash_ladder::emulator
