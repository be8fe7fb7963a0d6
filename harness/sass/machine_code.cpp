#include "sass/machine_code.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "errors.h"
#include "host/sm_limits.h"
#include "results/atomic_file.h"
#include "sass/configuration_code.h"
#include "source/program_output.h"

namespace flash_ladder {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& cubin, const std::string& why) {
  throw UnavailableError(fmt::format(
      "the machine code in '{}' cannot be read: {} {}. Run scripts/setup, which finds or installs it, and build again",
      cubin.string(), FLASH_LADDER_NVDISASM, why));
}

std::string disassembled(const std::filesystem::path& cubin) {
  ProgramOutput output = output_of({FLASH_LADDER_NVDISASM, "--print-code", "--print-line-info-ptx", cubin.string()});
  if (output.error != 0) refuse(cubin, fmt::format("cannot be started ({})", std::strerror(output.error)));
  if (output.status != 0) refuse(cubin, "failed, see above");
  return std::move(output.text);
}

}  // namespace

std::string code_name(int sm) {
  // A GPU newer than the list runs the newest code; what the driver compiles it to there cannot be shown.
  const SmLimits* limits = sm_limits(sm);
  return fmt::format("sm_{}", limits ? limits->code : kSmLimits.back().code);
}

std::string code_name(const Version& version, int sm) {
  return code_name(sm) + (version.architecture == Architecture::sm_90a ? "a" : "");
}

std::optional<std::string> machine_code(const std::filesystem::path& directory, const std::string& stem) {
  const auto cubin = directory / (stem + ".cubin"), kept = directory / (stem + ".sass");
  std::error_code no_cubin, nothing_kept;
  const auto compiled = last_write_time(cubin, no_cubin), printed = last_write_time(kept, nothing_kept);
  if (no_cubin || (!nothing_kept && printed > compiled)) return read_study_file(kept);
  const std::string text = disassembled(cubin);
  try {
    write_file_atomically(kept, text);
  } catch (const UnavailableError&) {
    return text;  // perhaps another user's build: next time it takes half a second again
  }
  return text;
}

std::string needed_machine_code(const std::filesystem::path& directory, const std::string& stem) {
  auto text = machine_code(directory, stem);
  if (!text)
    throw UnavailableError(fmt::format("'{}' is missing: build again, with scripts/setup harness",
                                       (directory / (stem + ".cubin")).string()));
  return std::move(*text);
}

}  // namespace flash_ladder
