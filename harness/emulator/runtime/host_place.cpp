#include "emulator/runtime/host_place.h"

#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "emulator/function_name.h"

namespace flash_ladder::emulator::runtime {
namespace {

// The address at which the program is loaded, which addr2line's addresses are relative to.
std::uintptr_t program_base() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<std::uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &base);
  return base;
}

// True for anything but the virtual GPU's own code, and the code that nvcc and CUDA's headers put between it and the
// program.
bool is_of_the_program(const std::string& function, const std::string& file, const std::string& kernel) {
  for (const char* part : {"/harness/emulator/", "/cuda_runtime", "/crt/", "/bits/", ".stub.c", "??"}) {
    if (file.find(part) != std::string::npos) return false;
  }
  return function.find("__device_stub_") == std::string::npos && (kernel.empty() || function != demangled(kernel));
}

}  // namespace

HostPlace host_place(const std::string& kernel) {
  HostPlace place;
  place.kernel = kernel;
  place.count = static_cast<std::size_t>(backtrace(place.calls.data(), static_cast<int>(place.calls.size())));
  return place;
}

SourcePosition line_of(const HostPlace& place) {
  static std::map<std::vector<void*>, SourcePosition> known;
  std::vector<void*> calls(place.calls.begin(), place.calls.begin() + static_cast<std::ptrdiff_t>(place.count));
  if (const auto found = known.find(calls); found != known.end()) return found->second;
  SourcePosition& position = known[calls];
  // These are return addresses; the byte before each belongs to the line that makes the call.
  const std::uintptr_t base = program_base();
  std::string command = "addr2line -f -C -e /proc/" + std::to_string(getpid()) + "/exe";
  for (void* call : calls) {
    char text[24];
    std::snprintf(text, sizeof text, " 0x%zx", reinterpret_cast<std::uintptr_t>(call) - base - 1);
    command += text;
  }
  command += " 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return position;
  char function[1024], where[4096];
  while (std::fgets(function, sizeof function, pipe) != nullptr && std::fgets(where, sizeof where, pipe) != nullptr) {
    if (!position.empty()) continue;  // keep reading, so that addr2line can end
    const char* const colon = std::strrchr(where, ':');
    const int line = colon == nullptr ? 0 : static_cast<int>(std::strtol(colon + 1, nullptr, 10));
    if (line <= 0) continue;
    const std::string file(where, static_cast<std::size_t>(colon - where));
    function[std::strcspn(function, "\n")] = '\0';
    if (is_of_the_program(function, file, place.kernel)) position = {{.file = file, .line = line}};
  }
  pclose(pipe);
  return position;
}

}  // namespace flash_ladder::emulator::runtime
