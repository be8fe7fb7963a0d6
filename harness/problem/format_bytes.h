// Sizes, formatted for a reader.
#pragma once

#include <string>

namespace flash_ladder {

/// A human-readable number of bytes: "26.0 GB", "512 KB".
std::string format_bytes(double bytes);

}  // namespace flash_ladder
