#include "source/line_alignment.h"

#include <algorithm>
#include <cstddef>

namespace flash_ladder {

std::map<int, int> align_lines(const std::vector<CodeLine>& from, const std::vector<CodeLine>& to) {
  // length[i][j]: of the longest common subsequence of from[i…] and to[j…].
  std::vector<std::vector<int>> length(from.size() + 1, std::vector<int>(to.size() + 1, 0));
  for (std::size_t i = from.size(); i-- > 0;)
    for (std::size_t j = to.size(); j-- > 0;)
      length[i][j] =
          from[i].text == to[j].text ? length[i + 1][j + 1] + 1 : std::max(length[i + 1][j], length[i][j + 1]);

  std::map<int, int> aligned;
  std::size_t i = 0, j = 0, replaced_i = 0, replaced_j = 0;  // a run of replaced lines starts at the latter two
  const auto end_run = [&] {
    if (i - replaced_i == j - replaced_j)
      for (std::size_t k = 0; replaced_i + k < i; ++k) aligned[from[replaced_i + k].number] = to[replaced_j + k].number;
  };
  while (i < from.size() && j < to.size()) {
    if (from[i].text == to[j].text) {
      end_run();
      aligned[from[i++].number] = to[j++].number;
      replaced_i = i;
      replaced_j = j;
    } else if (length[i + 1][j] >= length[i][j + 1]) {
      ++i;
    } else {
      ++j;
    }
  }
  i = from.size();
  j = to.size();
  end_run();
  return aligned;
}

}  // namespace flash_ladder
