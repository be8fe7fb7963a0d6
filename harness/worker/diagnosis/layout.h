// Which element of K meets which element of Q in S = Q Kᵀ, and which element of V ends up where in O: read from the
// output of a kernel whose inputs make it visible.
//
//   S   Q is one-hot: the only non-zero element of row r is in column r % head_dim, so S[r][key] is one element of K as the
//       kernel reads it. V is one-hot: O[r][c] is P of the c-th key of the last tile. K holds one bit of the element's own
//       address, a different bit in each head: P is large if it is 1. Together the heads give the address that was read.
//   PV  Q and K are one-hot, so row r has P = 1 at the r-th key of the last tile. V holds the element's own key, or its
//       own column, and O shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/inputs.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// What was read in place of each element of the last tile of K or V.
struct Layout {
  struct Wrong {
    std::int64_t key, column;            // position within the tile
    std::int64_t key_read, column_read;  // key_read is counted from the first key of all; -1: not a single element
  };
  std::int64_t first_key = 0;  // of the tile
  std::int64_t elements = 0, wrong = 0;
  std::vector<bool> keys, columns;      // [block_kv], [head_dim]: keys and columns with a wrong element
  bool whole_rows = true;               // whole rows are wrong: all columns of a key come from those of one other key
  std::vector<std::int64_t> keys_read;  // [block_kv]: read in place of the key, in its first examined column
  std::optional<Wrong> first = {};      // the first wrong one that is a single element, otherwise the first
};

/// The wrong keys and columns of `tensor`, "K" or "V", with an example. `layout` must contain a known wrong element.
std::string describe_layout(const Layout& layout, const char* tensor);

class LayoutReader {
 public:
  /// Examines the last of `tiles` tiles.
  LayoutReader(std::int64_t head_dim, std::int64_t block_kv, std::int64_t tiles);

  /// The number of heads that it needs, with at least head_dim rows and exactly tiles · block_kv keys. 0 if it cannot
  /// examine the tile because the tile has more keys than O has columns.
  std::int64_t heads() const { return block_kv_ <= head_dim_ ? bits() + kHeadsOfPV : 0; }

  /// Fills these heads, starting at head `first` of batch entry 0; the inputs are separate tensors.
  void write(Inputs& inputs, std::int64_t first) const;

  /// What the output of a launch with these inputs shows; nullopt if it cannot be examined.
  std::optional<Layout> read_S(const AttentionProblem& problem, const HostBuffer& output, std::int64_t first) const;
  std::optional<Layout> read_PV(const AttentionProblem& problem, const HostBuffer& output, std::int64_t first) const;

 private:
  static constexpr std::int64_t kHeadsOfPV = 3;  // V holds its key modulo and divided by head_dim, and its column

  std::int64_t bits() const { return key_bits_ + column_bits_; }
  bool address_bit(std::int64_t key, std::int64_t column, std::int64_t bit) const;
  static constexpr std::int64_t kNotYet = -2;
  Layout empty_layout() const;
  static void note(Layout& layout, std::int64_t key, std::int64_t column, std::int64_t key_read,
                   std::int64_t column_read);

  std::int64_t head_dim_, block_kv_, tiles_, key_bits_, column_bits_;
};

}  // namespace flash_ladder
