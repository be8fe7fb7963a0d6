// Turns a parsed kernel into what a launch executes.
#pragma once

#include <memory>

#include "emulator/decode/instruction.h"
#include "emulator/decode/kernel_decoder.h"
#include "emulator/ptx/module_image.h"

namespace flash_ladder::emulator {

/// Throws PtxError for an instruction that is unknown or malformed.
std::unique_ptr<CompiledKernel> compile(const ModuleImage& image, const ptx::Function& function,
                                        const OperationTable& operations);

}  // namespace flash_ladder::emulator
