// Packed sequences have no padding between them, so no guard shows that a kernel reads beyond the end of one. Instead, every
// other sequence becomes NaN, and the output of the others must stay the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/inputs.h"

namespace flash_ladder {

/// Fills Q, K and V of the sequences `first`, `first` + 2, … of a packed problem with NaN; of a backward problem, in a copy of its
/// gradients, also dO, O and L.
void spoil_every_other(Inputs& inputs, std::int64_t first);

/// The first element at which the outputs of the sequences differ that spoil_every_other(…, first) has left as they were.
std::optional<std::string> find_influence(const AttentionProblem& problem, const HostBuffer& output,
                                          const HostBuffer& beside_nan, std::int64_t first);

/// Replaces the rows of the spoilt sequences in `beside_nan` by those of `output`. Where launches may differ in the last bits, the
/// result is then compared with a reference.
void restore_spoilt(const AttentionProblem& problem, HostBuffer& beside_nan, const HostBuffer& output,
                    std::int64_t first);

}  // namespace flash_ladder
