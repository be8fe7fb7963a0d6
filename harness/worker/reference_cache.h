// References kept in files, so that the workers of one harness run compute each of them only once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "worker/inputs.h"
#include "worker/reference.h"

namespace flash_ladder {

/// A file name that encodes everything that a reference depends on.
std::string reference_file_name(const AttentionProblem& problem, Distribution distribution, const RowSelection& rows,
                                std::uint64_t seed);

/// Reads a reference; nullopt if the file is missing, truncated or corrupt.
std::optional<Reference> read_reference(const std::filesystem::path& file, const AttentionProblem& problem,
                                        const RowSelection& rows);

/// Writes a reference, completely or not at all. Returns whether it succeeded; a cache that cannot be written only
/// costs time.
bool write_reference(const std::filesystem::path& file, const Reference& reference);

}  // namespace flash_ladder
