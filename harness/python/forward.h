// One launch of one version on arrays that the caller has.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/versions.h"
#include "python/arguments.h"
#include "rules/device_info.h"

namespace flash_ladder::python {

/// Where the arrays of a module are: on a GPU, or on the host for the virtual GPU.
enum class Place { gpu, host };

/// The workspace that a version needs does not fit. A MemoryError in Python.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

struct Call {
  std::string kernel;                   // 7, 07, 07_ldmatrix, causal; empty: the newest that the device runs
  std::string config;                   // empty: the preferred one
  AttentionProblem asked;               // causal, window, lengths; the rest is that of the arrays
  std::optional<double> softmax_scale;  // nullopt: 1 / sqrt(head_dim)
  int device = 0;                       // ordinal of the GPU that the arrays are on
  cudaStream_t stream = nullptr;
  bool wait = false;  // until the output is complete
  bool timed = false;
};

struct Answer {
  std::vector<std::string> findings;   // of the virtual GPU
  std::optional<double> milliseconds;  // of a timed call
};

/// The version of that name; if it is empty, that of the highest number that the device runs, or with nullptr that every device
/// runs. Throws UsageError when there is none.
const Version& version_of(const std::string& kernel, const DeviceInfo* device);

/// Checks the arguments and enqueues one launch. Also waits for it when it is timed, and on the virtual GPU. Throws UsageError for
/// arguments that cannot be, UnavailableError where the GPU is too old, OutOfMemory, CudaError. Once `interrupt` is true, a launch on
/// the virtual GPU ends with an error, or with what was found so far.
Answer forward(const Call& call, const Arrays& arrays, Place place, const std::atomic<bool>& interrupt);

/// Memory of a GPU, for cudaFree; nullptr when there is not so much. Throws CudaError.
void* allocate_on_gpu(int ordinal, std::size_t bytes);

/// What a GPU is, and how much of its memory is free. Leaves the thread's current device as it is. Throws UnavailableError.
DeviceInfo device_info(int ordinal);

}  // namespace flash_ladder::python
