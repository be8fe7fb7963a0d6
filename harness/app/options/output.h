// Where text and results go.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/options/options.h"
#include "errors.h"
#include "results/result.h"

namespace flash_ladder {

/// The reader of standard output has gone, as in `harness … | head`.
struct ReaderGone : UnavailableError {
  using UnavailableError::UnavailableError;
};

/// Writes to standard output. Throws UnavailableError if that fails, because of a full disk or a closed stream.
void write_out(std::string_view text);

/// The same, unless standard output belongs to `--json -`.
void say(const Options& options, std::string_view text);

/// Writes "harness: message" to standard error.
void complain(std::string_view message);

/// Writes the document that --json requests. Throws UnavailableError.
void write_json(const Options& options, const std::vector<Result>& results);
void write_json(const Options& options, const nlohmann::json& document);

}  // namespace flash_ladder
