#include "app/card/source_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>

namespace flash_ladder {

std::pair<std::string, int> split_place(const std::string& place) {
  const std::size_t colon = place.rfind(':');
  int line = 0;
  if (colon != std::string::npos) std::from_chars(place.data() + colon + 1, place.data() + place.size(), line);
  return {place.substr(0, colon), line};
}

bool is_in_kernels(const std::string& place) { return place.starts_with("kernels/"); }

std::string describe_position(const SourcePosition& position) {
  std::string text;
  for (const std::string& place : position) {
    const auto [file, line] = split_place(place);
    text += (text.empty() ? "" : " ← ") + (is_in_kernels(place) ? fmt::format(":{}", line) : place);
  }
  return text.empty() ? "(no line information)" : text;
}

SourcePosition in_kernel_file(const SourcePosition& position) {
  auto first = std::find_if(position.begin(), position.end(), is_in_kernels);
  if (first == position.end()) first = position.begin();
  return {first, position.end()};
}

std::string SourceText::line(const std::string& place) {
  const auto [file, number] = split_place(place);
  const auto [entry, is_new] = files_.try_emplace(file);
  if (is_new) {
    std::ifstream stream(tree_ / file);
    for (std::string text; std::getline(stream, text);) entry->second.push_back(text);
  }
  if (number < 1 || static_cast<std::size_t>(number) > entry->second.size()) return "";
  const std::string& text = entry->second[static_cast<std::size_t>(number) - 1];
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

}  // namespace flash_ladder
