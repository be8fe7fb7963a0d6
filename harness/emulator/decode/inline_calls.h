// Device functions: the virtual GPU has no call stack, so a kernel gets the bodies of the functions that it calls.
#pragma once

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

/// Whether the kernel calls functions that the text defines.
bool calls_functions(const ptx::Text& text, const ptx::Function& kernel);

/// The kernel with the body of each such function in place of each of its calls. Calls of functions that are only declared and
/// calls through pointers stay. Throws PtxError for functions that call themselves, and when the kernel becomes too long.
ptx::Function inline_calls(const ptx::Text& text, const ptx::Function& kernel);

}  // namespace flash_ladder::emulator
