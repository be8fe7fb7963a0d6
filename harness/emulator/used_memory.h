// Records which global memory a launch has used, in order to decide what may run at the same time.
#pragma once

#include <vector>

#include "emulator/launch.h"

namespace flash_ladder::emulator {

/// Bytes that a CTA has read or written.
struct UsedMemory {
  Address begin, end;
  bool writes;
  bool somewhere = false;  // only some of these bytes, and it is not known which
  // The last accesses were volatile, or had system scope: the host may access the bytes in the same way at the same time.
  bool of_system = false;
};

/// Calls launch() and also returns what was used, by address. Without Options::checks that is not known, and the result
/// is empty.
Report launch(const Kernel& kernel, const LaunchConfig& config, Memory& memory, const Options& options,
              std::vector<UsedMemory>& used);

}  // namespace flash_ladder::emulator
