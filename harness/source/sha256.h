// SHA-256 (FIPS 180-4). Implemented here because no small library for it is packaged on the platforms where this
// project builds.
#pragma once

#include <string>
#include <string_view>

namespace flash_ladder {

/// The digest of a message in lower-case hexadecimal, 64 digits.
std::string sha256(std::string_view message);

}  // namespace flash_ladder
