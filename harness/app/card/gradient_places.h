// The places in kernels that compute gradients to which `harness --debug` points: see debug_places.h.
#pragma once

#include "app/card/debug_places.h"

namespace flash_ladder {

// anchors_test.py reads these lines.
namespace gradient_places {
inline const Place S{"Sᵀ = K Qᵀ", "S = Q Kᵀ"};
inline const Place S_of_dQ{"S = Q Kᵀ"};
inline const Place P{"P = exp(S - L)"};
inline const Place dP{"dP = dO Vᵀ", "Sᵀ = K Qᵀ, and dPᵀ", "S = Q Kᵀ, and dP"};
inline const Place dS{"dS = P ∘ (dP - D)", "P = exp(S - L), and dS"};
inline const Place dS_of_dQ{"P = exp(S - L), and dS = P ∘ (dP - D). Rows"};
inline const Place D{"D = rowsum(dO ∘ O)"};
inline const Place diagonal{"Of each half, a lane holds two columns"};
inline const Place exponential{"exp(x) = 2^"};
inline const Place multiply_rows{"S = A Bᵀ", "Starts S = A Bᵀ", "S += A Bᵀ"};
inline const Place load_A{"A = X[16 rows]"};
inline const Place load_B_transposed{"B = Xᵀ[16 of head_dim]"};
inline const Place load_B{"B = X[16 rows]"};
inline const Place column_pair{"Two elements of a column"};
inline const Place pack{"Rounds P to 16 bits"};
inline const Place to_16_bits{"P and dS to 16 bits"};
inline const Place store_dS{"dS to shared memory"};
inline const Place load_dS{"A = dS[16 queries]"};
inline const Place dV{"dV += Pᵀ dO", "dV = Pᵀ dO"};
inline const Place dK{"dV += Pᵀ dO, and dK", "dV = Pᵀ dO and dK", "dQ += dS K"};
inline const Place multiply_transposed{"C += Pᵀ B", "Starts C += P B"};
inline const Place dQ{"dQ += dS K", "dQ = dS K"};
inline const Place start_dQ{"Starts dQ = dS K", "Starts 64 columns of dQ"};
inline const Place sums_of_dQ{"[seq_len / 16][mma_n]", "[seq_len][kHeadDim]: the sums of dQ",
                              "[padded seq_len / 16][mma_n]", "[heads][padded seq_len / 16][mma_n]"};
inline const Place convert_dQ{"Converts the sums of dQ", "Store dQ", "dQ = dS K"};
inline const Place store_dK_and_dV{"Store dK and dV", "dV = Pᵀ dO and dK"};
inline const Place store_rows{"Stores a warp's 16 rows"};
inline const Place copy_queries{"Copy Q and dO, L and D", "Starts copying Q and L", "Starts copying Q, L, dO and D",
                                "Only thread 0 calls this", "Copy Q and dO"};
inline const Place copy_floats{"Starts copying kCount floats"};
inline const Place copy_keys{"Copy K and V", "Only thread 0 calls this"};
inline const Place copy_keys_of_dQ{"Starts copying K and V"};
inline const Place copy_tile{"Copies kRows rows", "Starts copying kRows rows", "Copies a [kNumRows][kHeadDim] tile"};
inline const Place loop{"For each Q/dO tile"};
inline const Place loop_of_dQ{"For each K/V tile"};
inline const Place next_tile{"all warps are done with Q, dO, L and D", "dS is complete, and all warps are done",
                             "dQ += dS K"};
inline const Place swizzle{"The offset of element"};
inline const Place swizzle_of_fragment{"The same for a fragment"};
inline const Place visible{"Hide the keys"};
}  // namespace gradient_places

}  // namespace flash_ladder
