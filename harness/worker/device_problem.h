// One problem in device memory, ready to be launched.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention.h"
#include "registry.h"
#include "worker/cuda_objects.h"
#include "worker/inputs.h"

namespace flash_ladder {

class DeviceProblem {
 public:
  /// Copies the inputs to the GPU and allocates the output and the workspace.
  DeviceProblem(const Version& version, const Configuration& configuration, const Inputs& inputs);

  /// Enqueues NaN into the output and the workspace.
  void poison(const Stream& stream);
  /// Enqueues one launch. Throws CudaError when CUDA refuses it.
  void launch(const Stream& stream) const;
  /// Waits for all that was enqueued. Throws CudaError when a kernel has faulted.
  void wait() const;

  HostBuffer output() const { return O_.download(); }
  std::vector<HostBuffer> inputs() const;
  /// The first buffer whose guard bands were written to.
  std::optional<std::string> guard_damage() const;

 private:
  std::string description_;  // for messages
  const Configuration& configuration_;
  std::vector<GuardedBuffer> inputs_;
  GuardedBuffer O_;
  std::optional<GuardedBuffer> workspace_;
  AttentionArgs args_;
};

}  // namespace flash_ladder
