// One problem in device memory, ready to be launched with any of a version's configurations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/backward.h"
#include "host/versions.h"
#include "worker/cuda_objects.h"
#include "worker/inputs.h"

namespace flash_ladder {

class DeviceProblem {
 public:
  /// Copies the inputs, which must outlive it, to the GPU (where is_in_8_bits(), as 8-bit elements), and allocates the
  /// outputs and the largest workspace that any of the configurations needs.
  DeviceProblem(const Version& version, const std::vector<const Configuration*>& configurations, const Inputs& inputs);

  /// Enqueues filling the outputs and the workspace with NaN.
  void poison(const Stream& stream);
  /// Enqueues one launch of one of the configurations. Throws CudaError if CUDA refuses it.
  void launch(const Configuration& configuration, const Stream& stream) const;
  /// The same for a caller that does not ask for the log-sum-exp.
  void launch_without_log_sum_exp(const Configuration& configuration, const Stream& stream) const;
  /// Waits for everything that was enqueued. Throws CudaError if a kernel has faulted.
  void wait() const;

  /// The first of the outputs: O, or dQ.
  HostBuffer output() const { return outputs_.front().download(); }
  /// O; or dQ, dK and dV, if the inputs are those of a backward problem.
  std::vector<HostBuffer> outputs() const;
  /// [batch][heads][seq_len], or [heads][total] if packed; empty if the version does not write it.
  std::vector<float> log_sum_exp() const;
  std::vector<HostBuffer> inputs() const;
  /// The other inputs of a backward problem: dO, O and L; empty for other problems.
  std::vector<HostBuffer> gradient_inputs() const;
  /// The first buffer whose guard bands were overwritten.
  std::optional<std::string> guard_damage() const;

 private:
  void add_new_token(Tensors& tensors);
  std::string describe_launch(const std::string& doing, const std::string& configurations) const;

  // For messages.
  std::string version_, configurations_, problem_;
  std::vector<GuardedBuffer> inputs_;
  std::vector<GuardedBuffer> gradient_inputs_;
  std::vector<GuardedBuffer>
      new_token_inputs_;  // of a problem that appends: its key and value, and the tables of a rotation
  std::vector<GuardedBuffer> outputs_;
  std::optional<GuardedBuffer> log_sum_exp_, workspace_, lengths_, lengths_kv_, page_table_, scales_, K_scales_,
      V_scales_, alibi_slopes_, sinks_;
  const Inputs& host_;  // the source of the scales on the device
  BackwardArgs args_;   // of a forward problem, the kernel sees only its base
};

}  // namespace flash_ladder
