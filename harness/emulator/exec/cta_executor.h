// Runs the CTAs of a launch, one after another, on one host thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulator/checks/findings.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/counting.h"
#include "emulator/exec/warp.h"
#include "emulator/launch.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {

/// What all CTAs of a launch share; does not change while they run.
struct LaunchContext {
  const CompiledKernel& kernel;
  const LaunchConfig& config;
  const Memory& memory;
  const Options& options;
  std::vector<Allocation> allocations;  // by address
};

/// Memory aligned to cache lines, zero to begin with.
class AlignedBytes {
 public:
  void resize(std::size_t size);
  std::byte* data() { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// "warp 3", "warps 0–2 and 5"
std::string list_of_warps(const std::vector<int>& warps);

class CtaExecutor : public ConflictSink {
 public:
  explicit CtaExecutor(const LaunchContext& context);

  /// Runs one CTA to its end. False if it had to be stopped: an endless loop or a deadlock, which is then among the findings.
  bool run(const Dim3& cta);

  InstructionCounters& counters() { return counters_; }
  std::vector<RawFinding> take_findings() { return findings_.take(); }
  std::string take_output() { return std::exchange(output_, {}); }

 private:
  // A CTA-wide or named barrier.
  struct Barrier {
    std::uint32_t arrived = 0;      // threads
    std::uint32_t expected = 0;     // of the barrier that is being waited for; 0: all threads that have not ended
    std::uint32_t waiting = 0;      // warps
    std::int32_t instruction = -1;  // the first that arrived
    std::uint32_t ones = 0;         // bar.red: threads whose predicate is true
    std::uint32_t voters = 0;       // bar.red: threads
    std::array<std::int32_t, 32> reduction{};  // of each waiting warp: its bar.red, or -1
    Clock clock;                               // what those that arrived knew
  };

  struct Mbarrier {
    std::uint32_t address = 0;
    std::uint32_t count = 0;     // arrivals that the next phase expects
    std::uint32_t expected = 0;  // that this phase expects in all
    std::uint32_t pending = 0;   // that it still expects
    std::uint32_t phase = 0;
    struct AsyncArrival {  // cp.async.mbarrier.arrive: happens when the copies that the lanes had issued are complete
      int warp;
      std::uint32_t mask;
      std::uint64_t issued;  // how many copies the warp had issued
      bool counts;           // .noinc: it is one of the arrivals that the barrier was initialised for
    };
    std::vector<AsyncArrival> async;
    Clock arriving, completed;  // what those knew that arrived in this phase, in the phases before
  };

  // cta_executor.cpp
  void start(const Dim3& cta);
  void fill_uniforms(const Dim3& cta);
  void run_warp(Warp& warp);
  void reconverge(Warp& warp);
  void part(Warp& warp, const Instruction& instruction, std::uint32_t taken);
  void branch_by_table(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void end_lanes(Warp& warp, std::uint32_t mask);
  int num_warps() const { return static_cast<int>(warps_.size()); }

  // execute_memory.cpp
  void load(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void store(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void atomic(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void ldmatrix(Warp& warp, const Instruction& instruction, std::uint32_t mask);

  // execute_copies.cpp
  void copy_async(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void commit_copies(Warp& warp, std::uint32_t mask);
  void wait_for_copies(Warp& warp, std::uint32_t mask, std::uint32_t newest_left);
  void wait_for_all_copies(Warp& warp, std::uint32_t mask);
  void complete(Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier);

  // execute_barriers.cpp
  bool barrier(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void release(Barrier& barrier);
  void check_all_came(const Barrier& barrier);
  void check_barriers();  // after lanes have ended: barriers may have got all that they wait for
  bool mbarrier(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void arrive_when_copied(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  Mbarrier* find_mbarrier(Warp& warp, const Instruction& instruction, int lane, std::uint32_t address);
  void arrive(Mbarrier& barrier, std::uint32_t count);
  void note_mbarrier_access(Warp& warp, const Instruction& instruction, std::uint32_t lanes,
                            const std::uint32_t* offsets);
  void complete_async_arrivals(Mbarrier& barrier);

  // deadlock.cpp
  void report_deadlock();
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;
  std::string describe_parting(const Warp& warp, std::uint32_t lanes) const;

  // execute_exchange.cpp
  void shuffle(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void vote(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void match(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void reduce(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void warp_barrier(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void check_all_lanes(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  template <typename F>
  void for_each_group(Warp& warp, const Instruction& instruction, std::uint32_t mask, std::int32_t members, F f);
  void check_group(Warp& warp, const Instruction& instruction, std::uint32_t mask, std::uint32_t lanes,
                   std::uint32_t named);
  static void give(Warp& warp, const Instruction& instruction, std::uint32_t lanes, std::uint32_t value);

  // definedness.cpp
  void follow_undefined(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  UndefinedLanes undefined_sources(const Warp& warp, const Instruction& instruction, std::size_t first,
                                   std::size_t last, std::uint32_t mask) const;
  void set_undefined(Warp& warp, const Instruction& instruction, std::size_t k, std::uint32_t mask,
                     const UndefinedLanes& to);
  void report_undefined(Warp& warp, const Instruction& instruction, const UndefinedLanes& found, const char* use);
  bool watches(const Warp& warp, const Instruction& instruction) const {
    return instruction.watched >= 0 && !warp.undefined.empty();
  }

  // execute_print.cpp
  void print(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void trap(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  std::string string_at(Address address) const;

  // Memory, execute_memory.cpp.
  bool whole_warp_offsets(const Warp& warp, const Instruction& instruction, std::int32_t reg, std::uint32_t mask,
                          unsigned bytes, std::uint32_t* offsets) const;
  bool load_shared(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  struct LaneAddresses {
    alignas(64) std::array<std::uint64_t, kWarpSize> at;
  };
  void addresses(const Warp& warp, const Instruction& instruction, std::int32_t reg, LaneAddresses& to) const;
  std::uint32_t check_shared(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                             unsigned bytes, std::uint32_t* offsets);
  std::uint32_t check_local(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                            unsigned bytes);
  std::uint32_t check_global(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                             unsigned bytes, std::byte** host);
  const Allocation* find_allocation(Address address);
  void check_initialised(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                         unsigned bytes);
  void mark_initialised(const LaneAddresses& at, std::uint32_t mask, unsigned bytes);
  void check_local_initialised(Warp& warp, const Instruction& instruction, std::uint32_t mask, unsigned bytes,
                               std::byte* const* host);
  void local_addresses(const Warp& warp, const LaneAddresses& at, std::uint32_t mask, std::byte** host);
  template <typename F>
  void for_each_space(const Instruction& instruction, LaneAddresses& at, std::uint32_t mask, F f);
  std::byte* local_address(const Warp& warp, int lane, std::uint64_t address);
  std::int32_t index_of(const Instruction& instruction) const {
    return static_cast<std::int32_t>(&instruction - context_.kernel.code.data());
  }

  // Findings.
  void report(const SharedAccess& access, const Conflict& conflict) override;
  void renumber(const Renumbering& renumbering) override;
  RawFinding describe(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
                      std::optional<Address> address, const std::string& message) const;
  std::int32_t place_of(std::int32_t instruction) const;
  SourcePosition position_of(std::int32_t instruction) const;
  void find(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
            std::optional<Address> address, const std::string& message);

  const LaunchContext& context_;
  const std::vector<Instruction>& code_;
  InstructionCounters counters_;
  FindingRecorder findings_;
  std::string output_;
  BankModel banks_;
  const SharedFunctions& shared_functions_ = shared_functions();

  Dim3 cta_;
  std::vector<Warp> warps_;
  std::uint32_t num_threads_ = 0;
  std::uint32_t threads_alive_ = 0;
  AlignedBytes registers_, shared_, local_;
  std::unique_ptr<SharedShadow> shadow_;     // null: no checks, or no shared memory
  std::vector<std::uint8_t> local_written_;  // per byte of local_; empty: no checks
  std::uint32_t shared_bytes_ = 0;           // static and dynamic
  std::array<Barrier, 16> barriers_;
  std::vector<Mbarrier> mbarriers_;
  std::uint64_t budget_ = 0;    // instructions left
  std::uint64_t progress_ = 0;  // counts what may let a waiting warp go on
  bool stopped_ = false;
  const Allocation* last_allocation_ = nullptr;
};

}  // namespace flash_ladder::emulator
