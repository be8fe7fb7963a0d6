// How a file in kernels/backward/ or kernels/backward/extensions/ describes its version. It is like Registration
// (host/registration.h), except that its launch also receives the gradients.
#pragma once

#include <vector>

#include "gradients.h"
#include "host/registration.h"

namespace flash_ladder {

/// The argument of a launch of the backward track. The launch passes its kernels AttentionArgs, and `gradients`.
struct BackwardArgs : ExtendedArgs {
  Gradients gradients;
};

/// A backward version's launch in the form that configuration() takes. It must be called with BackwardArgs: problem/kind.h
/// says which versions need them.
template <cudaError_t (*kLaunch)(const BackwardArgs&, cudaStream_t)>
cudaError_t backward_launch(const ExtendedArgs& args, cudaStream_t stream) {
  return kLaunch(static_cast<const BackwardArgs&>(args), stream);
}

/// What a kernel file states about its version.
struct BackwardDescription {
  const char* source;        // __FILE__
  const char* extends = "";  // of an extension: what it is compared with, as --kernel names it
  Architecture architecture = Architecture::sm_80;
  // Whether repeated launches agree bit for bit. They do not if several CTAs add to one element with atomics, in any order.
  bool deterministic = true;
  Solves solves = {};
  std::vector<BasicConfiguration<const char*>> configurations;  // in order of preference
};

/// Adds a backward version to versions(), or completes it if it was announced.
class __attribute__((visibility("default"))) BackwardRegistration {
 public:
  /// Throws std::invalid_argument as Registration does.
  explicit BackwardRegistration(BackwardDescription description);
};

}  // namespace flash_ladder
