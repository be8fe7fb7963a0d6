// Where an output is wrong, and by what factor: pure functions of the output and its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/diagnosis/tiling.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// A row of the output that the reference contains and that has a wrong element.
struct WrongRow {
  std::int64_t batch, head, row;
  std::int64_t index;  // as Reference::row() expects it
};

/// The elements that are outside the bound or not finite, in all rows that the reference contains.
struct WrongElements {
  std::int64_t compared = 0, wrong = 0;
  std::int64_t unwritten = 0, not_finite = 0;  // among the wrong ones
  std::int64_t around = 0;      // compared elements whose row, column, query tile and head all contain wrong ones
  std::vector<bool> heads;      // [batch · heads]: heads with a wrong element
  std::vector<bool> q_tiles;    // [query tiles]
  std::vector<bool> tile_rows;  // [block_q], row modulo block_q
  std::vector<bool> columns;    // [head_dim]
  bool all_rows_compared = false;
  std::vector<WrongRow> rows;     // in order of batch, head, row
  std::int64_t first_column = 0;  // column of the first wrong element, whose row is rows.front()
};
WrongElements find_wrong(const Reference& reference, const HostBuffer& output, const Tiling& tiling);

/// One sentence: the wrong rows and columns, modulo what, of which tiles, warps and heads. `wrong` contains at least one. A row of dK
/// or dV is a key.
std::string describe_places(const WrongElements& wrong, const AttentionProblem& problem, const Tiling& tiling,
                            const char* row = "query");

/// The true members of `wrong` as ranges, modulo the smallest power of two that describes them: "8–15 modulo 16", "0,
/// 3–5"; "" for all; nullopt if that would take more than four ranges.
std::optional<std::string> describe_set(const std::vector<bool>& wrong);

/// One sentence if the output is the reference times a factor, which may be the same for all wrong rows or one for each
/// row or column. A gradient is not divided by a row sum.
std::optional<std::string> describe_factor(const Reference& reference, const HostBuffer& output,
                                           const WrongElements& wrong, bool is_gradient = false);

}  // namespace flash_ladder
