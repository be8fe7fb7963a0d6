// The data of one asynchronous copy.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/checks/clocks.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/async_chunks.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

/// The data of a bulk copy: rows of equal length, parts of which may be outside the tensor.
struct BulkTransfer {
  struct Row {
    std::byte* host = nullptr;         // address of the part inside the tensor
    std::uint32_t begin = 0, end = 0;  // range of that part within the row, in bytes
  };
  std::uint32_t shared = 0;  // offset in the CTA's shared memory, before the swizzle
  std::uint32_t row_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  std::uint16_t fill = 0;  // the value of every two bytes outside the tensor
  bool of_tensor = false;
  std::vector<Row> rows = {};
  // For a copy from shared memory: the CTA whose thread requested it.
  struct Source {
    std::uint32_t offset;
    AccessNumber since = 0;  // accesses to it from this number on came after the issue
  };
  std::optional<Source> source = {};

  std::uint32_t bytes() const { return row_bytes * static_cast<std::uint32_t>(rows.size()); }
  /// The distance between rows in shared memory.
  std::uint32_t row_pitch() const { return row_pitch_of(row_bytes, swizzle); }
  std::uint32_t extent() const { return row_pitch() * static_cast<std::uint32_t>(rows.size()); }
  /// The 16-byte chunks of shared memory that are written, or read by a copy to global memory, and those that a copy from
  /// shared memory reads.
  std::vector<std::uint32_t> chunks() const;
  std::vector<std::uint32_t> source_chunks() const;
};

/// What lanes of one warp store with st.async, or add with red.async, in the shared memory of one CTA. PTX ISA,
/// "st.async", "red.async".
struct LaneStores {
  /// Returns the new value; values are the low bits of the 64.
  using Combine = std::uint64_t (*)(ptx::Type type, std::uint64_t old, std::uint64_t operand);

  std::uint32_t lanes = 0;
  unsigned bytes_each = 0;
  std::array<std::uint32_t, kWarpSize> offsets = {};  // for those lanes, in the CTA's shared memory
  std::array<std::byte, std::size_t{kWarpSize} * 16> values = {};
  Combine combine = nullptr;  // null: st.async
  ptx::Type type = {};

  std::byte* value(int lane) { return values.data() + static_cast<std::size_t>(lane) * 16; }
  const std::byte* value(int lane) const { return values.data() + static_cast<std::size_t>(lane) * 16; }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(std::popcount(lanes)) * bytes_each; }
};

}  // namespace flash_ladder::emulator
