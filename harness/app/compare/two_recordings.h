// `harness --profiles A B`: two recordings of one version side by side.
#pragma once

#include "app/options/options.h"

namespace flash_ladder {

/// Compares two profiles: of two devices, of two toolkits, or of yesterday and today. Returns the exit code. Throws
/// UsageError if they cannot be compared because they are of different versions, because one is timed and the other is
/// counted, or because they have no problem in common.
int compare_recordings(const Options& options);

}  // namespace flash_ladder
