// CUDA errors as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace flash_ladder {

/// A CUDA call failed. After a fault in a kernel, every later call of the process fails too.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws CudaError unless the call succeeded. `doing` describes its purpose: "copying Q to the GPU".
void check(cudaError_t error, const std::string& doing);

}  // namespace flash_ladder
