// Operations of all lanes of a warp together: shuffles, and the tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator::lanes {

enum class ShuffleMode : std::uint8_t { up, down, bfly, idx };

/// shfl.sync of all lanes: the lane that each reads from (its own if that is out of range), and the value there.
/// `control` contains the clamp in bits 0–4 and the mask of the segment in bits 8–12. Returns the lanes that are in
/// range. PTX ISA, "shfl.sync".
template <ShuffleMode kMode>
std::uint32_t shuffle(const std::uint32_t* values, const std::uint32_t* delta, const std::uint32_t* control,
                      std::uint32_t* sources, std::uint32_t* results);

/// mma.sync with f32 accumulators, as a LaneFunction each: r contains d0…, a0…, b0…, c0…
void mma_m16n8k16_f16(std::byte* registers, const std::int32_t* r, std::uint32_t mask);
void mma_m16n8k16_bf16(std::byte* registers, const std::int32_t* r, std::uint32_t mask);
void mma_m16n8k8_f16(std::byte* registers, const std::int32_t* r, std::uint32_t mask);
void mma_m16n8k8_bf16(std::byte* registers, const std::int32_t* r, std::uint32_t mask);

/// A warp's part of a wgmma: 16 rows of D (+)= A B. `a` is [16][k]; `b` is [k][n], with each group of eight columns in
/// the order 0 2 4 6 1 3 5 7. `d` are the registers of D, [n / 8][4], of 32 lanes each, as in mma.
void wgmma_f16(float* const* d, const float* a, const float* b, int n, int k,
               bool accumulate);  // exact products: also for fp8
void wgmma_bf16(float* const* d, const float* a, const float* b, int n, int k,
                bool accumulate);  // or beyond fp32: also for tf32

/// Converts 16-bit elements of operands to fp32.
void f16_to_float(const std::uint16_t* from, float* to, int count);
void bf16_to_float(const std::uint16_t* from, float* to, int count);

}  // namespace flash_ladder::emulator::lanes
