// References kept in files, so that the workers of one harness run compute each of them only once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "worker/inputs.h"
#include "worker/reference.h"

namespace flash_ladder {

/// A file name that encodes everything that a reference depends on. `of` says what is in the file: "reference".
std::string reference_file_name(std::string_view of, const AttentionProblem& problem, Distribution distribution,
                                const RowSelection& rows, std::uint64_t seed);

/// Fills the parts from a file of write_cached(), in the same order. Returns whether it did: not if `file` is empty, missing,
/// truncated, corrupt or of another size. The parts may have been overwritten then.
bool read_cached(const std::filesystem::path& file, std::span<const std::span<std::byte>> parts);

/// Writes the parts to a file, completely or not at all. Returns whether it succeeded; a cache that cannot be written only
/// costs time. An empty `file` is no file.
bool write_cached(const std::filesystem::path& file, std::span<const std::span<const std::byte>> parts);

/// Reads a reference; nullopt if the file is missing, truncated or corrupt.
std::optional<Reference> read_reference(const std::filesystem::path& file, const AttentionProblem& problem,
                                        const RowSelection& rows);

/// Writes a reference, completely or not at all. Returns whether it succeeded.
bool write_reference(const std::filesystem::path& file, const Reference& reference);

}  // namespace flash_ladder
