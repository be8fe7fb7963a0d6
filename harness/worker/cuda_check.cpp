#include "worker/cuda_check.h"

#include <fmt/format.h>

namespace flash_ladder {

void check(cudaError_t error, const std::string& doing) {
  if (error == cudaSuccess) return;
  throw CudaError(fmt::format("{} failed: {} ({})", doing, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace flash_ladder
