#include "app/terminal/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace flash_ladder {

Table::Table(std::vector<Column> columns, std::size_t room)
    : columns_(std::move(columns)), shown_(columns_.size(), true) {
  std::vector<std::size_t> order(columns_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return columns_[a].importance < columns_[b].importance; });
  for (const std::size_t next : order) {
    std::size_t width = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      if (shown_[i]) width += (i == 0 ? 0 : 1) + columns_[i].width;
    if (width <= room) break;
    if (next != 0) shown_[next] = false;
  }
}

std::string Table::row(const std::vector<std::string>& cells) const {
  std::string text;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (!shown_[i]) continue;
    if (i > 0) text += ' ';
    const std::size_t width = columns_[i].width, used = std::min(width, display_width(cells[i]));
    text += columns_[i].side == Column::Side::left ? pad(cells[i], width) : std::string(width - used, ' ') + cells[i];
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::string Table::header() const {
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(column.header);
  return row(cells);
}

std::string Table::left_out() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (!shown_[i]) names.push_back(columns_[i].header);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace flash_ladder
