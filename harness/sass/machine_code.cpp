#include "sass/machine_code.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.h"
#include "results/atomic_file.h"
#include "sass/configuration_code.h"

namespace flash_ladder {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& cubin, const std::string& why) {
  throw UnavailableError(fmt::format(
      "the machine code in '{}' cannot be read: {} {}. Run scripts/setup, which finds or installs it, and build again",
      cubin.string(), FLASH_LADDER_NVDISASM, why));
}

std::string disassembled(const std::filesystem::path& cubin) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) refuse(cubin, fmt::format("gets no pipe ({})", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string words[] = {FLASH_LADDER_NVDISASM, "--print-code", "--print-line-info-ptx", cubin.string()};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, arguments[0], &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);

  std::string text;
  char chunk[65536];
  for (ssize_t count; error == 0 && (count = read(ends[0], chunk, sizeof chunk)) != 0;) {
    if (count > 0) text.append(chunk, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (error != 0) refuse(cubin, fmt::format("cannot be started ({})", std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) refuse(cubin, "failed, see above");
  return text;
}

}  // namespace

std::optional<std::string> machine_code(const std::filesystem::path& directory, const std::string& stem) {
  const auto cubin = directory / (stem + ".cubin"), kept = directory / (stem + ".sass");
  std::error_code no_cubin, nothing_kept;
  const auto compiled = last_write_time(cubin, no_cubin), printed = last_write_time(kept, nothing_kept);
  if (no_cubin || (!nothing_kept && printed > compiled)) return read_study_file(kept);
  const std::string text = disassembled(cubin);
  try {
    write_file_atomically(kept, text);
  } catch (const UnavailableError&) {
    return text;  // somebody else's build, perhaps: next time it takes half a second again
  }
  return text;
}

std::string needed_machine_code(const std::filesystem::path& directory, const std::string& stem) {
  auto text = machine_code(directory, stem);
  if (!text)
    throw UnavailableError(fmt::format("'{}' is not there: build again, with scripts/setup harness",
                                       (directory / (stem + ".cubin")).string()));
  return std::move(*text);
}

}  // namespace flash_ladder
