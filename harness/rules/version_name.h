// Ways to name a version: 7, 07, 07_ldmatrix, ldmatrix or kernels/07_ldmatrix.cu; an extension by its name alone.
#pragma once

#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// The number of a version, whether that version exists or not; nullopt if the text is not a number.
std::optional<int> parse_number(const std::string& text);

/// "01_naive, 02_online_softmax, …", for messages.
std::string known_versions();

/// The version of that name; surrounding blanks are ignored. Throws UsageError if there is none.
const Version& select_version(const std::string& text);

}  // namespace flash_ladder
