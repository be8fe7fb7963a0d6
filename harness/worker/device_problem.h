// One problem in device memory, ready to be launched by any of a version's configurations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/versions.h"
#include "worker/cuda_objects.h"
#include "worker/inputs.h"

namespace flash_ladder {

class DeviceProblem {
 public:
  /// Copies the inputs, which have to outlive it, to the GPU, those of an e4m3 problem in 8 bits, and allocates the output, and the largest workspace that any of the configurations needs.
  DeviceProblem(const Version& version, const std::vector<const Configuration*>& configurations, const Inputs& inputs);

  /// Enqueues NaN into the output and the workspace.
  void poison(const Stream& stream);
  /// Enqueues one launch of one of the configurations. Throws CudaError when CUDA refuses it.
  void launch(const Configuration& configuration, const Stream& stream) const;
  /// Waits for all that was enqueued. Throws CudaError when a kernel has faulted.
  void wait() const;

  HostBuffer output() const { return O_.download(); }
  std::vector<HostBuffer> inputs() const;
  /// The first buffer whose guard bands were written to.
  std::optional<std::string> guard_damage() const;

 private:
  std::string describe_launch(const std::string& doing, const std::string& configurations) const;

  // For messages.
  std::string version_, configurations_, problem_;
  std::vector<GuardedBuffer> inputs_;
  GuardedBuffer O_;
  std::optional<GuardedBuffer> workspace_, lengths_, lengths_kv_, scales_;
  const Inputs& host_;  // whose scales those of the device are
  ExtendedArgs args_;
};

}  // namespace flash_ladder
