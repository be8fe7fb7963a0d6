// PTX as nvcc wrote it, instruction by instruction: which line of the text, and which lines of the source it comes from. The
// virtual GPU has a parser that understands instructions (harness/emulator/ptx/); this one only finds them, of any architecture.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

struct PtxInstruction {
  int line;                 // of the text, from 1: where the statement begins
  std::string text;         // "@%p1 bra $L__BB0_2;", with single blanks
  std::string opcode;       // with its modifiers: "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
  std::string function;     // mangled
  SourcePosition position;  // innermost line first; empty where none is known
};

/// All instructions in the order of the text. Files below `root` are named from there, others
/// without their folders.
std::vector<PtxInstruction> parse_ptx_text(std::string_view text, const std::filesystem::path& root);

}  // namespace flash_ladder
