// The places in the kernels to which `harness --debug` points, by the names that source/named_places.h explains. A
// place has several names if the versions name it differently; the first name that occurs in a file counts.
#pragma once

#include <string_view>
#include <vector>

namespace flash_ladder {

using Place = std::vector<std::string_view>;

// anchors_test.py reads these lines.
namespace debug_places {
inline const Place load_Q{
    "A = Q", "Load Q", "Loads this lane's share of Q", "Copy Q", "Only thread 0 calls these", "The producer"};
inline const Place load_K{"B = Kᵀ", "Starts S = Q Kᵀ", "S = Q Kᵀ"};
inline const Place load_V{"B = V", "Starts O += P V", "O += P V", "O = P V"};
inline const Place use_Q{"Chunks of Q to fragments", "S = Q Kᵀ"};
inline const Place use_K{"S = Q Kᵀ"};
inline const Place use_V{"O += P V", "O = P V", "S = Q Kᵀ, and O += P V"};
inline const Place copy_K{"Copy the next K", "Copies this thread's share of the next tile",
                          "Copy K and V",    "Only thread 0 calls these",
                          "The producer",    "For each key"};
inline const Place copy_V{"Copy V",       "Copies this thread's share of the next tile",
                          "Copy K and V", "Only thread 0 calls these",
                          "The producer", "For each key"};
inline const Place rows_of_Q{"Load Q",
                             "Loads this lane's share of Q",
                             "What this CTA computes",
                             "What this warp computes",
                             "What this thread computes",
                             "Query tiles are numbered head by head"};
inline const Place rows_of_K_and_V{"Prepares for a query tile", "What this CTA computes", "What this warp computes",
                                   "What this thread computes", "Query tiles are numbered head by head"};
inline const Place loop{"For each K/V tile", "For each key", "For each step", "For each further step"};
inline const Place swizzle{"The offset of element"};
inline const Place scale{"log2(e): exp", "Online softmax", "S = Q Kᵀ"};
inline const Place exponential{"exp(x) = 2^"};
inline const Place over_the_lanes{"Maximum and sum over", "Maximum over the four lanes", "Sums x over the 32 lanes"};
inline const Place whole_row{"of the whole row"};
inline const Place all_lanes{"All lanes must decide together"};
inline const Place m{"m"};
inline const Place l{"l"};
inline const Place add_to_l{"l += Σ P"};
inline const Place rescale_O{"O = O · r"};
inline const Place pack{"two neighbouring keys", "P to shared memory", "P = exp"};
inline const Place divide{"1 / l", "O / l"};
inline const Place store{"Normalise", "O / l"};
}  // namespace debug_places

}  // namespace flash_ladder
