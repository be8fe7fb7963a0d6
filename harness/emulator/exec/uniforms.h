// The registers of a warp that keep their values while a CTA runs: constants and special registers. PTX ISA, "Special
// Registers".
#pragma once

namespace flash_ladder::emulator {

class CtaExecutor;

/// Fills them for the CTA that is about to run. `again`: the executor has run another CTA before, so that only registers
/// that may differ from CTA to CTA are filled.
void fill_uniforms(CtaExecutor& cta, bool again);

}  // namespace flash_ladder::emulator
