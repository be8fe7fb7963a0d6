// The virtual GPU: runs the PTX of CUDA kernels on the CPU, counts what they do, and finds errors that a GPU hides.
// docs/virtual_gpu.md explains how. It is functional, not a timing model. Typical use:
//
//   Memory memory;                                          // the device's global memory
//   Module module(ptx_text, memory);                        // like cuModuleLoadData
//   const Kernel& kernel = module.kernel("_Z6kernelPf");
//   Address x = memory.allocate(1024);
//   std::vector<std::byte> parameters = pack_parameters(kernel, arguments);
//   Report report = launch(kernel, {.grid = {8}, .block = {128}, .parameters = parameters}, memory);
#pragma once

#include "emulator/launch.h"
#include "emulator/memory.h"
#include "emulator/module.h"
#include "emulator/report.h"
#include "emulator/trace.h"
