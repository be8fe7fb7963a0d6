// The shapes at which a version is measured: the harness records these and names them in --list --json;
// scripts/ladder.py has a copy, and cli_json_test.py compares the two.
#pragma once

#include <array>
#include <cstdint>

#include "host/versions.h"

namespace flash_ladder {

struct StandardShape {
  std::int64_t batch, seq_len;  // seq_len_kv is the same
};

inline constexpr std::array<StandardShape, 6> kStandardShapes = {
    {{16, 512}, {16, 1024}, {16, 2048}, {16, 4096}, {8, 8192}, {4, 16384}}};
constexpr std::int64_t kStandardHeads = 16, kStandardHeadDim = 128;
/// The shape that runs by default.
constexpr StandardShape kDefaultShape = kStandardShapes[3];

/// Its counterpart on the virtual GPU, which is slow: small, and an even number of the tiles of every configuration.
constexpr StandardShape kEmulatorShape{1, 256};
constexpr std::int64_t kEmulatorHeads = 2;

/// Whether a version uses the tensor cores, which 04 introduces. Versions that do not take very long at the longer shapes.
inline bool is_fast(const Version& version) { return version.is_extension() || version.number >= 4; }

}  // namespace flash_ladder
