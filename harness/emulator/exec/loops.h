// Finds out what a warp in a loop is waiting for, and whether it will wait for ever.
#pragma once

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// Whether a yielding warp is in the same state as before, with no change of memory in between. Snapshots are taken less
/// and less often, so that cycles of several scheduling slots are found too (Brent's algorithm).
bool has_come_back(CtaExecutor& cta, Warp& warp);

// Of the loop that a yielding warp is in:

/// Whether it repeatedly tries to get a lock, which another lane of the warp may hold.
bool spins_on_a_lock(CtaExecutor& cta, const Warp& warp);
/// Whether it reads something that others may change, or the time.
bool may_wait(CtaExecutor& cta, const Warp& warp);
/// What it waits for: the first load or atomic operation in it that decides whether it ends; null if there is none.
const Instruction* looked_at(CtaExecutor& cta, const Warp& warp);

}  // namespace flash_ladder::emulator
