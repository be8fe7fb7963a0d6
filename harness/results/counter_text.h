// Counters in words and figures for a reader: those of a version on its study card, and those of any program under
// scripts/emulate --count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "results/counters.h"

namespace flash_ladder {

/// "1,234,567"
std::string grouped(std::uint64_t count);
/// The same, or "-" for no value.
std::string count_or_dash(std::uint64_t count);

/// The name of a counter in words: "shared loads: wavefronts of the best pattern" for "shared_load_ideal_wavefronts".
std::string in_words(std::string_view counter);

/// The cost of memory accesses, and the lowest possible cost.
struct MemoryCost {
  std::uint64_t actual = 0, ideal = 0;

  MemoryCost& operator+=(const Traffic& traffic) {
    actual += traffic.transactions;
    ideal += traffic.ideal;
    return *this;
  }
  /// "1.25x"; "-" if there were no accesses.
  std::string ratio() const;
  bool operator==(const MemoryCost&) const = default;
};

/// Wavefronts of shared memory, sectors of global memory.
MemoryCost shared_wavefronts(const Counters& counters);
MemoryCost global_sectors(const Counters& counters);

/// The cost of a line: the sum of its warp instructions, its wavefronts and its sectors.
std::uint64_t total_cost(const Counters& counters);

/// The totals as lines: a label and a text each. A text is empty if the event did not happen.
std::vector<std::pair<std::string, std::string>> describe_counters(const Counters& counters);

/// The figures of a line in a table, and the table's heading up to where `title` begins. `global`: includes sectors of
/// global memory.
std::string line_heading(const std::string& title, bool global);
std::string line_figures(const Counters& counters, std::uint64_t cost_of_all, bool global);

/// What "cost" means, and which instructions count towards a line.
inline constexpr std::string_view kCostExplained =
    "cost: the line's share of all warp instructions, wavefronts and sectors, added up. What the compiler has moved to a "
    "barrier or a wait is charged to the line that uses it; everything else to the line that the PTX names.";

}  // namespace flash_ladder
