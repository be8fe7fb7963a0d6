// Determines which lanes of a warp execute once the lanes have taken different paths, where they wait for each other,
// and whether the right lanes execute an instruction together. PTX ISA, "Independent Thread Scheduling",
// "bar.warp.sync".
#pragma once

#include <cstdint>
#include <string>

#include "emulator/decode/instruction.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// Lanes diverge at a branch: those that do not branch continue first, those that do wait in the stack, and below them an
/// entry for all of them waits at the reconvergence point.
void part(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t taken);
/// brx.idx
void branch_by_table(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask);
/// The active lanes have reached the point where the others wait, or will arrive: continue with those, or together.
void reconverge(CtaExecutor& cta, Warp& warp);

/// The active lanes are at a __syncwarp() and wait for lanes that took another path at a branch: lets those run,
/// because they may reach a __syncwarp() there. False if there are no such lanes.
bool wait_for_lanes(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t named);
/// The active lanes are at a barrier of the block, and others of the warp are not, because they have waited for
/// these: lets those run until they arrive too, and then all execute it together. False if that is not the case.
bool gather_at_barrier(CtaExecutor& cta, Warp& warp, const Instruction& instruction);
/// The active lanes repeat a cycle: lets others of the warp run, which wait at the reconvergence point or are on another
/// path. Lanes that diverged because of what they wait for then reconverge further out. `changes` counts the changes of
/// memory. False if all of them have been scheduled without one.
bool let_others_run(Warp& warp, std::uint64_t changes);

/// For whole-warp instructions that take no mask.
void check_all_lanes(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask);
/// Reports lanes that execute with the mask `named` although other lanes that it names are missing; `here` are those
/// that execute the instruction now.
void check_group(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t here,
                 std::uint32_t lanes, std::uint32_t named);
/// Where these lanes diverged from the others, for a message: ": they diverged at kernel.cu:12"; empty when that is not
/// known.
std::string describe_parting(CtaExecutor& cta, const Warp& warp, std::uint32_t lanes);

}  // namespace flash_ladder::emulator
