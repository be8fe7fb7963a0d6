#include "emulator/exec/wgmma_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "emulator/exec/async_chunks.h"
#include "emulator/lanes/across_lanes.h"
#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {
namespace {

constexpr int kMmaRows = 16;  // out of a wgmma's 64, in each warp

// 8-bit floating point. PTX ISA, "Alternate Floating-Point Data Formats". e4m3 has no infinity, and one NaN of each sign.
float float_of_8_bits(std::uint8_t bits, bool e5m2) {
  const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  float value;
  if (e5m2 && exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (!e5m2 && (bits & 0x7f) == 0x7f) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else {
    const int significand = exponent == 0 ? mantissa : mantissa | (1 << mantissa_bits);
    value = std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - bias - mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

// Converts `count` adjacent elements to fp32.
void to_floats(Wgmma::Element element, const std::byte* from, float* to, int count) {
  switch (element) {
    case Wgmma::Element::f16:
      lanes::f16_to_float(reinterpret_cast<const std::uint16_t*>(from), to, count);
      break;
    case Wgmma::Element::bf16:
      lanes::bf16_to_float(reinterpret_cast<const std::uint16_t*>(from), to, count);
      break;
    case Wgmma::Element::tf32:
      for (int i = 0; i < count; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, from + 4 * i, 4);
        to[i] = std::bit_cast<float>(bits & 0xffffe000);  // the other bits are ignored
      }
      break;
    default:
      for (int i = 0; i < count; ++i)
        to[i] = float_of_8_bits(static_cast<std::uint8_t>(from[i]), element == Wgmma::Element::e5m2);
      break;
  }
}

// What a tensor core adds when the factors have 8 bits: of the sum and of every product, the 14 bits that begin with the largest
// exponent of them, where a product's exponent is the sum of its factors'. Of 16-bit factors it keeps as many bits as fp32 has. An H200 does this (emulator_hardware.json); the
// PTX ISA says nothing about it.
// D += A B, or D = A B; the arguments are those of lanes::wgmma_f16().
void multiply_8_bits(float* const* d, const float* a, const float* b, int n, int k, bool accumulate) {
  constexpr int kColumns = 8, kKeptBits = 14;
  float products[33][kColumns];  // and the sum
  for (int block = 0; block < n / kColumns; ++block)
    for (int row = 0; row < kMmaRows; ++row) {
      float* registers[kColumns];
      for (int i = 0; i < kColumns; ++i) registers[i] = d[4 * block + row / 8 * 2 + i / 4] + row % 8 * 4 + i % 4;
      int exponent[kColumns];  // the largest; of a product, the sum of its factors' exponents
      for (int i = 0; i < kColumns; ++i) {
        products[k][i] = accumulate ? *registers[i] : 0;
        exponent[i] = std::ilogb(products[k][i]);
      }
      for (int j = 0; j < k; ++j) {
        const float factor = a[row * k + j];
        const int of_factor = std::ilogb(factor);
        for (int i = 0; i < kColumns; ++i) {
          const float other = b[j * n + block * kColumns + i];
          products[j][i] = factor * other;
          if (products[j][i] != 0) exponent[i] = std::max(exponent[i], of_factor + std::ilogb(other));
        }
      }
      for (int i = 0; i < kColumns; ++i) {
        float sum = 0;
        const bool aligned = exponent[i] > -100 && exponent[i] < 128;  // not only zeros, no infinity and no NaN
        const float unit = aligned ? std::ldexp(1.0f, exponent[i] - kKeptBits + 1) : 1;
        for (int j = 0; j <= k; ++j) {
          sum += aligned ? std::trunc(products[j][i] / unit) : products[j][i];
        }
        // Of the result, too, the other ten bits of fp32 are 0.
        *registers[i] = std::bit_cast<float>(
            std::isnan(sum) ? 0x7fffffff : std::bit_cast<std::uint32_t>(sum * unit) & (aligned ? 0xfffffc00 : ~0u));
      }
    }
}

// The position of column n of eight in the order that lanes::wgmma_f16() expects.
constexpr int kPlaceOfColumn[] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

WgmmaProduct::WgmmaProduct(const Wgmma& wgmma, const WgmmaChunks& chunks, bool accumulates, const std::byte* shared)
    : wgmma_(wgmma),
      chunks_(chunks),
      accumulates_(accumulates),
      shared_(shared),
      per_chunk_(static_cast<int>(kChunk) / wgmma.element_bytes()) {
  convert_b();
}

void WgmmaProduct::convert_b() {
  const int n = wgmma_.n;
  const std::vector<std::uint32_t>& b_chunks = chunks_[1];
  const float b_sign = wgmma_.negates_b ? -1.0f : 1.0f;
  alignas(64) float values[16];
  for (std::size_t i = 0; i < b_chunks.size(); ++i) {
    to_floats(wgmma_.b_element, shared_ + b_chunks[i], values, per_chunk_);
    if (!wgmma_.transposes_b) {
      const int column = static_cast<int>(i / 2), first_k = static_cast<int>(i % 2) * per_chunk_;
      float* const to = b_ + column / 8 * 8 + kPlaceOfColumn[column % 8];
      for (int j = 0; j < per_chunk_; ++j) to[(first_k + j) * n] = b_sign * values[j];
    } else {
      const int row = static_cast<int>(i) / (n / 8), column = static_cast<int>(i) % (n / 8) * 8;
      for (int j = 0; j < 8; ++j) b_[row * n + column + kPlaceOfColumn[j]] = b_sign * values[j];
    }
  }
}

void WgmmaProduct::add_to(Warp& warp) const {
  const int k = wgmma_.k(), n = wgmma_.n;
  alignas(64) float a[kMmaRows * 32];  // [row][k]
  convert_a(warp, a);
  float* d[4 * 256 / 8];
  const int num_registers = 4 * n / 8;
  std::vector<float> widened;
  if (!wgmma_.d_in_f16) {
    for (int i = 0; i < num_registers; ++i)
      d[i] = reinterpret_cast<float*>(warp.registers + wgmma_.d[static_cast<std::size_t>(i)]);
  } else {  // two columns of a row in each register
    widened.resize(static_cast<std::size_t>(num_registers) * kWarpSize);
    for (int i = 0; i < num_registers; ++i) {
      d[i] = widened.data() + i * kWarpSize;
      const auto* pairs =
          reinterpret_cast<const std::uint16_t*>(warp.registers + wgmma_.d[static_cast<std::size_t>(i / 2)]);
      std::uint16_t halves[kWarpSize];
      for (int lane = 0; lane < kWarpSize; ++lane) halves[lane] = pairs[2 * lane + i % 2];
      lanes::f16_to_float(halves, d[i], kWarpSize);
    }
  }
  const auto multiply = wgmma_.element_bytes() == 1 ? multiply_8_bits
                        : wgmma_.a_element == Wgmma::Element::bf16 || wgmma_.a_element == Wgmma::Element::tf32
                            ? lanes::wgmma_bf16
                            : lanes::wgmma_f16;
  multiply(d, a, b_, n, k, accumulates_);
  if (wgmma_.d_in_f16) narrow(warp, d);
}

void WgmmaProduct::convert_a(const Warp& warp, float* a) const {
  const int k = wgmma_.k();
  if (wgmma_.a.empty()) {
    convert_shared_a(warp.index % kWarpgroup * kMmaRows, a);
  } else {
    // As in mma: in lane 4 row + t, each register contains the t-th four bytes of a block of eight rows.
    for (std::size_t reg = 0; reg < 4; ++reg) {
      const std::byte* const lanes = warp.registers + wgmma_.a[reg];
      const int block_row = static_cast<int>(reg % 2) * 8, block_k = static_cast<int>(reg / 2) * per_chunk_;
      for (int row = 0; row < 8; ++row)
        to_floats(wgmma_.a_element, lanes + 16 * row, a + (block_row + row) * k + block_k, per_chunk_);
    }
  }
  if (!wgmma_.negates_a) return;
  for (float* value = a; value != a + kMmaRows * k; ++value) *value *= -1.0f;
}

void WgmmaProduct::convert_shared_a(int first_row, float* a) const {
  const int k = wgmma_.k();
  alignas(64) float values[16];
  const std::vector<std::uint32_t>& chunks = chunks_[0];
  for (int row = 0; row < kMmaRows; ++row) {
    for (int half = 0; half < 2 && !wgmma_.transposes_a; ++half) {
      const auto chunk = static_cast<std::size_t>(2 * (first_row + row) + half);
      to_floats(wgmma_.a_element, shared_ + chunks[chunk], a + row * k + half * per_chunk_, per_chunk_);
    }
  }
  for (int i = 0; i < 16 && wgmma_.transposes_a; ++i) {
    for (int half = 0; half < 2; ++half) {
      to_floats(wgmma_.a_element, shared_ + chunks[static_cast<std::size_t>(8 * i + first_row / 8 + half)], values, 8);
      for (int j = 0; j < 8; ++j) a[(8 * half + j) * k + i] = values[j];
    }
  }
}

// D in fp16: two columns of a row in each register.
void WgmmaProduct::narrow(Warp& warp, float* const* d) const {
  const LaneFunction narrow = lane_table().find("cvt.rn.f16x2.f32")->function;
  alignas(64) std::byte file[3 * 128];
  const std::int32_t r[] = {0, 128, 256};  // the result, and its upper and lower half
  for (int i = 0; i < wgmma_.n / 4; ++i) {
    std::memcpy(file + 128, d[2 * i + 1], 128);
    std::memcpy(file + 256, d[2 * i], 128);
    narrow(file, r, kAllLanes);
    std::memcpy(warp.registers + wgmma_.d[static_cast<std::size_t>(i)], file, 128);
  }
}

}  // namespace flash_ladder::emulator
