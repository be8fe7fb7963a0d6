// Where the host's code is, for findings about what it asks for: a line of the program, if it has symbols (nvcc -g).
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "emulator/report.h"

namespace flash_ladder::emulator::runtime {

/// Who called whom, innermost first.
struct HostPlace {
  std::array<void*, 16> calls{};
  std::size_t count = 0;
  std::string kernel;  // mangled, of a launch: the host has a function of that name, which <<<…>>> calls
};

/// Of who calls this.
HostPlace host_place(const std::string& kernel = {});
/// The line of the program that made the call; empty where that is not known. Asks addr2line, and remembers what it says.
SourcePosition line_of(const HostPlace& place);

}  // namespace flash_ladder::emulator::runtime
