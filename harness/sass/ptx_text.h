// PTX as nvcc wrote it, instruction by instruction, with the line of the text and the source lines that each comes
// from. The virtual GPU's parser understands instructions (harness/emulator/ptx/); this one only finds them, for any
// architecture.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

struct PtxInstruction {
  int line;                 // line of the text where the statement begins, from 1
  std::string text;         // "@%p1 bra $L__BB0_2;", with single blanks
  std::string opcode;       // with its modifiers: "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
  std::string function;     // mangled
  SourcePosition position;  // innermost line first; empty when not known
};

/// All instructions in the order of the text. Files below `root` are named relative to it, others without their folders.
std::vector<PtxInstruction> parse_ptx_text(std::string_view text, const std::filesystem::path& root);

}  // namespace flash_ladder
