// `harness --profiles A B`: two recordings of one version beside each other.
#pragma once

#include "app/options.h"

namespace flash_ladder {

/// Compares two profiles: of two devices, two toolkits, or of yesterday and today. Returns the exit code. Throws UsageError where they
/// cannot be compared: of different versions, one timed and one counted, or without a problem in common.
int compare_recordings(const Options& options);

}  // namespace flash_ladder
