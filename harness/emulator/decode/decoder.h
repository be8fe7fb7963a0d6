// A parsed kernel → what a launch executes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/ptx/module_image.h"

namespace flash_ladder::emulator {

/// Throws PtxError for an instruction that is unknown or malformed.
std::unique_ptr<CompiledKernel> compile(const ModuleImage& image, const ptx::Function& function);

/// The instructions that are decoded one by one: the first part of each opcode, "ld" for example. All others are in lane_table().
std::vector<std::string> decoded_instructions();

/// Where the parameters of a function lie in its parameter bytes, one entry per parameter.
std::vector<KernelParameter> parameter_layout(const ModuleImage& image, const ptx::Function& function);

}  // namespace flash_ladder::emulator
