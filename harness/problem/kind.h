// The kinds of problem, each described once: forward, backward and decoding. The code that computes the inputs and the reference of a
// backward problem is in worker/gradients.h.
#pragma once

#include <string_view>

#include "host/versions.h"
#include "problem/problem.h"

namespace flash_ladder {

struct KindOfProblem {
  std::string_view name;
  // The products that count in TFLOP/s. The backward pass has five; a recomputed S counts, as it does in published benchmarks.
  Products products;
  // What a kernel writes, for messages. If it has only one output, messages need no name.
  std::string_view outputs;
  // A version that starts fewer CTAs on few SMs is checked on few of them, too. A study card says what is different then, and the
  // diagnosis of an output that is wrong only there says it after "With all SMs, ".
  std::string_view few_sms, wrong_on_few_sms;
  // Whether scripts/peers measures other projects' kernels for it, which are shown beside its figures.
  bool has_peers;
};

const KindOfProblem& describe(ProblemKind kind);
inline const KindOfProblem& kind_of(const Version& version) { return describe(version.kind); }

}  // namespace flash_ladder
