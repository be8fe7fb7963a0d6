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
  yielded,  // after a failed test_wait, a nanosleep or many loops: continues in the next round
  ended,
};

/// A cp.async that has been issued but is not complete: 32 copies of `bytes` bytes.
struct PendingCopy {
  std::int32_t instruction;
  std::uint64_t number;  // number among the warp's copies
  std::uint32_t mask;    // lanes whose copies are in flight
  std::uint8_t bytes;
  // For each lane in the mask:
  std::uint32_t group[kWarpSize];      // number of groups that it had committed before
  std::uint32_t to[kWarpSize];         // shared memory
  std::byte* from[kWarpSize];          // in host memory
  std::uint8_t from_bytes[kWarpSize];  // bytes that are read there; the rest is filled with zeros

  PendingCopy() {}  // avoids zeroing members that are filled in anyway
};

/// A completed wait of some lanes: for their own copies, or for a phase of an mbarrier.
struct EndedWait {
  std::int32_t instruction = -1;
  std::uint32_t lanes = 0;
  AccessNumber before = 0;  // accesses to shared memory with numbers from this one on came after it
  // cp.async.wait_group and wait_all: number of copies that the warp had issued, and how many of the newest groups the
  // wait leaves in flight.
  std::uint64_t copies_issued = 0;
  std::uint32_t newest_left = 0;
  // mbarrier.test_wait and try_wait:
  bool of_mbarrier = false;
  std::uint32_t address = 0;
  std::uint32_t parity = 0;
  std::uint32_t phases_ended = 0;  // so far
};

/// The state of a register that may be read before it is written.
struct UndefinedLanes {
  std::uint32_t lanes = 0;   // lanes in which it, or a value that it was computed from, is uninitialised
  std::int32_t origin = -1;  // the instruction that read the uninitialised value; -1: none yet
};

/// A snapshot of a warp when it yielded. If a later state is equal and no memory has changed in between, the warp will
/// repeat it for ever, unless another CTA changes memory. The state consists of the warp's position, and the registers
/// that decide its path and its memory accesses.
struct Snapshot {
  static constexpr unsigned kMostSlots = 64;  // between two snapshots: longer cycles are not recognised
  bool taken = false;
  std::uint64_t changes = 0;
  std::vector<std::byte> registers;
  std::int32_t pc = 0, reconverge = -1;
  std::uint32_t active = 0;
  std::size_t depth = 0;         // of the stack
  unsigned since = 0, next = 1;  // scheduling slots since this snapshot, and until the next one
  // Whether the instructions executed since then are recorded, which begins once no memory has changed between two
  // snapshots.
  bool records = false;
  std::vector<bool> executed;
};

struct Warp {
  std::byte* registers = nullptr;
  std::int32_t pc = 0;
  std::int32_t reconverge = -1;  // the active lanes wait there for the lanes from which they diverged
  std::uint32_t active = 0;
  std::uint32_t alive = 0;  // lanes that have not ended
  WarpStatus status = WarpStatus::ready;
  int index = 0;

  // Diverged lanes: which lanes continue, and where, once the lanes above them in the stack have reached `reconverge`
  // or ended.
  struct Parted {
    std::int32_t pc, reconverge;
    std::uint32_t mask;
    std::int32_t branch;  // where they diverged
    // They wait at a __syncwarp() for lanes named by this mask that are on another path; -1: they do not.
    std::int32_t sync = -1;
    std::uint32_t sync_mask = 0;
  };
  std::vector<Parted> stack;

  // The mbarrier whose phase was not complete when the warp last tested it.
  struct FailedWait {
    std::int32_t instruction = -1;  // -1: it was complete, or the warp has never tested
    std::uint32_t address = 0;
    std::uint32_t lanes = 0;
  };
  FailedWait failed_wait;
  // Its last arrival at an mbarrier of the CTA, for reports of deadlocks.
  struct Arrival {
    std::int32_t instruction = -1;  // -1: it has never arrived
    std::uint32_t address = 0;
  };
  Arrival last_arrival;
  /// Whether the failed test was its last instruction.
  bool tested_mbarrier() const { return failed_wait.instruction >= 0 && failed_wait.instruction == pc - 1; }

  Snapshot snapshot;
  // The warp is in a cycle that only a change of memory can end, and memory has not changed since the counter was
  // `stuck_at`.
  bool stuck = false;
  bool has_been_stuck = false;
  std::uint64_t stuck_at = 0;
  std::uint64_t tried_at = 0;  // when lanes last yielded to others of the warp,
  unsigned tried = 0;          // and how often, without a change of memory
  bool has_yielded = false;    // so that lanes can reach a barrier one after another
  unsigned waited = 0;         // slots that ended in a loop that may be waiting, without a return to an earlier state

  // The barrier of the cluster: lanes that have arrived and wait for others to arrive, lanes whose phase is complete
  // but that have not waited yet, and lanes that wait.
  struct AtCluster {
    std::uint32_t arrived = 0, passed = 0, waiting = 0;
    std::int32_t instruction = -1;  // the waiting instruction
    Clock fenced;                   // the knowledge of the lanes at their last fence; empty without one or without a
                                    // cluster
  };
  AtCluster cluster;

  std::uint32_t waited_for_kernel_ahead = 0;  // lanes that have executed griddepcontrol.wait

  std::uint64_t executed = 0;       // instructions: %clock
  std::vector<PendingCopy> copies;  // oldest first
  std::uint64_t copies_issued = 0;
  std::uint32_t groups[kWarpSize] = {};  // committed so far, per lane

  // For findings: the latest waits, oldest first. Empty if races are not checked.
  static constexpr std::size_t kKeptWaits = 64;
  std::deque<EndedWait> waits;
  void note_wait(const EndedWait& wait) {
    if (waits.size() == kKeptWaits) waits.pop_front();
    waits.push_back(wait);
  }

  // What it has done so far beside computing, for Report::roles.
  struct Work {
    bool loads = false, multiplies = false, stores = false;  // by TMA, by wgmma, by TMA
  };
  Work work;

  std::vector<UndefinedLanes> undefined;  // by number (WatchedOperands); empty without checks
};

}  // namespace flash_ladder::emulator
