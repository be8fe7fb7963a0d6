// PTX text → ptx::Text.
#pragma once

#include <string_view>

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator::ptx {

/// Parses a whole PTX text, which must outlive the result, because names in it are views. It knows the grammar, not the
/// instructions. Errors in a function's body are stored in Function::error; for all others it throws PtxError.
Text parse(std::string_view text);

/// "f32" → Type. kind is 0 if the name is not a type.
Type type_of(std::string_view name);

}  // namespace flash_ladder::emulator::ptx
