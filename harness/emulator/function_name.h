// The name of a kernel as the programmer wrote it.
#pragma once

#include <string>

namespace flash_ladder::emulator {

/// The whole name of a function, with its types: "flash_ladder::v01::scores<float>(…)". A name that is not mangled is
/// returned unchanged.
std::string demangled(const std::string& name);

/// "flash_attention" for the mangled name of flash_ladder::v07::flash_attention<Traits<__half>>(AttentionArgs). A name
/// that is not mangled is returned unchanged.
std::string function_name(const std::string& mangled);

/// "tile" for the mangled name of a variable of a function or of a namespace.
std::string variable_name(const std::string& mangled);

}  // namespace flash_ladder::emulator
