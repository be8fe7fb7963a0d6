// Isolates a process that handles an untrusted file from the rest of the machine: limits, Landlock for files, seccomp
// for system calls. None of this needs root, and the process and its children cannot undo it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace flash_ladder {

/// What this machine lacks for isolating a process, in words for a user; empty if nothing is missing.
std::vector<std::string> missing_isolation();

/// A value of 0 means no limit.
struct ProcessLimits {
  std::uint64_t memory_bytes = 0;  // limit on address space
  std::uint64_t cpu_seconds = 0;   // limit for the process, which is then killed with SIGXCPU
  std::uint64_t file_bytes = 0;    // limit on each file that it writes
  bool may_write_files = true;     // false: it may write no files, whatever file_bytes says
};

/// Also disables core dumps. Throws std::system_error.
void limit_process(const ProcessLimits& limits);

/// Folders and files that a process may use, including everything in them. Paths that do not exist are ignored.
struct VisibleFiles {
  std::vector<std::filesystem::path> readable;  // also executable
  std::vector<std::filesystem::path> writable;  // also readable
};

/// From now on this process and those that it starts cannot open, create, remove or rename any other file. If the kernel
/// supports it, they cannot open TCP connections or send signals to processes outside either. Throws std::system_error.
void hide_files(const VisibleFiles& visible);

/// The set of system calls that still work.
enum class SystemCalls {
  compute,  // memory, time, reading and writing open files: no file, process, thread or socket can be created
  compile,  // programs can be started, but no sockets, signals, tracing, mounts, changes of owners and permissions …
};

/// From now on all other system calls fail with EPERM in this process and those that it starts. Throws std::system_error.
void forbid_system_calls(SystemCalls allowed);

}  // namespace flash_ladder
