// Basic blocks of a kernel's code.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/decode/instruction.h"

namespace flash_ladder::emulator {

struct Block {
  std::int32_t begin = 0, end = 0;  // instructions
  std::vector<int> successors;
};

/// The blocks in the order of the code. The last instruction of the code is an unguarded exit.
std::vector<Block> basic_blocks(const CompiledKernel& kernel);

}  // namespace flash_ladder::emulator
