#include "app/options/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "app/terminal/terminal.h"
#include "results/atomic_file.h"
#include "results/profile.h"

namespace flash_ladder {

void write_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  const std::string why = fmt::format("writing to standard output failed: {}", std::strerror(errno));
  if (errno == EPIPE) throw ReaderGone(why);
  throw UnavailableError(why + "; free some space, or redirect it elsewhere");
}

void say(const Options& options, std::string_view text) {
  if (options.json == "-") return;
  write_out(text);
}

void complain(std::string_view message) {
  write_error(wrapped(fmt::format("harness: {}", message), error_width(), 2) + "\n");
}

void write_json(const Options& options, const std::vector<Result>& results) {
  write_json(options, results_document(results));
}

void write_json(const Options& options, const nlohmann::json& document) {
  if (options.json.empty()) return;
  // File names are bytes, and JSON is UTF-8: bytes that are not valid UTF-8 become U+FFFD.
  const std::string text = document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (options.json != "-") return write_file_atomically(options.json, text);
  write_out(text);
}

}  // namespace flash_ladder
