// Device functions: the virtual GPU has no call stack, so a kernel gets the bodies of the functions that it calls. In place of a
// call through a pointer it gets a comparison of the pointer with the address of each function that it may be, and their bodies.
#pragma once

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

/// Whether the kernel calls functions that the text defines, or any through a pointer.
bool calls_functions(const ptx::Text& text, const ptx::Function& kernel);

/// The kernel with the body of each such function in place of each of its calls. Calls of functions that are only declared stay, and
/// behind the comparisons what is left of a call through a pointer. Throws PtxError for functions that call themselves, but for
/// those that do so through a pointer only, and when the kernel becomes too long.
ptx::Function inline_calls(const ptx::Text& text, const ptx::Function& kernel);

}  // namespace flash_ladder::emulator
