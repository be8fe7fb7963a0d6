// Tensor maps: TMA's description of a tensor in global memory. The driver's are opaque; these are the virtual GPU's
// own, in the same 128 bytes. CUDA Driver API, "Tensor Map Object Management"; PTX ISA, "Tensors".
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace flash_ladder::emulator {

/// How 16-byte chunks are permuted inside blocks of shared memory, as supported by both TMA and wgmma. PTX ISA,
/// "Swizzling Modes".
enum class Swizzle : std::uint8_t { none, bytes_32, bytes_64, bytes_128 };

/// "no swizzle", "the 128-byte swizzle"
std::string to_string(Swizzle swizzle);

/// Where the data for `address` are in shared memory: bits 4 … are XORed with bits 7 ….
constexpr std::uint32_t swizzled(std::uint32_t address, Swizzle swizzle) {
  const std::uint32_t bits = (1u << static_cast<unsigned>(swizzle)) - 1;
  return address ^ (((address >> 7) & bits) << 4);
}

/// The distance from one row of a box to the next in shared memory: rows that are shorter than those of the swizzle
/// leave the rest unwritten, as on an H200.
constexpr std::uint32_t row_pitch_of(std::uint32_t row_bytes, Swizzle swizzle) {
  return std::max(row_bytes, 16u << static_cast<unsigned>(swizzle));
}

inline constexpr std::size_t kTensorMapBytes = 128;

struct TensorMap {
  static constexpr int kMostDimensions = 5;

  std::uint64_t address = 0;  // of element 0, in global memory
  int dimensions = 0;         // 1 … 5; the first is the innermost
  int element_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  bool fills_with_nan = false;                           // elements outside the tensor become NaN; otherwise 0
  std::array<std::uint64_t, kMostDimensions> sizes{};    // elements
  std::array<std::uint64_t, kMostDimensions> strides{};  // bytes; the first is the element size
  std::array<std::uint32_t, kMostDimensions> box{};      // elements

  std::uint32_t box_bytes() const;
  /// One row of the box, which is contiguous in global memory.
  std::uint32_t row_bytes() const { return box[0] * static_cast<std::uint32_t>(element_bytes); }
  /// The distance from one row of the box to the next in shared memory.
  std::uint32_t row_pitch() const { return row_pitch_of(row_bytes(), swizzle); }
  bool operator==(const TensorMap&) const = default;
};

/// Writes the 128 bytes that a kernel receives.
void store_tensor_map(const TensorMap& map, std::byte* to);
/// Reads what store_tensor_map() wrote; nullopt if it is something else.
std::optional<TensorMap> load_tensor_map(const std::byte* from);

}  // namespace flash_ladder::emulator
