// Where an output is wrong, and by which factor: pure functions of the output and its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/diagnosis/tiling.h"
#include "worker/reference.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// A row of the output that the reference has, and with something wrong in it.
struct WrongRow {
  std::int64_t batch, head, row;
  std::int64_t index;  // as Reference::row() wants it
};

/// The elements outside the bound, or not finite, of all rows that the reference has.
struct WrongElements {
  std::int64_t compared = 0, wrong = 0;
  std::int64_t unwritten = 0, not_finite = 0;  // of the wrong ones
  std::int64_t around = 0;      // compared elements in rows, columns, query tiles and heads that all have wrong ones
  std::vector<bool> heads;      // [batch · heads]: which have any
  std::vector<bool> q_tiles;    // [query tiles]
  std::vector<bool> tile_rows;  // [block_q], row modulo block_q
  std::vector<bool> columns;    // [head_dim]
  bool all_rows_compared = false;
  std::vector<WrongRow> rows;     // in order of batch, head, row
  std::int64_t first_column = 0;  // of the first wrong element, which is in rows.front()
};
WrongElements find_wrong(const Reference& reference, const HostBuffer& output, const Tiling& tiling);

/// One sentence: which rows and columns, modulo what, of which tiles, warps and heads. `wrong` has at least one.
std::string describe_places(const WrongElements& wrong, const AttentionProblem& problem, const Tiling& tiling);

/// Which of `wrong`, as ranges, and modulo the smallest power of two that describes them: "8–15 modulo 16", "0, 3–5"; "" for
/// all; nullopt where that would be more than four ranges.
std::optional<std::string> describe_set(const std::vector<bool>& wrong);

/// One sentence where the output is the reference times a factor: the same for all wrong rows, or one for each row or column.
std::optional<std::string> describe_factor(const Reference& reference, const HostBuffer& output,
                                           const WrongElements& wrong);

}  // namespace flash_ladder
