// References kept in files, so that the workers of one harness run compute each once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "worker/inputs.h"
#include "worker/reference.h"

namespace flash_ladder {

/// All that a reference depends on, as a file name.
std::string reference_file_name(const AttentionProblem& problem, Distribution distribution, const RowSelection& rows,
                                std::uint64_t seed);

/// Reads a reference; nullopt when the file is missing, truncated or not what was written.
std::optional<Reference> read_reference(const std::filesystem::path& file, const AttentionProblem& problem,
                                        const RowSelection& rows);

/// Writes a reference, whole or not at all. Returns whether it could; a cache that cannot be written costs time only.
bool write_reference(const std::filesystem::path& file, const Reference& reference);

}  // namespace flash_ladder
