#include "source/line_alignment.h"

#include <cstddef>

#include "source/common_subsequence.h"

namespace flash_ladder {

std::map<int, int> align_lines(const std::vector<CodeLine>& from, const std::vector<CodeLine>& to) {
  std::map<int, int> aligned;
  std::size_t replaced_i = 0, replaced_j = 0;  // where a run of replaced lines starts
  const auto end_run = [&](std::size_t i, std::size_t j) {
    if (i - replaced_i == j - replaced_j)
      for (std::size_t k = 0; replaced_i + k < i; ++k) aligned[from[replaced_i + k].number] = to[replaced_j + k].number;
    replaced_i = i + 1;
    replaced_j = j + 1;
  };
  for_each_common(
      from.size(), to.size(), [&](std::size_t i, std::size_t j) { return from[i].text == to[j].text; },
      [&](std::size_t i, std::size_t j) {
        end_run(i, j);
        aligned[from[i].number] = to[j].number;
      });
  end_run(from.size(), to.size());
  return aligned;
}

}  // namespace flash_ladder
