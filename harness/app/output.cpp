#include "app/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "errors.h"
#include "results/atomic_file.h"
#include "results/profile.h"

namespace flash_ladder {

void say(const Options& options, std::string_view text) {
  if (options.json == "-") return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void complain(std::string_view message) { fmt::print(stderr, "harness: {}\n", message); }

void write_json(const Options& options, const std::vector<Result>& results) {
  write_json(options, results_document(results));
}

void write_json(const Options& options, const nlohmann::json& document) {
  if (options.json.empty()) return;
  const std::string text = document.dump(2) + "\n";
  if (options.json != "-") return write_file_atomically(options.json, text);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw UnavailableError(fmt::format("writing the JSON to standard output failed: {}", std::strerror(errno)));
}

}  // namespace flash_ladder
