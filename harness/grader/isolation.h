// What keeps a process that handles a stranger's file from the rest of the machine: limits, Landlock for files, seccomp for system
// calls. None of it needs root, and none can be taken back by the process or its children.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace flash_ladder {

/// What this machine lacks to isolate a process, in words for a user; empty when nothing is missing.
std::vector<std::string> missing_isolation();

/// 0: no limit.
struct ProcessLimits {
  std::uint64_t memory_bytes = 0;  // of address space
  std::uint64_t cpu_seconds = 0;   // of the process; then it is killed by SIGXCPU
  std::uint64_t file_bytes = 0;    // of each file that it writes
  bool may_write_files = true;     // false: none, whatever file_bytes says
};

/// Also: no core dumps. Throws std::system_error.
void limit_process(const ProcessLimits& limits);

/// Folders and files that a process may use, with all that is in them. What is not there is passed over.
struct VisibleFiles {
  std::vector<std::filesystem::path> readable;  // and executable
  std::vector<std::filesystem::path> writable;  // and readable
};

/// From here on no other file can be opened, made, removed or renamed by this process and those that it starts. Where the kernel
/// knows how, no TCP connection and no signal to processes outside either. Throws std::system_error.
void hide_files(const VisibleFiles& visible);

/// Which system calls still work.
enum class SystemCalls {
  compute,  // memory, time, reading and writing what is open: no file, process, thread or socket can be made
  compile,  // programs can be started, but no sockets, signals, tracing, mounts, changes of owners and rights …
};

/// From here on all other system calls fail with EPERM in this process and those that it starts. Throws std::system_error.
void forbid_system_calls(SystemCalls allowed);

}  // namespace flash_ladder
