// The shapes at which a version is measured: the harness records these and names them in --list --json;
// scripts/ladder.py has a copy, and cli_json_test.py compares the two.
#pragma once

#include <array>
#include <cstdint>

#include "host/versions.h"

namespace flash_ladder {

struct StandardShape {
  std::int64_t batch, seq_len;  // seq_len_kv is the same; for decoding this is seq_len_kv, and there is one query
};

inline constexpr std::array<StandardShape, 6> kStandardShapes = {
    {{16, 512}, {16, 1024}, {16, 2048}, {16, 4096}, {8, 8192}, {4, 16384}}};
constexpr std::int64_t kStandardHeads = 16, kStandardHeadDim = 128;
/// The shape that runs by default.
constexpr StandardShape kDefaultShape = kStandardShapes[3];

/// Its counterpart on the virtual GPU, which is slow: small, and an even number of the tiles of every configuration.
constexpr StandardShape kEmulatorShape{1, 256};
constexpr std::int64_t kEmulatorHeads = 2;

/// The same for the decoding track.
inline constexpr std::array<StandardShape, 5> kDecodingShapes = {
    {{1, 4096}, {1, 32768}, {16, 4096}, {16, 32768}, {64, 8192}}};
constexpr std::int64_t kDecodingHeads = 32;
inline constexpr std::array<std::int64_t, 2> kDecodingKvHeads = {8, 32};
constexpr StandardShape kDefaultDecodingShape = kDecodingShapes[2];
/// Queries of a sequence, where it has more than one.
constexpr std::int64_t kSeveralQueries = 4;
/// Keys in a page of K and V, on a GPU and on the virtual one.
constexpr std::int64_t kStandardPageSize = 64;
constexpr StandardShape kEmulatorDecodingShape{2, 1024};
constexpr std::int64_t kEmulatorDecodingHeads = 8, kEmulatorDecodingKvHeads = 2;

/// Whether a version does not take very long at the standard shapes: if it uses the tensor cores, which 04 and B03 introduce; for
/// decoding, always.
inline bool is_fast(const Version& version) {
  const int first = version.track == Track::decoding ? 0 : version.track == Track::backward ? 3 : 4;
  return version.is_extension() || version.number >= first;
}

}  // namespace flash_ladder
