// Machine code instruction by instruction, with the lines that each one comes from: read from the files that the build leaves,
//
//   <directory>/06_swizzle.sm_90.lines       nvdisasm's text with lines of the PTX
//   <directory>/06_swizzle.compute_90.ptx    the PTX, which says the lines of the source
//
// nvdisasm would say the lines of the source itself, but takes two calls of the same function for one where nothing stands between
// them. What is counted of the same code is in sass_code.h.
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
  std::string opcode;  // as OpcodeCounts have it: "LDSM"
  SourcePosition position;   // innermost line first; empty where none is known
  int ptx_line = 0;          // of the PTX text that it was made of; 0 where none is known
  bool in_hot_loop = false;  // what that is: static_study.h
};

/// One __global__ function with the subroutines behind it. Padding is left out.
struct SassText {
  std::string name;  // mangled
  std::vector<SassInstruction> instructions;
  // Where a label stands: before instruction i, which may be one past the last. They are called L1, L2, … in their order, since
  // nvdisasm numbers those of all functions together.
  std::multimap<std::size_t, std::string> labels;
};

/// Reads what `nvdisasm --print-code --print-line-info-ptx` prints; positions and the hot loop are left open.
std::vector<SassText> parse_sass_text(std::string_view text);

/// Without what changes although the code does the same: R, UR, P and UP for every register and predicate (RZ, PT and their like
/// stay). "LDSM.16.M88.4 R, [R+0x4000]"
std::string without_registers(const std::string& text);

/// The functions of a configuration on an architecture ("sm_90", "sm_90a"), in the order of the text, with the hot loop marked.
/// `root` is that of the source tree. Throws UnavailableError where the build has no such file, or no function in it.
std::vector<SassText> sass_text(const Version& version, const Configuration& configuration, const std::string& code,
                                const std::filesystem::path& directory, const std::filesystem::path& root);

}  // namespace flash_ladder
