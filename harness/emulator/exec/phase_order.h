// A wait that names a parity passes if the last phase that has ended has this parity. It cannot tell that phase from the
// one two phases earlier or later. So something must order the wait after the end of the phase before, or else it could
// have passed two phases too early; and before the end of the next phase, or else it could find another parity and wait
// for ever. Whether it does depends on timing, and on the virtual GPU it may never happen.
#pragma once

#include <cstdint>

namespace flash_ladder::emulator {

class CtaExecutor;
struct Instruction;
struct Mbarrier;
struct Warp;

/// A thread of the CTA arrives at its mbarrier.
void note_arrival(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier);
/// A phase has received all arrivals: reports waits for the phase before that could have come later.
void check_end_of_phase(CtaExecutor& cta, Mbarrier& barrier);
/// These lanes have waited for the parity of the phase that has ended: reports that they could have passed earlier. Must
/// be called before they acquire anything from the mbarrier.
void check_wait(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t lanes,
                Mbarrier& barrier);

}  // namespace flash_ladder::emulator
