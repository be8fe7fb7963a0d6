#include "problem/kind.h"

#include <stdexcept>

namespace flash_ladder {

const KindOfProblem& describe(ProblemKind kind) {
  static constexpr KindOfProblem kForward{
      .name = "forward", .work = 1, .outputs = "O", .has_probes = true, .has_peers = true};
  static constexpr KindOfProblem kBackward{
      .name = "backward", .work = 2.5, .outputs = "dQ, dK and dV", .has_probes = false, .has_peers = false};
  static constexpr KindOfProblem kDecoding{
      .name = "decoding", .work = 1, .outputs = "O", .has_probes = true, .has_peers = true};
  switch (kind) {
    case ProblemKind::forward:
      return kForward;
    case ProblemKind::backward:
      return kBackward;
    case ProblemKind::decoding:
      return kDecoding;
  }
  throw std::logic_error("a ProblemKind without a description");
}

}  // namespace flash_ladder
