// The units that work beside the warps of a CTA from Hopper on: the tensor cores that run wgmma, TMA, and the pool of
// registers of setmaxnreg. PTX ISA, "Asynchronous Operations".
//
// Everything happens as late as the ISA allows or, with Options::early_async, as early. A correct program gets the same
// results either way; a program that is right only by luck gets a finding. A kernel that uses none of these has no
// AsyncUnits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/exec/async_copies.h"
#include "emulator/exec/async_proxy.h"
#include "emulator/exec/register_pool.h"
#include "emulator/exec/wgmma_unit.h"

namespace flash_ladder::emulator {

class CtaExecutor;

class AsyncUnits {
 public:
  AsyncUnits(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes, int registers_per_thread);

  /// A CTA begins; all its threads have ended.
  void start();
  void finish();
  void renumber(const Renumbering& renumbering);

  /// What each warp has done so far, and how many registers it holds.
  std::vector<Role> roles() const;
  /// What a warp waits for here, as the end of "warp 1 waits …"; empty if it does not wait.
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;

  AsyncProxy proxy;
  WgmmaUnit wgmma;
  AsyncCopies copies;
  RegisterPool registers;

 private:
  CtaExecutor& cta_;
};

}  // namespace flash_ladder::emulator
