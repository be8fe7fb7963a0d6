// Machine code instruction by instruction, with the source lines of each, read from the files that the build leaves:
//
//   <directory>/06_swizzle.sm_90.lines       nvdisasm's text with lines of the PTX
//   <directory>/06_swizzle.compute_90.ptx    the PTX, which contains the lines of the source
//
// nvdisasm can print the source lines itself, but it merges two adjacent calls of the same function into one. Counts of
// the same code are in sass_code.h.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "host/versions.h"
#include "results/result.h"

namespace flash_ladder {

struct SassInstruction {
  std::string text;    // without its address: "@P0 LDSM.16.M88.4 R112, [R52+0x4000]"; labels as in SassText::labels
  std::string opcode;  // as in OpcodeCounts: "LDSM"
  SourcePosition position;   // innermost line first; empty when not known
  int ptx_line = 0;          // of the PTX text from which it was compiled; 0 when not known
  bool in_hot_loop = false;  // defined in static_study.h
};

/// One __global__ function with the subroutines after it. Padding is left out.
struct SassText {
  std::string name;  // mangled
  std::vector<SassInstruction> instructions;
  // The position of each label: before instruction i, which may be one past the last. The labels are renamed L1, L2, …
  // in order, because nvdisasm numbers the labels of all functions together.
  std::multimap<std::size_t, std::string> labels;
};

/// Parses the output of `nvdisasm --print-code --print-line-info-ptx`; leaves positions and the hot loop unset.
std::vector<SassText> parse_sass_text(std::string_view text);

/// The text without details that change although the code does the same: every register and predicate becomes R, UR, P
/// or UP (RZ, PT and similar names are kept). "LDSM.16.M88.4 R, [R+0x4000]"
std::string without_registers(const std::string& text);

/// The functions of a configuration on an architecture ("sm_90", "sm_90a"), in the order of the text, with the hot loop
/// marked. `root` is the root of the source tree. Throws UnavailableError if the build has no such file, or the file
/// has no function of the configuration.
std::vector<SassText> sass_text(const Version& version, const Configuration& configuration, const std::string& code,
                                const std::filesystem::path& directory, const std::filesystem::path& root);

}  // namespace flash_ladder
