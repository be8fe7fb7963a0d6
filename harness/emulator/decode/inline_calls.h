// Device functions: the virtual GPU has no call stack, so the bodies of called functions are inlined into the kernel. A
// call through a pointer is replaced by comparisons of the pointer with the address of each function that it may point
// to, and their bodies.
#pragma once

#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator {

/// Whether the kernel calls functions that the text defines, or any function through a pointer.
bool calls_functions(const ptx::Text& text, const ptx::Function& kernel);

/// The kernel, with each call of such a function replaced by the function's body. Calls of functions that are only declared
/// stay, and so does, after the comparisons, the remainder of a call through a pointer. Throws PtxError for functions that
/// call themselves, except for those that do so only through a pointer, and if the kernel becomes too long.
ptx::Function inline_calls(const ptx::Text& text, const ptx::Function& kernel);

}  // namespace flash_ladder::emulator
