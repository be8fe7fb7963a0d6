// One launch of one version on the caller's arrays.
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

/// The location of a module's arrays: on a GPU, or on the host for the virtual GPU.
enum class Place { gpu, host };

/// There is not enough memory for the version's workspace. A MemoryError in Python.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

struct Call {
  std::string kernel;                   // 7, 07, 07_ldmatrix, causal; empty: the fastest that solves the problem
  std::string config;                   // empty: the preferred one
  AttentionProblem asked;               // causal, window, lengths; the rest comes from the arrays
  std::optional<double> softmax_scale;  // nullopt: 1 / sqrt(head_dim)
  int device = 0;                       // ordinal of the GPU that the arrays are on
  cudaStream_t stream = nullptr;
  bool wait = false;  // whether to wait until the output is complete
  bool timed = false;
  bool only_chooses = false;                // nothing is launched
  ProblemKind kind = ProblemKind::forward;  // decoding: only versions for few queries may run
  bool deterministic = false;               // of gradients: only versions may run whose launches agree bit for bit
};

struct Answer {
  std::vector<std::string> findings;   // of the virtual GPU
  std::optional<double> milliseconds;  // of a timed call
  std::string kernel;                  // the version that ran: "07_ldmatrix"
};

/// The version of that name; if it is empty, the one with the highest number that the device runs, or, with nullptr,
/// that every device runs. Throws UsageError if there is none.
const Version& version_of(std::string_view kernel, const DeviceInfo* device);

/// Checks the arguments and enqueues one launch of a version of the call's kind: of one that computes O, or gradients. Also waits for it if it is timed, and on the virtual GPU. Throws
/// UsageError for invalid arguments, UnavailableError if the GPU is too old, OutOfMemory, CudaError. Once `interrupt`
/// is true, a launch on the virtual GPU ends with an error, or with the findings so far.
Answer forward(const Call& call, const Arrays& arrays, Place place, const std::atomic<bool>& interrupt);

/// Memory of a GPU, to be freed with cudaFree; nullptr if there is not enough. Throws CudaError.
void* allocate_on_gpu(int ordinal, std::size_t bytes);

/// Describes a GPU and how much of its memory is free. Does not change the thread's current device. Throws
/// UnavailableError.
DeviceInfo device_info(int ordinal);

}  // namespace flash_ladder::python
