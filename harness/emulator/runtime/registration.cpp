// The functions that nvcc's host code calls before main(): they tell which kernels and variables there are, and at which host
// addresses the program names them. Their signatures are in the toolkit's crt/host_runtime.h.
#include <memory>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

Library* library_of(void** handle) { return reinterpret_cast<Library*>(handle); }

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using flash_ladder::emulator::runtime::Function;
using flash_ladder::emulator::runtime::Library;
using flash_ladder::emulator::runtime::library_of;
using flash_ladder::emulator::runtime::registry;
using flash_ladder::emulator::runtime::Registry;

extern "C" {

void** __cudaRegisterFatBinary(void* fat_binary) {
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  registry.libraries.push_back(std::make_unique<Library>(fat_binary));
  return reinterpret_cast<void**>(registry.libraries.back().get());
}

void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}

// At the end of the program. What was registered stays: other ends may still call CUDA.
void __cudaUnregisterFatBinary(void** /*handle*/) {}

char __cudaInitModule(void** /*handle*/) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host_function, char* /*device_function*/,
                            const char* device_name, int /*thread_limit*/, uint3* /*thread_id*/, uint3* /*block_id*/,
                            dim3* /*block_dim*/, dim3* /*grid_dim*/, int* /*warp_size*/) {
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  registry.functions.push_back(
      std::make_unique<Function>(Function{.library = library_of(handle), .name = device_name}));
  Function* function = registry.functions.back().get();
  registry.functions_by_host_address[host_function] = function;
  registry.functions_by_host_address[function] = function;  // a cudaKernel_t will do wherever a function is asked for
}

void __cudaRegisterVar(void** handle, char* host_variable, char* /*device_address*/, const char* device_name,
                       int /*ext*/, size_t size, int /*constant*/, int /*global*/) {
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  registry.variables[host_variable] = {.library = library_of(handle), .name = device_name, .size = size};
}

void __cudaRegisterManagedVar(void** handle, void** /*host_variable*/, char* /*device_address*/,
                              const char* /*device_name*/, int /*ext*/, size_t /*size*/, int /*constant*/,
                              int /*global*/) {
  library_of(handle)->has_managed_variables = true;
}

}  // extern "C"
