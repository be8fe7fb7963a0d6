// What the asynchronous proxy can see of a CTA's shared memory. Data written by ordinary instructions become visible to it
// through a fence. PTX ISA, "Async proxy", "Causality order".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/barriers.h"
#include "emulator/exec/warp.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

class CtaExecutor;

class AsyncProxy {
 public:
  /// The race detector distinguishes this many mbarriers.
  static constexpr int kEngines = 64;

  AsyncProxy(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes);

  /// A CTA begins.
  void start();
  void renumber(const Renumbering& renumbering);

  /// Lanes of a warp have written to shared memory with an ordinary instruction or with cp.async, which is the latest
  /// access to it.
  void note_write(int warp, std::int32_t instruction, std::uint32_t lanes, unsigned bytes,
                  const std::uint32_t* offsets);
  /// Another CTA has written to shared memory: whether the asynchronous proxy can see that is not tracked.
  void forget_write(std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets);
  /// fence.proxy.async; `only_mbarriers`: fence.mbarrier_init, which releases mbarrier.init and is not a proxy fence.
  void fence(const Warp& warp, std::uint32_t lanes, bool only_mbarriers);
  /// A thread has initialised the mbarrier.
  void note_initialised(Mbarrier& barrier, int warp, int lane, std::int32_t instruction);

  /// TMA will write these chunks; `swizzle` is that of the tensor map, or null if there is none.
  void note_copy(const std::vector<std::uint32_t>& chunks, std::int32_t instruction, const Swizzle* swizzle);

  /// An asynchronous operation reads these chunks: reports those that are not visible to it.
  void check_visible(const Warp& warp, std::int32_t instruction, int lane, const std::vector<std::uint32_t>& chunks);
  /// A wgmma reads an operand, "A" or "B": reports chunks that TMA has written in another layout.
  void check_layout(const Warp& warp, std::int32_t instruction, const std::vector<std::uint32_t>& chunks,
                    Swizzle swizzle, const char* operand);
  /// A copy signals the mbarrier: reports it if nothing has made its initialisation visible.
  void check_initialised(const Warp& warp, std::int32_t instruction, int lane, Mbarrier& barrier);

 private:
  struct Chunk {               // 16 bytes of shared memory
    std::int32_t writer = -1;  // the ordinary instruction that wrote it last; -1: the asynchronous proxy can see it
    std::uint32_t written_at = 0;
    AccessNumber number = 0;
    std::uint16_t thread = 0;
    std::uint8_t swizzle = 0;  // 1 + the swizzle of the tensor map with which TMA wrote it; 0: it was written otherwise
    std::int32_t tma = -1;     // the load
  };

  CtaExecutor& cta_;
  const std::size_t num_warps_;
  std::vector<Chunk> chunks_;
  std::uint32_t now_ = 0;                                // counts writes and fences
  std::vector<std::uint32_t> fences_, mbarrier_fences_;  // by thread: the time of the last fence
  std::vector<Clock> known_at_fence_;  // by warp: what its first lane knew at its last fence.proxy.async
  int next_engine_ = 0;
};

}  // namespace flash_ladder::emulator
