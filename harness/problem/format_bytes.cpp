#include "problem/format_bytes.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace flash_ladder {

std::string format_bytes(double bytes) {
  constexpr std::array<std::pair<double, const char*>, 5> kUnits{
      {{1e15, "PB"}, {1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "KB"}}};
  for (const auto& [size, unit] : kUnits)
    if (bytes >= size) return fmt::format("{:.1f} {}", bytes / size, unit);
  return fmt::format("{:.0f} bytes", bytes);
}

}  // namespace flash_ladder
