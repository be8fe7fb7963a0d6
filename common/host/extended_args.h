// What a launch gets of a problem that is not plain.
#pragma once

#include "attention.h"

namespace flash_ladder {

/// The argument of a launch: the kernels' own AttentionArgs, and the fields of AttentionProblem that only extensions know. It stays
/// on the host. The launch of an extension passes its kernel AttentionArgs and those of the fields that it solves:
///
///   kernel<<<grid, threads, smem_bytes, stream>>>(args, args.causal);
struct ExtendedArgs : AttentionArgs {
  bool causal = false;
};

}  // namespace flash_ladder
