// Machine code (SASS) as nvdisasm prints it: functions, basic blocks, loops, and how often each opcode occurs in them.
// The counts are static: they say what the code contains, not what a run executes.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flash_ladder {

/// Opcode without its modifiers (HMMA for HMMA.16816.F32) → number of instructions.
///
/// IMAD.MOV and IMAD.SHL do the work of a MOV and a SHF, but in the multiplier's pipe, so they count as IMAD, whose pipe
/// they occupy. An instruction that can never execute (`@!PT LDS RZ, [RZ]`, which ptxas puts before copies) counts as NOP.
using OpcodeCounts = std::map<std::string, int>;

/// Instructions that run one after another: control enters at the first and leaves at the last.
struct BasicBlock {
  std::vector<std::string> opcodes;  // without modifiers
  std::vector<int> successors;       // indices of the blocks that may come next
};

/// One __global__ function with the subroutines that ptxas placed after it. A call's successors are the subroutine and
/// the instruction after the call; a return has no successors.
struct SassFunction {
  std::string name;                // mangled
  std::vector<BasicBlock> blocks;  // in the order of the text; the first is the entry
};

/// Parses the output of `nvdisasm --print-code`. The padding after each function's last instruction (a branch to itself
/// and NOPs) is left out.
std::vector<SassFunction> parse_sass(std::string_view text);

/// All instructions of a function.
OpcodeCounts count_opcodes(const SassFunction& function);

/// A natural loop: all blocks from which the loop's header can be reached again without leaving the loop.
struct Loop {
  int header;                // the block that is entered first and is the target of the back edges
  std::vector<int> latches;  // the sources of the back edges
  std::vector<int> blocks;   // all blocks in ascending order, including those of inner loops
};

/// The natural loops of a function, a loop before those inside it.
std::vector<Loop> natural_loops(const SassFunction& function);

/// The contents of one iteration of a loop.
struct LoopCounts {
  // Blocks that every iteration passes through, because they dominate all back edges. An inner loop's blocks count once.
  OpcodeCounts every_iteration;
  OpcodeCounts cold;        // the loop's other blocks
  std::vector<int> blocks;  // all blocks, in ascending order
};

/// The innermost loop around the most instructions of one opcode; nullopt if the opcode does not occur in a loop.
std::optional<LoopCounts> hot_loop(const SassFunction& function, const std::string& opcode);

/// The same over several functions: the innermost loop around the most HMMA (FFMA if no function has an HMMA) in any of
/// them.
struct HotLoop : LoopCounts {
  std::size_t function;  // the index of the function that contains it
};
std::optional<HotLoop> hot_loop(const std::vector<SassFunction>& functions);

}  // namespace flash_ladder
