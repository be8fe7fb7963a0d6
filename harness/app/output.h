// Where text and results go.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/options.h"
#include "results/result.h"

namespace flash_ladder {

/// Writes to standard output, unless that belongs to `--json -`.
void say(const Options& options, std::string_view text);

/// Writes "harness: message" to standard error.
void complain(std::string_view message);

/// Writes the document that --json asks for. Throws UnavailableError.
void write_json(const Options& options, const std::vector<Result>& results);
void write_json(const Options& options, const nlohmann::json& document);

}  // namespace flash_ladder
