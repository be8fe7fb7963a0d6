// Whole numbers on the command line.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <system_error>

#include "errors.h"

namespace flash_ladder {

/// The value of a numeric flag. Throws UsageError if it is not a number or is out of range: CLI11 would only say "Could
/// not convert: --batch = two", whereas this message also says what is allowed.
template <typename Integer>
Integer parse_integer(const std::string& flag, const std::string& text, Integer least, Integer most) {
  Integer value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool is_number = stop == end && !text.empty();
  if (!is_number || error == std::errc::invalid_argument)
    throw UsageError(fmt::format("{} '{}' is not a whole number; give one of at least {}", flag, text, least));
  if (error == std::errc::result_out_of_range || value < least || value > most)
    throw UsageError(fmt::format("{} {} is out of range; allowed are {} to {}", flag, text, least, most));
  return value;
}

}  // namespace flash_ladder
