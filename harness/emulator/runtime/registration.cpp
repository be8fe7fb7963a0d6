// The functions that nvcc's host code calls before main(): they register the kernels and variables, and the host
// addresses by which the program refers to them. Their signatures are in the toolkit's crt/host_runtime.h.
#include <memory>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

Library* library_of(void** handle) { return reinterpret_cast<Library*>(handle); }

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using flash_ladder::emulator::Address;
using flash_ladder::emulator::runtime::allocate_on_host;
using flash_ladder::emulator::runtime::api_call;
using flash_ladder::emulator::runtime::Device;
using flash_ladder::emulator::runtime::Function;
using flash_ladder::emulator::runtime::Library;
using flash_ladder::emulator::runtime::library_of;
using flash_ladder::emulator::runtime::print_once;
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

// Called when the program ends. Registrations are kept, because other destructors may still call CUDA.
void __cudaUnregisterFatBinary(void** /*handle*/) {}

// Called before the host first uses a managed variable. If the code cannot be loaded, the launch reports why.
char __cudaInitModule(void** handle) {
  api_call("__cudaInitModule", [&](Device& device) {
    library_of(handle)->module(device.memory, device.sm);
    return cudaSuccess;
  });
  return 1;
}

void __cudaRegisterFunction(void** handle, const char* host_function, char* /*device_function*/,
                            const char* device_name, int /*thread_limit*/, uint3* /*thread_id*/, uint3* /*block_id*/,
                            dim3* /*block_dim*/, dim3* /*grid_dim*/, int* /*warp_size*/) {
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  registry.functions.push_back(
      std::make_unique<Function>(Function{.library = library_of(handle), .name = device_name}));
  Function* function = registry.functions.back().get();
  registry.functions_by_host_address[host_function] = function;
  registry.functions_by_host_address[function] = function;  // a cudaKernel_t is accepted as a function
}

void __cudaRegisterVar(void** handle, char* host_variable, char* /*device_address*/, const char* device_name,
                       int /*ext*/, size_t size, int /*constant*/, int /*global*/) {
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  registry.variables[host_variable] = {.library = library_of(handle), .name = device_name, .size = size};
}

// The host uses the variable through a pointer. It gets its memory now, so that the order of accesses is checked from
// the beginning, and its value when the code is loaded.
void __cudaRegisterManagedVar(void** handle, void** host_variable, char* /*device_address*/, const char* device_name,
                              int /*ext*/, size_t size, int /*constant*/, int /*global*/) {
  Device& device = flash_ladder::emulator::runtime::device();
  const std::lock_guard device_lock(device.mutex);
  if (allocate_on_host(device, host_variable, size, true) != cudaSuccess) {
    print_once(std::string("there is no memory for the ") + std::to_string(size) + " bytes of the variable " +
               device_name);
    return;
  }
  library_of(handle)->managed_variables[device_name] = reinterpret_cast<Address>(*host_variable);
  Registry& registry = ::registry();
  const std::lock_guard lock(registry.mutex);
  // The address &variable in the program.
  registry.variables[*host_variable] = {.library = library_of(handle), .name = device_name, .size = size};
}

}  // extern "C"
