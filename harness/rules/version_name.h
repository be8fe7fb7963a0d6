// How a version is named: 7, 07, 07_ldmatrix, ldmatrix or kernels/07_ldmatrix.cu; an extension by its name alone.
#pragma once

#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// A number of a version, whether there is one or not; nullopt for what is no number.
std::optional<int> parse_number(const std::string& text);

/// "01_naive, 02_online_softmax, …", for messages.
std::string known_versions();

/// The version of that name, with blanks around it or not. Throws UsageError when there is none.
const Version& select_version(const std::string& text);

}  // namespace flash_ladder
