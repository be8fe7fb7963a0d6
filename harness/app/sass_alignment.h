// Two pieces of machine code beside each other.
#pragma once

#include <vector>

#include "sass/sass_listing.h"

namespace flash_ladder {

/// Two instructions that stand beside each other; nullptr where only one side has one.
struct AlignedInstructions {
  const SassInstruction* from = nullptr;
  const SassInstruction* to = nullptr;

  bool same_opcode() const { return from && to && from->opcode == to->opcode; }
};

/// Beside each other stand instructions of the same opcode, as many as possible in their order (a longest common subsequence); what
/// stands between two such rows on both sides stands beside each other too, whatever it is.
std::vector<AlignedInstructions> align_by_opcode(const std::vector<const SassInstruction*>& from,
                                                 const std::vector<const SassInstruction*>& to);

/// The parts of a kernel's code that are compared with each other: functions without the hot loop all count as `before`.
struct KernelParts {
  std::vector<const SassInstruction*> before, hot_loop, after;
};
KernelParts parts_of(const std::vector<SassText>& functions);

}  // namespace flash_ladder
