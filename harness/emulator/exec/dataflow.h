// Follows values from instruction to instruction, and finds those from which the output was computed. It exists only
// for launches with Options::outputs.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"
#include "emulator/useful_work.h"

namespace flash_ladder::emulator {

/// Each executed warp instruction is a node, whose sources are the nodes that last wrote what it reads: registers of
/// the warp, and words of shared, local and global memory. Addresses and guards are not sources: they decide where a
/// value goes, and not what it is. The nodes of a CTA are kept until it ends.
class Dataflow {
 public:
  Dataflow(const CompiledKernel& kernel, std::span<const MemoryRange> outputs, std::size_t num_warps,
           std::size_t shared_bytes);

  /// A CTA starts.
  void start();
  /// A warp is about to execute the instruction, for the lanes of the mask, of which there is at least one.
  void execute(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t mask);
  /// The CTA has ended.
  UsefulWork finish();

 private:
  using NodeId = std::uint32_t;  // in order of execution, from 1; 0: written by no instruction
  struct Node {
    std::int32_t instruction;
    std::uint32_t mask;
    std::uint32_t sources_end;  // in sources_; they begin where those of the previous node end
    std::uint16_t warp;
    ptx::Space space;
  };
  enum class Kind : std::uint8_t { other, mma, ldmatrix, copy, load, store, exponential, shuffle };
  struct Static {  // what the counts need to know about an instruction
    Kind kind = Kind::other;
    std::uint64_t flops = 0;
    std::uint64_t bytes = 0;                         // per lane
    std::uint64_t values = 1;                        // exponentials per lane
    std::size_t first_of_b = 0, registers_of_b = 0;  // of an mma, in Instruction::r
  };
  struct LoadOfCopy {
    NodeId node;
    std::uint32_t snapshot;
  };
  struct InFlight {  // copies in flight while nothing was issued and nothing arrived
    bool of_one_warp;
    std::vector<std::pair<NodeId, std::uint32_t>> copies;  // and their bytes
  };

  static Static describe(const CompiledKernel& kernel, const Instruction& instruction);
  void add_source(NodeId from);
  template <typename F>
  void for_each_word(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::int32_t address,
                     std::uint32_t lanes, unsigned bytes, F f);
  NodeId& word(ptx::Space space, int warp, int lane, std::uint64_t index);
  NodeId& register_of(int warp, std::int32_t place) {
    return registers_[static_cast<std::size_t>(warp) * places_ + static_cast<std::size_t>(place) / 4];
  }
  NodeId loaded_by(NodeId node) const;
  void start_copy(const Warp& warp, const Instruction& instruction, std::uint32_t mask, unsigned bytes, NodeId id);
  void note_loads_of_b(const Warp& warp, const Instruction& instruction, const Static& described, NodeId id);
  void settle(CtaExecutor& cta);
  void note_read(int warp, NodeId copy);
  std::uint32_t snapshot(CtaExecutor& cta, const Warp& warp);
  std::vector<bool> useful_nodes() const;
  void count_distances(const std::vector<bool>& is_useful, UsefulWork& work) const;
  void count_in_flight(const std::vector<bool>& is_useful, UsefulWork& work) const;

  const CompiledKernel& kernel_;
  std::vector<MemoryRange> outputs_;
  std::vector<Static> statics_;  // by instruction
  std::size_t places_;           // words of a warp's registers
  std::size_t local_words_;      // of a thread

  std::vector<Node> nodes_;  // the first is unused
  std::vector<NodeId> sources_;
  std::vector<NodeId> registers_, shared_, local_;    // the last node that wrote them
  std::unordered_map<std::uint64_t, NodeId> global_;  // by address / 4
  struct Copy {
    NodeId node;
    std::uint32_t bytes;
    bool in_flight;  // for its warp, which has neither waited for it nor read what it brought
    bool pending;    // for the virtual GPU: another warp may have waited for it
  };
  std::vector<std::vector<Copy>> copies_;     // by warp: its asynchronous copies
  std::vector<std::uint64_t> first_copies_;   // by warp: the number of the first of these
  std::vector<std::size_t> first_in_flight_;  // by warp: none before this one is in flight or pending
  std::vector<std::size_t> pending_;          // by warp: how many are pending
  int last_warp_ = -1;                        // that executed an instruction which may be a wait; -1: none
  std::vector<std::uint64_t> changes_;        // by warp: how often its copies have changed
  std::vector<std::pair<std::uint64_t, std::uint32_t>> latest_;  // by warp: changes_ at its latest snapshot, and that
  std::vector<InFlight> snapshots_;
  std::vector<LoadOfCopy> loads_of_copies_;
  std::vector<std::pair<NodeId, std::vector<NodeId>>> mmas_;  // and the ldmatrix that loaded each register of B
};

}  // namespace flash_ladder::emulator
