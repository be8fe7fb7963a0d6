#include "app/compare/sass_alignment.h"

#include <algorithm>
#include <cstddef>

#include "source/common_subsequence.h"

namespace flash_ladder {

std::vector<AlignedInstructions> align_by_opcode(const std::vector<const SassInstruction*>& from,
                                                 const std::vector<const SassInstruction*>& to) {
  std::vector<AlignedInstructions> rows;
  std::size_t gap_i = 0, gap_j = 0;  // where the gap between two matching rows starts
  const auto end_gap = [&](std::size_t i, std::size_t j) {
    for (; gap_i < i || gap_j < j; gap_i += gap_i < i, gap_j += gap_j < j)
      rows.push_back({gap_i < i ? from[gap_i] : nullptr, gap_j < j ? to[gap_j] : nullptr});
    gap_i = i + 1;
    gap_j = j + 1;
  };
  for_each_common(
      from.size(), to.size(), [&](std::size_t i, std::size_t j) { return from[i]->opcode == to[j]->opcode; },
      [&](std::size_t i, std::size_t j) {
        end_gap(i, j);
        rows.push_back({from[i], to[j]});
      });
  end_gap(from.size(), to.size());
  return rows;
}

KernelParts parts_of(const std::vector<SassText>& functions) {
  KernelParts parts;
  for (const SassText& function : functions) {
    const auto& all = function.instructions;
    const auto is_hot = [](const SassInstruction& instruction) { return instruction.in_hot_loop; };
    const auto last = std::find_if(all.rbegin(), all.rend(), is_hot).base();
    for (auto instruction = all.begin(); instruction != all.end(); ++instruction) {
      auto& part = instruction->in_hot_loop                    ? parts.hot_loop
                   : instruction < last || last == all.begin() ? parts.before
                                                               : parts.after;
      part.push_back(&*instruction);
    }
  }
  return parts;
}

}  // namespace flash_ladder
