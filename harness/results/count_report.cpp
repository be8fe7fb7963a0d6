// For programs that do not know about the virtual GPU: prints at exit what it has counted, if an environment variable
// requests it. A program gets this behaviour by being linked with this object, which scripts/emulate does.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "emulator/function_name.h"
#include "emulator/runtime/virtual_runtime.h"
#include "results/atomic_file.h"
#include "results/counter_text.h"
#include "results/counters.h"

namespace flash_ladder {
namespace {

namespace runtime = emulator::runtime;
using emulator::SourceLine;

constexpr std::size_t kCostliestLines = 8;

// The part in the kernel's file: the line that calls code in other files, and the lines that call that line.
emulator::SourcePosition in_kernel_file(const emulator::SourcePosition& position) {
  emulator::SourcePosition own;
  for (const SourceLine& line : position)
    if (line.file == position.back().file) own.push_back(line);
  return own;
}

// The line's text without its indentation; empty if it cannot be read.
std::string text_of(const SourceLine& line) {
  static std::map<std::string, std::vector<std::string>> files;
  const auto [found, is_new] = files.try_emplace(line.file);
  if (is_new) {
    std::ifstream file(line.file);
    for (std::string text; std::getline(file, text);) found->second.push_back(text);
  }
  const auto index = static_cast<std::size_t>(line.line) - 1;
  if (index >= found->second.size()) return "";
  const std::string& text = found->second[index];
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

// fmt::print would throw if standard error cannot be written, and so abort a program that is about to exit.
template <typename... Ts>
void say(fmt::format_string<Ts...> format, Ts&&... values) {
  std::fputs(fmt::format(format, std::forward<Ts>(values)...).c_str(), stderr);
}

void print_lines(const runtime::KernelCounters& kernel) {
  std::map<emulator::SourcePosition, Counters> by_position;
  std::uint64_t all = 0;
  for (const emulator::LineCounters& line : kernel.lines) {
    by_position[in_kernel_file(line.position)] += line.counters;
    all += total_cost(line.counters);
  }
  std::vector<std::pair<emulator::SourcePosition, Counters>> lines(by_position.begin(), by_position.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return total_cost(a.second) > total_cost(b.second); });
  if (lines.size() > kCostliestLines) lines.resize(kCostliestLines);
  say("{}\n", line_heading("Costliest lines", true));
  for (const auto& [position, counters] : lines) {
    say("{}{}  {}\n", line_figures(counters, all, true), to_string(position),
        position.empty() ? "" : text_of(position.front()));
  }
}

void print(const std::vector<runtime::KernelCounters>& kernels) {
  for (const runtime::KernelCounters& kernel : kernels) {
    say("\nvirtual GPU: {}, {} launch{}\n", emulator::demangled(kernel.kernel), kernel.launches,
        kernel.launches == 1 ? "" : "es");
    for (const auto& [label, text] : describe_counters(kernel.totals))
      if (!text.empty()) say("{:<9} {}\n", label, text);
    const auto warps = static_cast<double>(std::max<std::uint64_t>(kernel.totals.warp_instructions, 1));
    say("{:<9} {:.1f} of 32 active in an instruction, on average\n", "Lanes",
        static_cast<double>(kernel.totals.thread_instructions) / warps);
    if (const std::string roles = describe(kernel.roles); !roles.empty()) say("{:<9} {}\n", "Roles", roles);
    print_lines(kernel);
  }
  say("\n{}\n", kernels.empty() ? "virtual GPU: no kernel has run" : kCostExplained);
}

nlohmann::json to_json(const std::vector<runtime::KernelCounters>& kernels) {
  auto json = nlohmann::json::array();
  for (const runtime::KernelCounters& kernel : kernels) {
    auto lines = nlohmann::json::array();
    for (const emulator::LineCounters& line : kernel.lines) {
      auto position = nlohmann::json::array();
      for (const SourceLine& place : line.position) position.push_back(fmt::format("{}:{}", place.file, place.line));
      lines.push_back({{"position", position}, {"counters", counters_to_json(line.counters, Zeros::left_out)}});
    }
    json.push_back({{"kernel", emulator::demangled(kernel.kernel)},
                    {"launches", kernel.launches},
                    {"counters", counters_to_json(kernel.totals, Zeros::kept)},
                    {"lines", lines},
                    {"roles", roles_to_json(kernel.roles)}});
  }
  return {{"sm", runtime::settings().sm}, {"kernels", json}};
}

void report() {
  const std::vector<runtime::KernelCounters> kernels = runtime::take_counters();
  std::fflush(nullptr);
  std::cout.flush();
  const char* const file = std::getenv("FLASH_LADDER_COUNT_JSON");
  if (file == nullptr || *file == '\0') {
    print(kernels);
    return;
  }
  try {
    write_file_atomically(file, to_json(kernels).dump(2) + "\n");
  } catch (const std::exception& error) {
    say("virtual GPU: {}\n", error.what());
    std::atexit([] { _exit(EXIT_FAILURE); });  // after the findings have been printed
  }
}

__attribute__((constructor)) void install() {
  const char* const asked = std::getenv("FLASH_LADDER_COUNT");
  if (asked != nullptr && *asked != '\0') std::atexit(report);
}

}  // namespace
}  // namespace flash_ladder
