// Tables that leave out their least important columns if the terminal is too narrow for all of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "app/terminal/terminal.h"

namespace flash_ladder {

struct Column {
  enum class Side { left, right };
  std::string header;
  std::size_t width;  // the widest expected cell, without the blank before it
  Side side = Side::right;
  int importance = 0;  // columns of the lowest importance are left out first
};

class Table {
 public:
  /// `room` is the maximum width of a row, in terminal columns. The first column is always kept.
  explicit Table(std::vector<Column> columns, std::size_t room = output_width());

  /// One cell per column, whether shown or not. Rows end with a newline.
  std::string row(const std::vector<std::string>& cells) const;
  std::string header() const;

  /// The columns left out: "smem, spill"; empty if all are shown.
  std::string left_out() const;

 private:
  std::vector<Column> columns_;
  std::vector<bool> shown_;
};

}  // namespace flash_ladder
