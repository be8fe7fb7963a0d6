#include "emulator/function_name.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace flash_ladder::emulator {

std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;  // an extern "C" kernel f is not a float
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

std::string function_name(const std::string& mangled) {
  std::string name = demangled(mangled);
  if (name == mangled) return name;
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (std::size_t at = name.find(kAnonymous); at != std::string::npos; at = name.find(kAnonymous)) {
    name.erase(at, kAnonymous.size());
  }
  name.erase(std::min(name.find_first_of("<("), name.size()));
  // The demangled name of a template has its return type first.
  return name.substr(name.find_last_of(": ") + 1);
}

std::string variable_name(const std::string& mangled) {
  const std::string name = demangled(mangled);
  return name.substr(name.rfind(':') + 1);  // the whole name if there is none
}

}  // namespace flash_ladder::emulator
