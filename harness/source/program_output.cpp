#include "source/program_output.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace flash_ladder {

ProgramOutput output_of(std::vector<std::string> words) {
  ProgramOutput output;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    output.error = errno;
    return output;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  output.error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);

  char chunk[65536];
  for (ssize_t count; output.error == 0 && (count = read(ends[0], chunk, sizeof chunk)) != 0;) {
    if (count > 0) output.text.append(chunk, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (output.error != 0) return output;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace flash_ladder
