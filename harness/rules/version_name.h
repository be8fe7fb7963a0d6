// Ways to name a version: 7, 07, 07_ldmatrix, ldmatrix or kernels/07_ldmatrix.cu; in the same way B1, D1, D01 and so on; an
// extension by its name alone. A name that versions of several tracks have is the ladder's: mma is 04, and B03 needs its number.
#pragma once

#include <optional>
#include <string>

#include "host/versions.h"

namespace flash_ladder {

/// A number, and the series in which it counts: "" and 7, "D" and 1.
struct TypedNumber {
  std::string series;
  int number = 0;

  bool operator==(const TypedNumber&) const = default;
};

/// The number of a version, whether that version exists or not; nullopt if the text is not a number.
std::optional<TypedNumber> parse_number(const std::string& text);
/// That of this version; nullopt for an extension.
std::optional<TypedNumber> number_of(const Version& version);

/// "01_naive, 02_online_softmax, …", for messages.
std::string known_versions();

/// The version of that name; surrounding blanks are ignored. Throws UsageError if there is none.
const Version& select_version(const std::string& text);

}  // namespace flash_ladder
