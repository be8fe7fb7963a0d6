// Aligns two pieces of machine code side by side.
#pragma once

#include <vector>

#include "sass/sass_listing.h"

namespace flash_ladder {

/// Two instructions in one row; nullptr on a side that has no instruction there.
struct AlignedInstructions {
  const SassInstruction* from = nullptr;
  const SassInstruction* to = nullptr;

  bool same_opcode() const { return from && to && from->opcode == to->opcode; }
};

/// Pairs instructions of the same opcode, as many as possible without reordering (a longest common subsequence). The
/// instructions between two such rows are paired with each other too, whatever they are.
std::vector<AlignedInstructions> align_by_opcode(const std::vector<const SassInstruction*>& from,
                                                 const std::vector<const SassInstruction*>& to);

/// The parts of a kernel's code that are compared with each other: functions without the hot loop count as `before` in
/// full.
struct KernelParts {
  std::vector<const SassInstruction*> before, hot_loop, after;
};
KernelParts parts_of(const std::vector<SassText>& functions);

}  // namespace flash_ladder
