// `harness --kernel NN --quiz`: the reader makes a prediction, then sees the result.
#pragma once

#include <optional>
#include <string>

#include "app/options/options.h"

namespace flash_ladder {

/// The factor that the reader typed: "1.3", "1,3", "1.3x", "1.3×"; nullopt if it is not a factor from 0.001 to 1000.
std::optional<double> parse_factor(const std::string& text);

/// How far a guess was from the measurement, in words; both are factors by which the version is faster.
std::string judge(double guess, double measured);

/// Asks on standard input for a factor over the version before, then shows the header, the counts and the measurement
/// from profiles/ and from the build. Runs nothing. Throws UsageError if there is no version before, and at the end of
/// the input.
int quiz(const Options& options);

}  // namespace flash_ladder
