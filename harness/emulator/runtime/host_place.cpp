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
#include <utility>
#include <vector>

#include "emulator/function_name.h"

namespace flash_ladder::emulator::runtime {
namespace {

// A file of code, the program or a library that it loaded, and the address that addr2line's addresses are relative to.
struct CodeFile {
  std::string path;
  std::uintptr_t base = 0;
  bool operator==(const CodeFile&) const = default;
};

// The file that contains an address.
CodeFile file_of(std::uintptr_t address) {
  struct Search {
    std::uintptr_t address;
    CodeFile found;
    bool is_first = true;
  } search{.address = address, .found = {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        Search& search = *static_cast<Search*>(to);
        const bool is_program = std::exchange(search.is_first, false);  // whose name is empty
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || search.address < begin || search.address >= begin + segment.p_memsz)
            continue;
          search.found = {.path = is_program ? "/proc/" + std::to_string(getpid()) + "/exe" : info->dlpi_name,
                          .base = info->dlpi_addr};
          return 1;
        }
        return 0;
      },
      &search);
  return search.found;
}

// True for anything but the virtual GPU's own code, and the code that nvcc and CUDA's headers put between it and the
// program.
bool is_of_the_program(const std::string& function, const std::string& file, const std::string& kernel) {
  for (const char* part : {"/harness/emulator/", "/cuda_runtime", "/crt/", "/bits/", ".stub.c", "??"}) {
    if (file.find(part) != std::string::npos) return false;
  }
  return function.find("__device_stub_") == std::string::npos && (kernel.empty() || function != demangled(kernel));
}

// The line of the first of these calls that is of the program; empty if there is none.
SourcePosition line_of(const CodeFile& code, const std::vector<std::uintptr_t>& addresses, const std::string& kernel) {
  SourcePosition position;
  if (code.path.find('\'') != std::string::npos) return position;  // the shell would see the end of the name
  std::string command = "addr2line -f -C -e '" + code.path + "'";
  for (const std::uintptr_t address : addresses) {
    char text[24];
    std::snprintf(text, sizeof text, " 0x%zx", address);
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
    if (is_of_the_program(function, file, kernel)) position = {{.file = file, .line = line}};
  }
  pclose(pipe);
  return position;
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
  for (std::size_t i = 0; i < calls.size() && position.empty();) {
    const CodeFile file = file_of(reinterpret_cast<std::uintptr_t>(calls[i]) - 1);
    std::vector<std::uintptr_t> addresses;  // of adjacent calls in the same file
    for (; i < calls.size() && file_of(reinterpret_cast<std::uintptr_t>(calls[i]) - 1) == file; ++i)
      addresses.push_back(reinterpret_cast<std::uintptr_t>(calls[i]) - file.base - 1);
    position = line_of(file, addresses, place.kernel);
  }
  return position;
}

}  // namespace flash_ladder::emulator::runtime
