// A child process that sends its events as lines through a pipe and never outlives its owner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace flash_ladder {

/// The user pressed Ctrl-C, or a signal asked the process to terminate.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

/// Makes SIGINT, SIGTERM and SIGHUP end waits with Interrupted, and turns SIGPIPE into an error of the write, so that
/// children are killed and temporary files are removed.
void turn_interrupts_into_exceptions();

/// Throws Interrupted if such a signal has arrived.
void check_interrupt();

class ChildProcess {
 public:
  /// Starts the program with these arguments. Its file descriptor 3 becomes the writing end of the pipe; its standard output goes to standard
  /// error when `stdout_to_stderr`. Throws UnavailableError when the program cannot be started.
  ChildProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments, bool stdout_to_stderr);
  /// Kills the process if it is still running, and the processes that it started.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class Read { line, end, timeout };
  /// The next line from the pipe, without its newline; `end` once the child has closed it.
  Read read_line(std::string& line, std::chrono::milliseconds timeout);

  /// Waits for the process to end and returns its status as waitpid gives it; nullopt if it is still running after the
  /// timeout.
  std::optional<int> wait(std::chrono::milliseconds timeout);

  /// Sends SIGTERM, and waits a while for the process to end, so that it can remove what it has half made.
  void ask_to_end();

 private:
  void kill();
  void wait_for_death();

  pid_t pid_ = -1;
  int pipe_ = -1;         // the reading end
  std::string buffered_;  // already read, but not yet a whole line
  std::optional<int> status_;
};

}  // namespace flash_ladder
