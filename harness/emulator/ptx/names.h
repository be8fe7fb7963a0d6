// The names that PTX itself defines. PTX ISA, "Special Registers", "State Spaces", "Fundamental Types".
#pragma once

#include <string_view>
#include <unordered_map>

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator::ptx {

/// "%tid.x" → SpecialRegister
const std::unordered_map<std::string_view, SpecialRegister>& special_registers();
/// ".shared" → Space; generic if the directive names none.
Space space_of(std::string_view directive);

}  // namespace flash_ladder::emulator::ptx
