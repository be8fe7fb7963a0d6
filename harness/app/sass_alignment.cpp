#include "app/sass_alignment.h"

#include <algorithm>
#include <cstddef>

namespace flash_ladder {

std::vector<AlignedInstructions> align_by_opcode(const std::vector<const SassInstruction*>& from,
                                                 const std::vector<const SassInstruction*>& to) {
  // length[i][j]: of the longest common subsequence of from[i…] and to[j…].
  const std::size_t width = to.size() + 1;
  std::vector<int> length((from.size() + 1) * width, 0);
  const auto at = [&](std::size_t i, std::size_t j) -> int& { return length[i * width + j]; };
  for (std::size_t i = from.size(); i-- > 0;)
    for (std::size_t j = to.size(); j-- > 0;)
      at(i, j) = from[i]->opcode == to[j]->opcode ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));

  std::vector<AlignedInstructions> rows;
  std::size_t i = 0, j = 0, gap_i = 0, gap_j = 0;  // what stands between two rows starts at the latter two
  const auto end_gap = [&] {
    for (; gap_i < i || gap_j < j; gap_i += gap_i < i, gap_j += gap_j < j)
      rows.push_back({gap_i < i ? from[gap_i] : nullptr, gap_j < j ? to[gap_j] : nullptr});
  };
  while (i < from.size() && j < to.size()) {
    if (from[i]->opcode == to[j]->opcode) {
      end_gap();
      rows.push_back({from[i++], to[j++]});
      gap_i = i;
      gap_j = j;
    } else if (at(i + 1, j) >= at(i, j + 1)) {
      ++i;
    } else {
      ++j;
    }
  }
  i = from.size();
  j = to.size();
  end_gap();
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
