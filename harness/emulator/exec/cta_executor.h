// Runs the CTAs of a launch, one after another, on one host thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulator/checks/findings.h"
#include "emulator/checks/global_shadow.h"
#include "emulator/checks/ordering.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/async_units.h"
#include "emulator/exec/barriers.h"
#include "emulator/exec/counting.h"
#include "emulator/exec/trace_recorder.h"
#include "emulator/exec/warp.h"
#include "emulator/launch.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {

/// What all CTAs of a launch share. It does not change while they run, except for the heap of device code.
struct LaunchContext {
  const CompiledKernel& kernel;
  const LaunchConfig& config;
  Memory& memory;
  const Options& options;
  Dim3 cluster;                         // CTAs in each dimension
  std::vector<Allocation> allocations;  // by address
  // Allocated with malloc since the launch began. Kernels that call malloc or free run one CTA at a time.
  std::map<Address, Allocation> made = {};
  // For CTAs that can communicate and so run one at a time; otherwise null.
  LaunchOrdering* ordering = nullptr;
  GlobalShadow* shadow = nullptr;
};

/// A finding at an instruction of a CTA. `warp` and `lane` are -1 if it does not belong to a particular one.
RawFinding describe(const LaunchContext& context, FindingKind kind, const Dim3& cta, int warp, std::int32_t instruction,
                    int lane, std::optional<Address> address, const std::string& message);
/// What distinguishes findings: the source position, or the instruction if there is none.
std::int32_t place_of(const CompiledKernel& kernel, std::int32_t instruction);
SourcePosition position_of(const CompiledKernel& kernel, std::int32_t instruction);
/// "a write to byte 4 of the allocation of 64 bytes at 0x…, and nothing orders it after a read"
std::string message_of(const LaunchContext& context, GlobalConflict::Kind kind, Address address, bool of_another_block);
/// CTAs are numbered cluster by cluster, first along x.
Dim3 cta_at(const LaunchContext& context, std::uint64_t index);

/// The addresses of 32 lanes.
struct LaneAddresses {
  alignas(64) std::array<std::uint64_t, kWarpSize> at;
};

/// The access of an instruction to memory of one state space, for the lanes whose addresses are in it.
class CtaExecutor;
struct MemoryAccess {
  ptx::Space space;
  std::uint32_t lanes;
  std::uint32_t good;                // the lanes among these whose access is in bounds and aligned
  unsigned bytes;                    // per lane
  std::uint32_t offsets[kWarpSize];  // in shared or the thread's local memory
  std::byte* host[kWarpSize];        // host addresses of the bytes, for the good lanes
  CtaExecutor* peer = nullptr;       // the CTA of the cluster that owns the shared memory; null: this CTA
  // For global memory: all lanes take part and are good, and their accesses are adjacent, in order of lanes.
  bool consecutive = false;
  PlacedPattern placed = {};  // for shared memory, if all lanes are good
};

/// Memory aligned to cache lines, initialised to zero.
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

/// An access that contributes to a finding, beside the one that it is attributed to.
struct OtherSide {
  const char* what = nullptr;
  std::int32_t instruction = -1;  // -1: there is none
  int warp = -1, lane = -1;
  const CtaExecutor* cta = nullptr;  // null: this one
};

class CtaExecutor : public ConflictSink, public GlobalConflictSink {
 public:
  explicit CtaExecutor(LaunchContext& context);

  enum class State : std::uint8_t {
    ended,
    stopped,  // an endless loop or a deadlock, which is then among the findings, or the user has interrupted it
    stuck,    // each warp waits or spins, and only another CTA can change what they see
  };
  /// The CTAs of this one's cluster, which includes itself at `rank`: they run in turn. `global` is shared by all of
  /// them; null if the launch has one, or if races are not checked.
  void join_cluster(std::vector<CtaExecutor*> peers, std::size_t rank, GlobalShadow* global);
  /// Runs one CTA, numbered as by cta_at(). If it has peers, each is started, and then each is resumed until all have
  /// ended.
  State run(std::uint64_t cta) {
    start(cta);
    return resume();
  }
  void start(std::uint64_t cta);
  /// Each of its warps has ended or waits for other CTAs of the cluster.
  bool waits_for_cluster() const;
  /// Resumes a CTA that was stuck.
  State resume();
  /// For a CTA that is stuck: time alone may end the waiting, because its loops never return to the same state.
  bool may_go_on() const { return may_go_on_; }
  /// The last resort: lanes that spin yield to others of their warp, as independently scheduled threads do. False if
  /// there are no such lanes.
  bool give_way();
  /// Reports that the CTA, which is stuck, will remain so. `others` is the number of CTAs that are stuck with it,
  /// `unstarted` the number of those for which there is no room.
  void report_stuck(std::uint64_t others, std::uint64_t unstarted);
  /// How often memory has changed in a way that another thread may have observed.
  std::uint64_t changes() const { return changes_; }
  /// Warp instructions executed since the last call.
  std::uint64_t take_executed() { return std::exchange(executed_, 0); }

  InstructionCounters& counters() { return counters_; }
  std::vector<RawFinding> take_findings() { return findings_.take(); }
  /// The CTA's accesses to global memory; empty if LaunchContext::shadow tracks them.
  MemoryUse take_use() { return own_global_ == nullptr ? MemoryUse{} : own_global_->take_use(); }
  std::string take_output() { return std::exchange(output_, {}); }
  /// For the CTA that Options::trace_cta names, once it has run.
  std::optional<CtaTrace> take_trace();
  /// Once it has run. Empty for a kernel without AsyncUnits.
  std::vector<Role> roles() const;

  // The rest is for the functions that execute instructions: operations/.

  const LaunchContext& context() const { return context_; }
  const std::vector<Instruction>& code() const { return code_; }
  std::int32_t index_of(const Instruction& instruction) const {
    return static_cast<std::int32_t>(&instruction - context_.kernel.code.data());
  }
  DetailCount& detail(const Instruction& instruction) {
    return counters_.details[static_cast<std::size_t>(index_of(instruction))];
  }
  std::vector<Warp>& warps() { return warps_; }
  std::uint32_t threads_alive() const { return threads_alive_; }
  std::array<Barrier, kNamedBarriers>& barriers() { return barriers_; }
  std::vector<Mbarrier>& mbarriers() { return mbarriers_; }
  const Dim3& cta() const { return cta_; }
  std::size_t rank() const { return rank_; }
  std::size_t cluster_size() const { return peers_.empty() ? 1 : peers_.size(); }
  /// A CTA of the cluster; null if there is none with this rank.
  CtaExecutor* peer(std::size_t rank) {
    if (peers_.empty()) return rank == 0 ? this : nullptr;
    return rank < peers_.size() ? peers_[rank] : nullptr;
  }
  bool has_ended() const { return threads_alive_ == 0; }
  SharedShadow* shadow() { return shadow_.get(); }  // null: no checks, or no shared memory
  Ordering* ordering() { return ordering_.get(); }  // null: no checks
  bool watches_global() const { return global_ != nullptr; }
  AsyncUnits* async() { return async_.get(); }  // null: the kernel does not use them
  std::byte* shared() { return shared_.data(); }
  std::uint32_t shared_bytes() const { return shared_bytes_; }
  std::string& output() { return output_; }
  TraceRecorder* trace() { return trace_.get(); }  // null: this CTA is not traced
  /// A waiting warp may be able to continue after this.
  void note_progress() {
    ++progress_;
    note_change();
  }
  /// Memory has changed.
  void note_change() {
    ++changes_;
    watching_ = false;
  }
  /// Whether it matters that a store changes anything, because nothing has changed since some warp yielded.
  bool watching() const { return watching_; }

  // Findings.
  FindingRecorder& findings() { return findings_; }
  RawFinding describe(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
                      std::optional<Address> address, const std::string& message) const;
  std::int32_t place_of(std::int32_t instruction) const;
  SourcePosition position_of(std::int32_t instruction) const;
  void find(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
            std::optional<Address> address, const std::string& message);
  void find(FindingKind kind, const Warp& warp, std::int32_t instruction, int lane, std::optional<Address> address,
            const std::string& message, const OtherSide& other = {});
  /// For whole-warp instructions that take no mask.
  void check_all_lanes(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  /// Reports lanes that execute with the mask `named` although other lanes that it names are missing; `here` are those
  /// that execute the instruction now.
  void check_group(const Warp& warp, const Instruction& instruction, std::uint32_t here, std::uint32_t lanes,
                   std::uint32_t named);
  /// The active lanes are at a __syncwarp() and wait for lanes that took another path at a branch: lets those run,
  /// because they may reach a __syncwarp() there. False if there are no such lanes.
  bool wait_for_lanes(Warp& warp, const Instruction& instruction, std::uint32_t named);
  /// The active lanes are at a barrier of the block, and others of the warp are not, because they have waited for
  /// these: lets those run until they arrive too, and then all execute it together. False if that is not the case.
  bool gather_at_barrier(Warp& warp, const Instruction& instruction);
  /// Where these lanes diverged from the others, for a message.
  std::string describe_parting(const Warp& warp, std::uint32_t lanes) const;

  // Memory, memory_access.cpp.
  void addresses(const Warp& warp, const Instruction& instruction, std::int32_t reg, LaneAddresses& to) const;
  /// Calls f(access, addresses in that space) for each space that contains an address of the register `reg`.
  template <typename F>
  void for_each_space(Warp& warp, const Instruction& instruction, std::int32_t reg, std::uint32_t mask, F f) {
    LaneAddresses at;
    addresses(warp, instruction, reg, at);
    MemoryAccess access;
    access.bytes = static_cast<unsigned>(instruction.bytes) * instruction.elements;
    const auto in_space = [&](ptx::Space space, std::uint32_t lanes, const LaneAddresses& inside) {
      access.space = space;
      access.lanes = lanes;
      resolve(warp, instruction, inside, access);
      f(access, inside);
    };
    // Which CTA's shared memory, within a cluster?
    const auto in_cluster = [&](std::uint32_t lanes, LaneAddresses inside) {
      for (const auto& [owner, of_owner] : owners_of(warp, instruction, lanes, inside)) {
        access.peer = owner;
        in_space(ptx::Space::shared, of_owner, inside);
      }
      access.peer = nullptr;
    };
    if (instruction.space != ptx::Space::generic) {
      if (instruction.of_cluster && !peers_.empty()) return in_cluster(mask, at);
      in_space(instruction.space, mask, at);
      return;
    }
    for (const auto& [space, lanes, window] : spaces_of(instruction, at, mask)) {
      if (lanes == 0) continue;
      LaneAddresses inside = at;
      for (std::uint64_t& address : inside.at) address -= window;
      if (space == ptx::Space::shared && !peers_.empty()) {
        in_cluster(lanes, inside);
      } else {
        in_space(space, lanes, inside);
      }
    }
  }
  void check_read(Warp& warp, const Instruction& instruction, const LaneAddresses& at, const MemoryAccess& access);
  void note_written(const LaneAddresses& at, const MemoryAccess& access, std::uint32_t undefined);
  /// Races in global memory. Call write_global() before the write; the data are also stored at kept_at(), see GlobalShadow.
  void read_global(const Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                   unsigned bytes);
  std::uint32_t write_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                             const LaneAddresses& at, std::uint32_t unchanged);
  bool kept_at(const Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at,
               std::byte** places) {
    return global_->kept_at(global_access(warp, instruction, at, access.good, access.bytes), places);
  }
  void report_overwritten_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                                 const LaneAddresses& at, std::uint32_t lanes) {
    global_->report_overwritten(global_access(warp, instruction, at, access.good, access.bytes), lanes, *this);
  }
  /// Communication with other threads through memory: a strong operation has read or written. `adds`: it is atomic.
  void hear(Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at);
  void tell(Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at, bool adds);
  /// The common case of an access to shared memory: all lanes take part, and nothing is wrong. Otherwise there is no
  /// pattern.
  PlacedPattern whole_warp_access(const Warp& warp, const Instruction& instruction, std::int32_t reg,
                                  std::uint32_t mask, unsigned bytes, bool matrices = false);
  std::uint32_t check_shared(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                             unsigned bytes, std::uint32_t* offsets);
  std::uint32_t check_global(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                             unsigned bytes, std::byte** host);
  void check_initialised(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                         unsigned bytes);
  /// Whether the memory that a consecutive store writes is untouched: then there is nothing to compare, and the store
  /// is recorded.
  bool write_untouched_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                              const LaneAddresses& at);
  /// Counts an access to shared memory whose lanes `good` are valid, and returns its pattern; no pattern if no lane is
  /// valid.
  PlacedPattern count_shared(const Instruction& instruction, std::uint32_t lanes, std::uint32_t good, unsigned bytes,
                             const std::uint32_t* offsets, bool by_matrix = false) {
    const PlacedPattern placed = good == 0 ? PlacedPattern{} : pattern_of(offsets, good, bytes, by_matrix);
    const Wavefronts wavefronts = good == 0 ? Wavefronts{} : placed.pattern->wavefronts;
    count(detail(instruction).shared, lanes, bytes, wavefronts.actual, wavefronts.ideal);
    return placed;
  }
  void count_shared(const Instruction& instruction, const AccessPattern& pattern) {
    count(detail(instruction).shared, pattern.mask, pattern.bytes, pattern.wavefronts.actual, pattern.wavefronts.ideal);
  }
  std::byte* local_address(const Warp& warp, int lane, std::uint64_t address);
  /// malloc and free of device code. free() throws MemoryError.
  Address allocate_on_heap(std::size_t bytes);
  void free_on_heap(Address address);
  /// The allocation, perhaps freed, that contains the address; null if there is none.
  const Allocation* find_allocation(Address address);
  /// The host address of global memory that one lane has TMA read or write; null, after a finding, if the access is not
  /// allowed.
  std::byte* global_range(const Warp& warp, const Instruction& instruction, int lane, Address address,
                          std::size_t bytes, bool writes);

  // Clusters, cluster.cpp.
  void arrive_at_cluster(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool relaxed);
  void wait_for_cluster(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  /// A fence that other CTAs of the cluster may acquire.
  void note_cluster_fence(Warp& warp, std::uint32_t mask);
  /// Whether the other CTA is running. Reports a finding if it cannot be running, or if nothing guarantees that it is.
  bool is_there(const CtaExecutor& owner, const Warp& warp, const Instruction& instruction, int lane);
  /// Races in the shared memory of another CTA of the cluster.
  void read_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                 std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets);
  void write_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, Strength strength,
                  std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets, std::uint32_t unchanged);
  /// Lanes request a copy to the shared memory of another CTA: calls f(lanes, their PeerAccess) for each group of lanes
  /// that have the same knowledge; with null if races are not checked.
  void copy_to_peer(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, std::uint32_t lanes,
                    const std::function<void(std::uint32_t, const PeerAccess*)>& f);
  /// Adds what the lanes know to the clock of a barrier of another CTA.
  void tell_peer(const Warp& warp, CtaExecutor& owner, std::uint32_t lanes, Clock& into);

  // Barriers and copies, barriers.cpp.
  void release(Barrier& barrier);
  void complete(Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier);

  // Uninitialised registers, definedness.cpp.
  bool watches(const Warp& warp, const Instruction& instruction) const {
    return instruction.watched >= 0 && !warp.undefined.empty();
  }
  UndefinedLanes undefined_sources(const Warp& warp, const Instruction& instruction, std::size_t first,
                                   std::size_t last, std::uint32_t mask) const;
  void set_undefined(Warp& warp, const Instruction& instruction, std::size_t k, std::uint32_t mask,
                     const UndefinedLanes& to);
  void report_undefined(Warp& warp, const Instruction& instruction, const UndefinedLanes& found, const char* use);

 private:
  // cta_executor.cpp
  void fill_uniforms(const Dim3& cta);
  template <bool kTraced>
  void run_warp(Warp& warp);
  void reconverge(Warp& warp);
  void part(Warp& warp, const Instruction& instruction, std::uint32_t taken);
  bool has_come_back(Warp& warp);
  template <typename Executed>
  std::vector<std::int32_t> deciding_registers(std::int32_t begin, std::int32_t end, Executed executed) const;
  bool give_way(Warp& warp);
  bool spins_on_a_lock(const Warp& warp) const;
  bool may_wait(const Warp& warp) const;
  bool loop_has(const Warp& warp, bool (*is)(const Instruction&)) const;
  std::pair<std::int32_t, std::int32_t> loop_of(const Warp& warp) const;
  const Instruction* looked_at(const Warp& warp) const;
  void branch_by_table(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void end_lanes(Warp& warp, std::uint32_t mask);
  int num_warps() const { return static_cast<int>(warps_.size()); }
  void report(const SharedAccess& access, const Conflict& conflict) override;
  void report(const GlobalAccess& access, const GlobalConflict& conflict) override;
  void renumber(const Renumbering& renumbering) override;

  // memory_access.cpp
  GlobalAccess global_access(const Warp& warp, const Instruction& instruction, const LaneAddresses& at,
                             std::uint32_t mask, unsigned bytes) const;
  template <typename F>
  static void for_each_place(const MemoryAccess& access, const LaneAddresses& at, F f) {
    if (access.space != ptx::Space::shared && access.space != ptx::Space::global) return;
    const bool shared = access.space == ptx::Space::shared;
    for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
      f(static_cast<int>(lane), Ordering::Place{shared, shared ? access.offsets[lane] : at.at[lane]});
    }
  }
  struct Window {
    std::uint64_t base, size;
    const char *owner, *name;
  };
  std::uint32_t check_window(Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                             unsigned bytes, const Window& window, std::uint32_t* offsets);
  PlacedPattern pattern_of(const std::uint32_t* offsets, std::uint32_t mask, unsigned bytes, bool matrices);
  void check_variable(Warp& warp, const Instruction& instruction, ptx::Space space, std::uint32_t mask, unsigned bytes,
                      const std::uint32_t* offsets);
  bool check_whole_warp(const LaneAddresses& at, unsigned bytes, std::byte** host);
  bool check_part_of_warp(const LaneAddresses& at, std::uint32_t mask, unsigned bytes, std::byte** host);
  void resolve(Warp& warp, const Instruction& instruction, const LaneAddresses& at, MemoryAccess& access);
  struct SpaceLanes {
    ptx::Space space;
    std::uint32_t lanes;
    Address window;
  };
  std::array<SpaceLanes, 4> spaces_of(const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask);
  void mark_initialised(const LaneAddresses& at, std::uint32_t mask, unsigned bytes);
  void check_local_initialised(Warp& warp, const Instruction& instruction, std::uint32_t mask, unsigned bytes,
                               std::byte* const* host);

  // barriers.cpp
  void check_all_came(const Barrier& barrier);
  void check_barriers();  // called after lanes have ended: a barrier may now have every arrival that it waits for

  // cluster.cpp
  bool has_come_to_cluster() const;
  void pass_cluster();
  void leave_cluster_barrier(Warp& warp);
  std::vector<std::pair<CtaExecutor*, std::uint32_t>> owners_of(const Warp& warp, const Instruction& instruction,
                                                                std::uint32_t lanes, LaneAddresses& at);
  template <typename F>
  void for_each_knowledge(const Warp& warp, const Instruction& instruction, CtaExecutor& owner, std::uint32_t lanes,
                          F f);
  void tell_cluster(Warp& warp, const Instruction& instruction, const MemoryAccess& access);
  void hear_cluster(Warp& warp, const MemoryAccess& access);
  void check_uses_by_peers();
  void end_in_cluster(const Warp& warp, std::uint32_t mask);  // called when lanes have ended
  const Clocks& clocks() const { return ordering_->clocks(); }

  // conflicts.cpp
  void add_wait(Finding& finding, int warp, int lane, AccessNumber number, const Mbarrier* at) const;
  std::string why_under_way(const CtaExecutor& by, const SharedAccess& access, const Conflict& conflict,
                            const Mbarrier* told) const;

  // deadlock.cpp
  void report_deadlock();
  void report_lost();
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;
  struct AwaitedPlace {
    std::string text;      // " at byte 4 of `lock` of 4 bytes at 0x…"; empty if it is not known
    bool of_host = false;  // the host can write there, too
  };
  AwaitedPlace place_of_wait(const Warp& warp, const Instruction& look) const;

  // definedness.cpp
  void follow_undefined(Warp& warp, const Instruction& instruction, std::uint32_t mask);

  LaunchContext& context_;
  const std::vector<Instruction>& code_;
  InstructionCounters counters_;
  FindingRecorder findings_;
  std::string output_;
  AccessPatterns patterns_;
  std::vector<const AccessPattern*> last_patterns_;  // by instruction: its last pattern in shared memory, or null

  Dim3 cta_;
  std::uint32_t cta_index_ = 0;
  std::vector<Warp> warps_;
  std::uint32_t num_threads_ = 0;
  std::uint32_t threads_alive_ = 0;
  AlignedBytes registers_, shared_, local_;
  std::unique_ptr<Ordering> ordering_;    // null: no checks
  std::unique_ptr<SharedShadow> shadow_;  // null: no checks, or no shared memory
  std::unique_ptr<GlobalShadow> own_global_;
  GlobalShadow* global_ = nullptr;           // the CTA's own or the launch's; null: no checks
  GlobalShadow* cluster_global_ = nullptr;   // see join_cluster()
  std::unique_ptr<AsyncUnits> async_;        // null: the kernel does not use them
  std::unique_ptr<TraceRecorder> trace_;     // null: the CTA is not traced
  std::vector<std::uint8_t> local_written_;  // per byte of local_; empty: no checks
  std::uint32_t shared_bytes_ = 0;           // static and dynamic
  std::array<Barrier, kNamedBarriers> barriers_;
  struct {
    bool used = false;                            // a thread has arrived
    Clock told, known;                            // the knowledge of the threads that have arrived; what passing
                                                  // threads acquire
    std::uint64_t traced = 0, traced_passed = 0;  // when the last warp of this CTA arrived
  } cluster_barrier_;
  std::vector<Mbarrier> mbarriers_;
  std::uint64_t budget_ = 0;    // instructions left
  std::uint64_t progress_ = 0;  // counts events that may let a waiting warp continue
  std::uint64_t changes_ = 0;   // counts changes to memory
  bool watching_ = false;
  bool may_go_on_ = false;
  bool uniforms_filled_ = false;
  std::uint64_t executed_ = 0;
  bool stopped_ = false;
  std::vector<CtaExecutor*> peers_;
  std::size_t rank_ = 0;
  struct PeerUse {  // the last use of this CTA's shared memory
    std::int32_t instruction = -1;
    int warp = 0, lane = 0;
  };
  std::vector<PeerUse> peer_uses_;        // by engine: Clocks::engine_of()
  std::map<std::uint32_t, Clock> flags_;  // by address in this CTA's shared memory: the knowledge of its writers
  const Allocation* last_allocation_ = nullptr;
  const Allocation* whole_access_ = nullptr;  // contains everything that check_global() examined last, if not null
  bool consecutive_ = false;                  // whether those were the adjacent accesses of all 32 lanes
};

}  // namespace flash_ladder::emulator
