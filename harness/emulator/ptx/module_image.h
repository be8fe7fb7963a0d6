// A loaded module: its parsed text, and where its variables lie.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/memory.h"
#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

class ModuleImage {
 public:
  std::string source;  // what the views in `text` point into
  ptx::Text text;
  std::vector<Address> addresses;       // of each of text.variables that lies in global or constant memory, else 0
  std::map<int, std::string> unusable;  // of text.variables, why a kernel that uses it cannot be run
  Memory* memory = nullptr;
};

}  // namespace flash_ladder::emulator
