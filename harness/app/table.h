// Tables that leave out their least important columns where a terminal is too narrow for all.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "app/terminal.h"

namespace flash_ladder {

struct Column {
  enum class Side { left, right };
  std::string header;
  std::size_t width;  // the widest cell to expect, without the blank in front of it
  Side side = Side::right;
  int importance = 0;  // those of the lowest are left out first
};

class Table {
 public:
  /// `room` is what a row may take, in terminal columns. The first column always stays.
  explicit Table(std::vector<Column> columns, std::size_t room = output_width());

  /// A cell for each column, shown or not. Rows end with a newline.
  std::string row(const std::vector<std::string>& cells) const;
  std::string header() const;

  /// What is missing: "smem, spill"; empty when all are shown.
  std::string left_out() const;

 private:
  std::vector<Column> columns_;
  std::vector<bool> shown_;
};

}  // namespace flash_ladder
