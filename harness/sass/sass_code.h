// Machine code (SASS) as nvdisasm prints it: functions, basic blocks, loops, and how often each opcode stands in them. The
// counts are static. They say what the code contains, not what a run executes.
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
/// IMAD.MOV and IMAD.SHL do the work of a MOV and a SHF, but on the pipe that multiplies: they count as IMAD, whose pipe
/// they occupy. An instruction that can never execute (`@!PT LDS RZ, [RZ]`, which ptxas puts before copies) counts as NOP.
using OpcodeCounts = std::map<std::string, int>;

/// Instructions that run one after another, entered at the first and left at the last.
struct BasicBlock {
  std::vector<std::string> opcodes;  // without modifiers
  std::vector<int> successors;       // indices of the blocks that may come next
};

/// One __global__ function with the subroutines that ptxas put behind it. A call's successors are the subroutine and the
/// instruction after the call; a return has none.
struct SassFunction {
  std::string name;                // mangled
  std::vector<BasicBlock> blocks;  // in the order of the text; the first is the entry
};

/// Reads what `nvdisasm --print-code` prints. The padding behind each function's last instruction, a branch to itself and
/// NOPs, is left out.
std::vector<SassFunction> parse_sass(std::string_view text);

/// All instructions of a function.
OpcodeCounts count_opcodes(const SassFunction& function);

/// A natural loop: all blocks from which the loop's first block is reached again without leaving through it.
struct Loop {
  int header;                // the block that is entered first, and to which the back edges lead
  std::vector<int> latches;  // the blocks from which the back edges come
  std::vector<int> blocks;   // all, in ascending order, inner loops included
};

/// The natural loops of a function, a loop before those inside it.
std::vector<Loop> natural_loops(const SassFunction& function);

/// What one iteration of a loop contains.
struct LoopCounts {
  // Blocks that every iteration passes through: they dominate all back edges. An inner loop's blocks count once.
  OpcodeCounts every_iteration;
  OpcodeCounts cold;        // the loop's other blocks
  std::vector<int> blocks;  // all of them, in ascending order
};

/// The loop that is closest around the most instructions of one opcode, an inner one rather than one around it; nullopt when none
/// stands in a loop.
std::optional<LoopCounts> hot_loop(const SassFunction& function, const std::string& opcode);

/// The same of several functions: the loop closest around the most HMMA (FFMA where none has an HMMA) in any of them.
struct HotLoop : LoopCounts {
  std::size_t function;  // the index of the one that it is in
};
std::optional<HotLoop> hot_loop(const std::vector<SassFunction>& functions);

}  // namespace flash_ladder
