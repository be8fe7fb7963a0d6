// Compilers move address computations out of loops. Moved code has no .loc of its own, so it gets the position of the
// instruction that precedes it in the text, which is often a barrier or a wait. A line with a barrier or a wait
// computes nothing, so moved code at such a line is charged to the line that first uses its result.

#include <algorithm>
#include <cstddef>

#include "emulator/decode/virtual_register.h"

namespace flash_ladder::emulator {
void charge_moved_code(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers) {
  std::vector<SourceInstruction>& sources = kernel.sources;
  for (SourceInstruction& source : sources) source.charged_to = source.position;
  std::vector<bool> of_barrier(kernel.positions.size(), false);
  std::vector<std::vector<std::size_t>> readers(registers.size());  // instructions, in order
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    const Instruction& instruction = kernel.code[i];
    if (instruction.computes_nothing) of_barrier[static_cast<std::size_t>(sources[instruction.source].position)] = true;
    if (instruction.guard >= 0) readers[static_cast<std::size_t>(instruction.guard)].push_back(i);
    for (std::size_t k = instruction.writes; k < instruction.operands; ++k)
      readers[static_cast<std::size_t>(instruction.r[k])].push_back(i);
  }
  // From the end, so that code used by moved code is charged to the same line.
  for (std::size_t i = kernel.code.size(); i-- > 0;) {
    const Instruction& instruction = kernel.code[i];
    SourceInstruction& source = sources[instruction.source];
    if (instruction.action != Action::lane || source.position == 0 ||
        !of_barrier[static_cast<std::size_t>(source.position)]) {
      continue;
    }
    const std::vector<std::size_t>& uses = readers[static_cast<std::size_t>(instruction.r[0])];
    auto use = std::upper_bound(uses.begin(), uses.end(), i);
    if (use == uses.end()) use = uses.begin();  // in the next iteration of a loop
    if (use == uses.end() || kernel.code[*use].source == instruction.source) continue;
    source.charged_to = sources[kernel.code[*use].source].charged_to;
  }
}

}  // namespace flash_ladder::emulator
