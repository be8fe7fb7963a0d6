// Runs the CTAs of a launch, one after another, on one host thread. The warps of a CTA run in turn, one instruction at
// a time. All other tasks belong to the executor's parts, each of which has a header of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulator/checks/findings.h"
#include "emulator/checks/ordering.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/async_units.h"
#include "emulator/exec/barriers.h"
#include "emulator/exec/cluster.h"
#include "emulator/exec/conflicts.h"
#include "emulator/exec/counting.h"
#include "emulator/exec/cta_memory.h"
#include "emulator/exec/dataflow.h"
#include "emulator/exec/launch_context.h"
#include "emulator/exec/trace_recorder.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

/// An access that contributes to a finding, beside the one that it is attributed to.
struct OtherSide {
  const char* what = nullptr;
  std::int32_t instruction = -1;  // -1: there is none
  int warp = -1, lane = -1;
  const CtaExecutor* cta = nullptr;  // null: this one
};

class CtaExecutor {
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
  /// Resumes a CTA that was stuck.
  State resume();
  /// For a CTA that is stuck: time alone may end the waiting, because its loops never return to the same state.
  bool may_go_on() const { return may_go_on_; }
  /// The last resort: lanes that spin yield to others of their warp, as independently scheduled threads do. False if
  /// there are no such lanes.
  bool yield_to_others();
  /// Reports that the CTA, which is stuck, will remain so. `others` is the number of CTAs that are stuck with it,
  /// `unstarted` the number of those for which there is no room.
  void report_stuck(std::uint64_t others, std::uint64_t unstarted);
  /// How often memory has changed in a way that another thread may have observed.
  std::uint64_t changes() const { return changes_; }
  /// Warp instructions executed since the last call.
  std::uint64_t take_executed() { return std::exchange(executed_, 0); }

  InstructionCounters& counters() { return counters_; }
  std::vector<RawFinding> take_findings() { return findings_.take(); }
  std::string take_output() { return std::exchange(output_, {}); }
  /// For the CTA that Options::trace_cta names, once it has run.
  std::optional<CtaTrace> take_trace();
  Dataflow* dataflow() { return dataflow_.get(); }  // null: not followed
  /// Once it has run. Empty for a kernel without AsyncUnits.
  std::vector<Role> roles() const;

  // The rest is for the functions that execute instructions: operations/.

  const LaunchContext& context() const { return context_; }
  CtaMemory& memory() { return memory_; }
  ClusterMember& cluster() { return cluster_; }
  const ClusterMember& cluster() const { return cluster_; }
  ConflictReporter& conflicts() { return conflicts_; }
  const std::vector<Instruction>& code() const { return code_; }
  std::int32_t index_of(const Instruction& instruction) const {
    return static_cast<std::int32_t>(&instruction - context_.kernel.code.data());
  }
  DetailCount& detail(const Instruction& instruction) {
    return counters_.details[static_cast<std::size_t>(index_of(instruction))];
  }
  std::vector<Warp>& warps() { return warps_; }
  std::uint32_t num_threads() const { return num_threads_; }
  std::uint32_t threads_alive() const { return threads_alive_; }
  std::array<Barrier, kNamedBarriers>& barriers() { return barriers_; }
  std::vector<Mbarrier>& mbarriers() { return mbarriers_; }
  const Dim3& cta() const { return cta_; }
  std::uint32_t index() const { return cta_index_; }
  bool has_ended() const { return threads_alive_ == 0; }
  SharedShadow* shadow() { return shadow_.get(); }  // null: no checks, or no shared memory
  Ordering* ordering() { return ordering_.get(); }  // null: no checks
  AsyncUnits* async() { return async_.get(); }      // null: the kernel does not use them
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
  /// A warp has yielded, and its state is known: whether memory changes from now on matters.
  void watch() { watching_ = true; }
  /// Lanes have ended.
  void end_lanes(Warp& warp, std::uint32_t mask);
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
  void renumber(const Renumbering& renumbering);

 private:
  void reset_warps();
  template <bool kRecords>
  void run_warp(Warp& warp);
  // For the trace, the detection of endless loops, and the dataflow.
  void record(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void exceed_budget(const Warp& warp, const Instruction& instruction);

  LaunchContext& context_;
  const std::vector<Instruction>& code_;
  InstructionCounters counters_;
  FindingRecorder findings_;
  ConflictReporter conflicts_{*this};
  ClusterMember cluster_{*this};
  std::string output_;

  Dim3 cta_;
  std::uint32_t cta_index_ = 0;
  std::vector<Warp> warps_;
  std::uint32_t num_threads_ = 0;
  std::uint32_t threads_alive_ = 0;
  AlignedBytes registers_;
  CtaMemory memory_;
  std::unique_ptr<Ordering> ordering_;    // null: no checks
  std::unique_ptr<SharedShadow> shadow_;  // null: no checks, or no shared memory
  std::unique_ptr<AsyncUnits> async_;     // null: the kernel does not use them
  std::unique_ptr<TraceRecorder> trace_;  // null: the CTA is not traced
  std::unique_ptr<Dataflow> dataflow_;    // null: the launch has no outputs to follow
  std::array<Barrier, kNamedBarriers> barriers_;
  std::vector<Mbarrier> mbarriers_;
  std::uint64_t budget_ = 0;    // instructions left
  std::uint64_t progress_ = 0;  // counts events that may let a waiting warp continue
  std::uint64_t changes_ = 0;   // counts changes to memory
  bool watching_ = false;
  bool may_go_on_ = false;
  bool uniforms_filled_ = false;
  std::uint64_t executed_ = 0;
  bool stopped_ = false;
};

}  // namespace flash_ladder::emulator
