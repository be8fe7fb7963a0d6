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
  int kv_heads = 0;                 // of K and V: always their number, and heads is a multiple of it
  int window = -1;                  // less than 0: none
  const int* lengths = nullptr;     // [batch], in device memory: rows of Q and O that count; nullptr: all
  const int* lengths_kv = nullptr;  // [batch], in device memory: the same of K and V
  // [3][batch][heads], in device memory: what an element of Q, K and V, of the head that this head of Q reads, is multiplied by;
  // nullptr where they are not e4m3.
  const float* scales = nullptr;
};

}  // namespace flash_ladder
