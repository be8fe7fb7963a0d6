// The tensor cores that run wgmma beside the warps of a CTA. A wgmma reads its operands and writes its registers when the
// first warp of the warpgroup waits for it: as late as the ISA allows, or as early (Options::early_async). PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/exec/async_proxy.h"
#include "emulator/exec/warp.h"
#include "emulator/exec/wgmma_operands.h"

namespace flash_ladder::emulator {

class CtaExecutor;

class WgmmaUnit {
 public:
  WgmmaUnit(CtaExecutor& cta, AsyncProxy& proxy, std::size_t num_warps);

  /// A CTA begins; all its threads have ended.
  void start();
  void finish();
  void renumber(const Renumbering& renumbering);

  void issue(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  /// wgmma.fence
  void fence_registers(Warp& warp);
  /// wgmma.commit_group
  void commit(Warp& warp);
  /// wgmma.wait_group. The warp may have to wait for other warps of the warpgroup that have not issued their part yet.
  void wait(Warp& warp, const Instruction& instruction);
  /// Called before an instruction with Instruction::probe is executed.
  void probe(Warp& warp, const Instruction& instruction);

  /// What a warp waits for here, as the end of "warp 1 waits …"; empty if it does not wait.
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;

 private:
  struct Issue {
    std::int32_t instruction = -1;
    WgmmaScalars scalars;
    unsigned issued = 0;  // one bit for each warp of the warpgroup
    bool executed = false;
    AccessNumber since = 0;    // accesses to shared memory from this number on came after the issue
    std::uint64_t traced = 0;  // when it was issued, for a trace
    WgmmaChunks chunks;
  };
  struct WarpQueue {                   // of one warp
    std::uint64_t issued = 0;          // number of the warpgroup's wgmmas that it has issued
    std::deque<std::uint64_t> groups;  // groups that it has not waited for: one past the last wgmma of each
    std::uint64_t done = 0;            // number of wgmmas that it has waited for
    std::int32_t waiting = -1;         // the instruction at which it waits
    std::uint64_t waits_until = 0;     // number of wgmmas that must be done
    std::uint64_t committed = 0;       // number of wgmmas that are in a group
    std::uint64_t seen = 0;            // number of wgmmas issued before its last wait
    unsigned leaves = 0;               // number of newest groups that its last wait leaves in flight
    std::int32_t waited = -1;          // the instruction of its last wait
    bool fenced = false;               // a wgmma.fence was executed
    std::vector<std::pair<std::int32_t, std::int32_t>>
        touched;  // registers accessed since the last fence, and the instructions that did so
  };
  struct Warpgroup {
    std::deque<Issue> issues;
    std::uint64_t first = 0;  // the number of the first wgmma in it
  };

  bool checks() const;
  const Wgmma& wgmma_of(std::int32_t instruction) const;
  WarpQueue& queue_of(const Warp& warp) { return queues_[static_cast<std::size_t>(warp.index)]; }
  const WarpQueue& queue_of(const Warp& warp) const { return queues_[static_cast<std::size_t>(warp.index)]; }
  Warpgroup& group_of(const Warp& warp) { return warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)]; }
  Issue& issue_of(const Warp& warp, std::uint64_t number);
  void begin(Issue& issue, const Warp& warp, const Instruction& instruction, const WgmmaScalars& scalars);
  void check_operands(const Warp& warp, const Instruction& instruction, const Issue& issue, bool first);
  void check_registers(const Warp& warp, const Instruction& instruction);
  void check_defined(Warp& warp, const Instruction& instruction, std::uint32_t mask, bool accumulates);
  std::string why_in_flight(const Warp& warp, std::uint64_t number) const;
  void execute(const Issue& issue, int first_warp, int warps);
  bool try_to_wait(Warp& warp);
  void retire(Warpgroup& group, int first_warp);

  CtaExecutor& cta_;
  AsyncProxy& proxy_;
  const std::size_t num_warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<WarpQueue> queues_;
};

}  // namespace flash_ladder::emulator
