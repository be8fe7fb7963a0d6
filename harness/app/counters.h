// What the virtual GPU counted, for a reader.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "app/terminal.h"
#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

/// The totals of a launch, some lines of a study card: a label and its text each.
std::vector<std::pair<std::string, std::string>> describe_counters(const Result& result);

/// The same in three figures for a table: warp instructions, and shared wavefronts and global sectors as multiples of the ideal.
/// "-" where there is nothing.
struct CounterSummary {
  std::string instructions, shared, global;
};
CounterSummary summarise_counters(const Result& result);

/// How many source lines a study shows.
constexpr std::size_t kCostliestLines = 5;
constexpr std::size_t kAllLines = 0;

/// A table of the lines of the kernel's file that cost most, or of all in the order of the file: kAllLines. A line's cost is
/// its warp instructions + its wavefronts of shared memory + its sectors of global memory. What a line calls in other files
/// counts as its own; what it calls in the kernel's file is listed there, by call.
std::string format_lines(const Result& result, std::size_t most, const std::filesystem::path& source_tree,
                         const Paint& paint);

/// What a line of the __global__ functions of two versions costs with all that it calls.
struct LineChange {
  int from = 0, to = 0;  // numbers of the line; 0: only the other version has it
  std::string place;     // ":171", or "05:171" where only the old version has it
  std::string code;
  Counters before, after;
};
/// Two versions side by side, in the order of the new file. Lines that touch no memory and count alike are left out.
std::vector<LineChange> line_changes(const Version& from, const Result& result_from, const Version& to,
                                     const Result& result_to, const std::filesystem::path& source_tree);

/// "1,024 → 512": instructions, and how many times the ideal wavefronts and sectors its memory accesses cost.
struct LineCells {
  std::string instructions, shared, global;
};
LineCells cells(const LineChange& change);

/// A row for each.
std::string format_line_changes(const std::vector<LineChange>& changes, const Paint& paint);

}  // namespace flash_ladder
