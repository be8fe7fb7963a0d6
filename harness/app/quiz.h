// `harness --kernel NN --quiz`: the reader predicts, then sees.
#pragma once

#include <optional>
#include <string>

#include "app/options.h"

namespace flash_ladder {

/// The factor that somebody typed: "1.3", "1,3", "1.3x", "1.3×"; nullopt for what is none, or none from 0.001 to 1000.
std::optional<double> parse_factor(const std::string& text);

/// How far a guess was from what was measured, in words: both as factors of how much faster the version is.
std::string judge(double guess, double measured);

/// Asks for a factor over the version before on standard input, then shows header, counts and measurement from profiles/ and from
/// the build. Runs nothing. Throws UsageError where there is no version before, and at the end of the input.
int quiz(const Options& options);

}  // namespace flash_ladder
