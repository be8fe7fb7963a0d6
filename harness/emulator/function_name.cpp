#include "emulator/function_name.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace flash_ladder::emulator {

std::string function_name(const std::string& mangled) {
  if (!mangled.starts_with("_Z")) return mangled;  // an extern "C" kernel f is no float
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return mangled;
  std::string name = demangled.get();
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (std::size_t at = name.find(kAnonymous); at != std::string::npos; at = name.find(kAnonymous)) {
    name.erase(at, kAnonymous.size());
  }
  name.erase(std::min(name.find_first_of("<("), name.size()));
  // A template's name has its return type before it.
  return name.substr(name.find_last_of(": ") + 1);
}

}  // namespace flash_ladder::emulator
