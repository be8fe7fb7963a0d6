// Reports that a CTA cannot continue, which of its warps wait, and what each of them is waiting for.
#pragma once

#include <cstdint>

namespace flash_ladder::emulator {

class CtaExecutor;

/// All its warps wait for each other. If there was a finding before, it is probably the cause, but this is reported, too.
void report_deadlock(CtaExecutor& cta);
/// It will wait for ever, for memory or for other CTAs. `others` is the number of CTAs that are stuck with it, `unstarted`
/// the number of those for which there is no room.
void report_stuck(CtaExecutor& cta, std::uint64_t others, std::uint64_t unstarted);

}  // namespace flash_ladder::emulator
