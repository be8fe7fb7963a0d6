#include "sass/ptxas_report.h"

#include <regex>
#include <sstream>

namespace flash_ladder {

std::map<std::string, FunctionResources> parse_ptxas_report(std::string_view report) {
  // ptxas info    : Compiling entry function '_Z…' for 'sm_80'
  // ptxas info    : Function properties for _Z…
  //     0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
  // ptxas info    : Used 166 registers, used 1 barriers, 16 bytes smem, 512 bytes cmem[0]
  static const std::regex entry_line("Compiling entry function '([^']+)'");
  static const std::regex spill_line("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  static const std::regex used_line("Used (\\d+) registers");
  static const std::regex smem("(\\d+)(?:\\+\\d+)? bytes smem");

  std::map<std::string, FunctionResources> functions;
  FunctionResources* function = nullptr;
  std::istringstream lines{std::string(report)};
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, entry_line)) function = &functions[match[1]];
    if (!function) continue;
    if (std::regex_search(line, match, spill_line)) function->spill_bytes += std::stoi(match[1]) + std::stoi(match[2]);
    if (std::regex_search(line, match, used_line)) {
      function->registers = std::stoi(match[1]);
      if (std::regex_search(line, match, smem)) function->static_smem_bytes = std::stoi(match[1]);
    }
  }
  return functions;
}

}  // namespace flash_ladder
