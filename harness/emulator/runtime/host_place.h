// Finds the place in the host's code that made a request, so that findings can name it: a line of the program, if it
// has symbols (nvcc -g).
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "emulator/report.h"

namespace flash_ladder::emulator::runtime {

/// The call stack, innermost first.
struct HostPlace {
  std::array<void*, 16> calls{};
  std::size_t count = 0;
  std::string kernel;  // mangled name, for a launch: the host has a function of that name, which <<<…>>> calls
};

/// The place of the caller.
HostPlace host_place(const std::string& kernel = {});
/// The line of the program that made the call; empty when not known. Runs addr2line, and caches its answer.
SourcePosition line_of(const HostPlace& place);

}  // namespace flash_ladder::emulator::runtime
