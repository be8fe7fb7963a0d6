#include "app/run/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "errors.h"
#include "rules/protocol.h"

namespace flash_ladder {
namespace {

using Clock = std::chrono::steady_clock;

volatile sig_atomic_t interrupted = 0;

// A signal may arrive just before a wait starts, so no wait is longer than this.
constexpr std::chrono::milliseconds kLongestWait{200};

void close_if_open(int& file) {
  if (file >= 0) close(file);
  file = -1;
}

// Runs in the child after fork: it may call only what POSIX allows there, and it does not return.
[[noreturn]] void become(const char* program, char* const* arguments, int events, bool stdout_to_stderr, pid_t parent) {
  setpgid(0, 0);                        // its own process group, so that the processes it starts are killed with it
  prctl(PR_SET_PDEATHSIG, SIGKILL);     // if the harness is killed, nothing else would end a kernel that never ends
  if (getppid() != parent) _exit(127);  // the harness is already dead
  // dup2 keeps the close-on-exec flag of a descriptor that is copied to itself.
  if (events == kEventFileDescriptor)
    fcntl(events, F_SETFD, 0);
  else
    dup2(events, kEventFileDescriptor);
  signal(SIGPIPE, SIG_DFL);
  if (stdout_to_stderr) dup2(STDERR_FILENO, STDOUT_FILENO);
  execv(program, arguments);
  _exit(127);
}

}  // namespace

void check_interrupt() {
  if (interrupted) throw Interrupted();
}

void turn_interrupts_into_exceptions() {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // The terminal was closed, unless nohup has requested that the program continue.
  struct sigaction before{};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a write then fails and reports it
}

ChildProcess::ChildProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                           bool stdout_to_stderr) {
  if (access(program.c_str(), X_OK) != 0)
    throw UnavailableError(fmt::format("the worker program '{}' cannot be started: {}; build it first",
                                       program.string(), std::strerror(errno)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw UnavailableError(fmt::format("cannot create a pipe: {}", std::strerror(errno)));
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(program.c_str(), words.data(), ends[1], stdout_to_stderr, parent);
  const int error = errno;
  close(ends[1]);
  pipe_ = ends[0];
  if (pid_ < 0) {
    close_if_open(pipe_);
    throw UnavailableError(fmt::format("cannot start a process: {}", std::strerror(error)));
  }
  setpgid(pid_, pid_);  // also here: either process may get there first
}

ChildProcess::~ChildProcess() {
  close_if_open(pipe_);
  if (pid_ > 0) kill();
}

ChildProcess::Read ChildProcess::read_line(std::string& line, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    if (const auto newline = buffered_.find('\n'); newline != std::string::npos) {
      line = buffered_.substr(0, newline);
      buffered_.erase(0, newline + 1);
      return Read::line;
    }
    check_interrupt();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Read::timeout;
    pollfd wanted{pipe_, POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(std::min(left, kLongestWait).count())) <= 0) continue;
    char chunk[4096];
    const ssize_t count = read(pipe_, chunk, sizeof chunk);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Read::end;
    buffered_.append(chunk, static_cast<std::size_t>(count));
  }
}

std::optional<int> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!status_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = status;
      break;
    }
    check_interrupt();
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status_;
}

void ChildProcess::ask_to_end() {
  ::kill(-pid_, SIGTERM);
  wait_for_death();
}

void ChildProcess::kill() {
  ::kill(-pid_, SIGKILL);
  wait_for_death();
}

void ChildProcess::wait_for_death() {
  // A process inside the GPU driver may take long to die, or may never die, so do not hang waiting for it.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (int status = 0; !status_ && Clock::now() < deadline;)
    if (waitpid(pid_, &status, WNOHANG) != 0)
      status_ = status;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace flash_ladder
