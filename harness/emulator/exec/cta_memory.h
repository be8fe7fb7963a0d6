// The memory that a CTA's instructions access: which bytes their addresses refer to, whether they may access them, and
// what that costs. PTX ISA, "State Spaces".
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/checks/global_shadow.h"
#include "emulator/checks/ordering.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/cluster.h"
#include "emulator/exec/counting.h"
#include "emulator/exec/launch_context.h"
#include "emulator/exec/memory_access.h"
#include "emulator/exec/warp.h"
#include "emulator/memory/traffic.h"

namespace flash_ladder::emulator {

class CtaExecutor;

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

class CtaMemory {
 public:
  CtaMemory(CtaExecutor& cta, LaunchContext& context, ClusterMember& cluster, InstructionCounters& counters,
            std::size_t num_warps);

  /// A CTA begins.
  void start();
  /// The accesses to global memory are also compared with those of other CTAs of the cluster.
  void join_cluster(GlobalShadow* global) { cluster_global_ = global; }
  /// The CTA's accesses to global memory; empty if LaunchContext::shadow tracks them.
  MemoryUse take_use() { return own_global_ == nullptr ? MemoryUse{} : own_global_->take_use(); }

  std::byte* shared() { return shared_.data(); }
  /// Static and dynamic.
  std::uint32_t shared_bytes() const { return shared_bytes_; }
  /// At least one chunk of the asynchronous proxy in kernels that use it.
  std::size_t kept_shared_bytes() const { return shared_.size(); }
  bool watches_global() const { return global_ != nullptr; }

  void addresses(const Warp& warp, const Instruction& instruction, std::int32_t reg, LaneAddresses& to) const;
  /// Calls f(access, addresses in that space) for each space that contains an address of the register `reg`.
  template <typename F>
  void for_each_space(Warp& warp, const Instruction& instruction, std::int32_t reg, std::uint32_t mask, F f);
  void check_read(Warp& warp, const Instruction& instruction, const LaneAddresses& at, const MemoryAccess& access);
  void note_written(const LaneAddresses& at, const MemoryAccess& access, std::uint32_t undefined);
  /// Races in global memory. Call write_global() before the write; the data are also stored at kept_at(), see GlobalShadow.
  void read_global(const Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                   unsigned bytes);
  std::uint32_t write_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                             const LaneAddresses& at, std::uint32_t unchanged);
  /// In a dependent launch: whether lanes access memory that the kernel ahead of it, which may still be running, writes or, if
  /// `writes`, reads.
  void check_kernel_ahead(const Warp& warp, const Instruction& instruction, const LaneAddresses& at, std::uint32_t mask,
                          unsigned bytes, bool writes);
  bool kept_at(const Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at,
               std::byte** places);
  void report_overwritten_global(const Warp& warp, const Instruction& instruction, const MemoryAccess& access,
                                 const LaneAddresses& at, std::uint32_t lanes);
  /// Communication with other threads through memory: a strong operation has read or written. `adds`: it is atomic.
  void acquire(Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at);
  void release(Warp& warp, const Instruction& instruction, const MemoryAccess& access, const LaneAddresses& at,
               bool adds);
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
                             const std::uint32_t* offsets, bool by_matrix = false);
  void count_shared(const Instruction& instruction, const AccessPattern& pattern);
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

 private:
  DetailCount& detail(const Instruction& instruction) {
    return counters_.details[static_cast<std::size_t>(&instruction - context_.kernel.code.data())];
  }
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

  CtaExecutor& cta_;
  LaunchContext& context_;
  ClusterMember& cluster_;
  InstructionCounters& counters_;
  std::uint32_t shared_bytes_ = 0;
  AlignedBytes shared_, local_;
  std::vector<std::uint8_t> local_written_;  // per byte of local_; empty: no checks
  AccessPatterns patterns_;
  std::vector<const AccessPattern*> last_patterns_;  // by instruction: its last pattern in shared memory, or null
  std::unique_ptr<GlobalShadow> own_global_;
  GlobalShadow* global_ = nullptr;          // the CTA's own or the launch's; null: no checks
  GlobalShadow* cluster_global_ = nullptr;  // see join_cluster()
  const Allocation* last_allocation_ = nullptr;
  const Allocation* whole_access_ = nullptr;  // contains everything that check_global() examined last, if not null
  bool consecutive_ = false;                  // whether those were the adjacent accesses of all 32 lanes
};

template <typename F>
void CtaMemory::for_each_space(Warp& warp, const Instruction& instruction, std::int32_t reg, std::uint32_t mask, F f) {
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
  const auto in_cluster = [&](std::uint32_t lanes, const LaneAddresses& of_cluster) {
    LaneAddresses inside = of_cluster;  // without the rank, below
    for (const auto& [owner, of_owner] : cluster_.owners_of(warp, instruction, lanes, inside)) {
      access.peer = owner;
      in_space(ptx::Space::shared, of_owner, inside);
    }
    access.peer = nullptr;
  };
  if (instruction.space != ptx::Space::generic) {
    if (instruction.of_cluster && cluster_.has_peers()) return in_cluster(mask, at);
    in_space(instruction.space, mask, at);
    return;
  }
  for (const auto& [space, lanes, window] : spaces_of(instruction, at, mask)) {
    if (lanes == 0) continue;
    LaneAddresses inside = at;
    for (std::uint64_t& address : inside.at) address -= window;
    if (space == ptx::Space::shared && cluster_.has_peers()) {
      in_cluster(lanes, inside);
    } else {
      in_space(space, lanes, inside);
    }
  }
}

inline PlacedPattern CtaMemory::count_shared(const Instruction& instruction, std::uint32_t lanes, std::uint32_t good,
                                             unsigned bytes, const std::uint32_t* offsets, bool by_matrix) {
  const PlacedPattern placed = good == 0 ? PlacedPattern{} : pattern_of(offsets, good, bytes, by_matrix);
  const Wavefronts wavefronts = good == 0 ? Wavefronts{} : placed.pattern->wavefronts;
  count(detail(instruction).shared, lanes, bytes, wavefronts.actual, wavefronts.ideal);
  return placed;
}

inline void CtaMemory::count_shared(const Instruction& instruction, const AccessPattern& pattern) {
  count(detail(instruction).shared, pattern.mask, pattern.bytes, pattern.wavefronts.actual, pattern.wavefronts.ideal);
}

}  // namespace flash_ladder::emulator
