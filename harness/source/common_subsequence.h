// The longest common subsequence of two sequences, which is the part that a minimal diff keeps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace flash_ladder {

/// Calls each(i, j) for every pair of a longest common subsequence of two sequences of these sizes, in order; equal(i,
/// j) says whether element i of the first is element j of the second. Time and memory are proportional to the product
/// of the sizes.
template <typename Equal, typename Each>
void for_each_common(std::size_t from_size, std::size_t to_size, const Equal& equal, const Each& each) {
  // at(i, j): its length for the suffixes that begin with elements i and j.
  const std::size_t width = to_size + 1;
  std::vector<int> length((from_size + 1) * width, 0);
  const auto at = [&](std::size_t i, std::size_t j) -> int& { return length[i * width + j]; };
  for (std::size_t i = from_size; i-- > 0;)
    for (std::size_t j = to_size; j-- > 0;)
      at(i, j) = equal(i, j) ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));

  std::size_t i = 0, j = 0;
  while (i < from_size && j < to_size) {
    if (equal(i, j)) {
      each(i++, j++);
    } else if (at(i + 1, j) >= at(i, j + 1)) {
      ++i;
    } else {
      ++j;
    }
  }
}

}  // namespace flash_ladder
