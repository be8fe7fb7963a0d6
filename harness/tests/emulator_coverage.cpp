// Counts the kernels in a folder of PTX that the virtual GPU can decode, and says why it cannot decode the others:
// emulator-coverage FOLDER|FILE…
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "emulator/emulator.h"

namespace flash_ladder::emulator {
namespace {

// An error without the details of its location: its line, and the operands of the instruction.
std::string kind_of(const std::string& error) {
  static const std::regex line("^PTX line \\d+( \\([^)]*\\))?: ");
  static const std::regex instruction("(this instruction: (@!?\\S+ )?[A-Za-z0-9_.:]+).*");
  return std::regex_replace(std::regex_replace(error, line, ""), instruction, "$1");
}

struct Coverage {
  std::size_t kernels = 0, decoded = 0, textures = 0;
  std::map<std::string, std::size_t> reasons;

  void refuse(const std::string& error, std::size_t count) {
    if (error.find("textures and surfaces") != std::string::npos) textures += count;
    reasons[kind_of(error)] += count;
  }

  void add(const std::string& text) {
    Memory memory;
    try {
      const Module module(text, memory);
      for (const Kernel* kernel : module.kernels()) {
        ++kernels;
        try {
          kernel->compiled();
          ++decoded;
        } catch (const std::exception& error) {
          refuse(error.what(), 1);
        }
      }
    } catch (const std::exception& error) {
      // An error that concerns the whole text counts for every kernel that the text contains.
      std::size_t count = 0;
      for (std::size_t at = text.find(".entry"); at != std::string::npos; at = text.find(".entry", at + 1)) ++count;
      kernels += count;
      refuse(error.what(), count);
    }
  }
};

int run(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (!fs::exists(path)) {
      fmt::print(stderr, "emulator-coverage: there is no file or folder '{}'\n", path);
      return 2;
    }
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && entry.path().extension() == ".ptx") files.push_back(entry.path());
    }
  }
  Coverage coverage;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    coverage.add(std::string(std::istreambuf_iterator<char>(stream), {}));
  }
  if (coverage.kernels == 0) {
    fmt::print(stderr,
               "emulator-coverage: no kernel in {} files. nvcc --ptx -arch=compute_80 makes some of a program\n",
               files.size());
    return 2;
  }
  const std::size_t without_textures = coverage.kernels - coverage.textures;
  fmt::print("{} of {} kernels in {} files can be decoded", coverage.decoded, coverage.kernels, files.size());
  if (without_textures != 0) {
    fmt::print("; without textures {} of {}, {:.1f} %", coverage.decoded, without_textures,
               100.0 * static_cast<double>(coverage.decoded) / static_cast<double>(without_textures));
  }
  fmt::print("\n");
  std::vector<std::pair<std::string, std::size_t>> reasons(coverage.reasons.begin(), coverage.reasons.end());
  std::ranges::stable_sort(reasons, [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [reason, count] : reasons) fmt::print("{:6}  {}\n", count, reason);
  return 0;
}

}  // namespace
}  // namespace flash_ladder::emulator

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: emulator-coverage FOLDER|FILE…   (.ptx files, of nvcc --ptx -arch=compute_80)\n", stderr);
    return 2;
  }
  return flash_ladder::emulator::run({argv + 1, argv + argc});
}
