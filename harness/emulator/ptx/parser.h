// PTX text → ptx::Text.
#pragma once

#include <string_view>

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator::ptx {

/// Parses a whole PTX text, which must outlive the result: names in it are views. Knows the grammar, not the instructions.
/// What it does not understand in a function's body is in Function::error; for anything else it throws PtxError.
Text parse(std::string_view text);

/// "f32" → Type. kind 0 if it is no type.
Type type_of(std::string_view name);

}  // namespace flash_ladder::emulator::ptx
