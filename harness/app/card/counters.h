// What the virtual GPU counted, formatted for a reader.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "app/terminal/terminal.h"
#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// The totals of a launch, as lines of a study card: a label and a text each.
std::vector<std::pair<std::string, std::string>> describe_counters(const Result& result);

/// The same as three figures for a table: warp instructions, and shared wavefronts and global sectors as multiples of
/// the ideal. "-" if there is no figure.
struct CounterSummary {
  std::string instructions, shared, global;
};
CounterSummary summarise_counters(const Result& result);

/// How many source lines a study shows.
constexpr std::size_t kCostliestLines = 5;
constexpr std::size_t kAllLines = 0;

/// A table of the costliest lines of the kernel's file, or, with kAllLines, of all lines in file order. A line's cost
/// is the sum of its warp instructions, its wavefronts of shared memory and its sectors of global memory. Code that a
/// line calls in other files counts towards the line; code that it calls in the kernel's file is listed there, by call.
std::string format_lines(const Result& result, std::size_t most, const std::filesystem::path& source_tree,
                         const Paint& paint);

/// What a line of the __global__ functions of two versions costs, including everything it calls.
struct LineChange {
  int from = 0, to = 0;  // line numbers; 0: only the other version has the line
  std::string place;     // ":171", or "05:171" if only the old version has the line
  std::string code;
  Counters before, after;
};
/// Two versions side by side, in the order of the new file. Lines that access no memory and have equal counts are left out.
std::vector<LineChange> line_changes(const Version& from, const Result& result_from, const Version& to,
                                     const Result& result_to, const std::filesystem::path& source_tree);

/// "1,024 → 512": instructions, and the wavefronts and sectors of its memory accesses as multiples of the ideal.
struct LineCells {
  std::string instructions, shared, global;
};
LineCells cells(const LineChange& change);

/// One row per change.
std::string format_line_changes(const std::vector<LineChange>& changes, const Paint& paint);

}  // namespace flash_ladder
