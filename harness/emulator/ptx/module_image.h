// A loaded module: its parsed text, and the addresses of its variables.
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
  std::string source;  // the text that the views in `text` refer to
  ptx::Text text;
  std::vector<Address> addresses;       // for each of text.variables: its address in global or constant memory, else 0
  std::map<int, std::string> unusable;  // for some of text.variables: why a kernel that uses it cannot be run
  Memory* memory = nullptr;
};

}  // namespace flash_ladder::emulator
