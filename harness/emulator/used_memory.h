// Which global memory a launch has used: for who wants to know what it may run beside.
#pragma once

#include <vector>

#include "emulator/launch.h"

namespace flash_ladder::emulator {

/// Bytes that some CTA has read or written.
struct UsedMemory {
  Address begin, end;
  bool writes;
  bool somewhere = false;  // some of these bytes, it is not known which
  // The last accesses were volatile, or of the system's scope: the host may make such at the same time.
  bool of_system = false;
};

/// launch(), and what was used, by address. Without Options::checks that is not known: nothing.
Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options,
              std::vector<UsedMemory>& used);

}  // namespace flash_ladder::emulator
