// The list of all versions. A kernel file ends with one statement that adds its version here; the CLI, the tests, the
// recorder, the plots and the docs read the list. Adding a version is adding a file.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "attention.h"
#include "host/traits_limits.h"

namespace flash_ladder {

/// One way to launch a version: a tile and an element type.
struct Configuration {
  std::string name;  // the same for both types, e.g. "64x64"
  Dtype dtype;
  int block_q;     // query rows per CTA: seq_len must be a multiple
  int block_kv;    // keys per K/V tile: seq_len_kv must be a multiple
  int head_dim;    // the only head_dim that it supports
  int num_warps;   // per CTA
  int stages;      // buffers for K/V tiles
  int step_kv;     // keys per step of S, softmax and P V: block_kv, or a part of it
  int smem_bytes;  // dynamic shared memory per CTA
  // std::type_info::name() of the traits. It is part of the name of each of the configuration's __global__ functions,
  // which is how they are found in a cubin.
  std::string traits;
  // Device memory that a launch needs beside Q, K, V and O, in bytes.
  std::size_t (*workspace_bytes)(const AttentionProblem&);
  // Enqueues the kernels on the stream and returns what cudaGetLastError says; does not wait for them.
  cudaError_t (*launch)(const AttentionArgs&, cudaStream_t);
};

/// One rung of the ladder.
struct Version {
  int number;          // 6
  std::string name;    // "swizzle"
  std::string source;  // its file
  // In order of preference: of those with the right type, the first that fits the device is launched.
  std::vector<Configuration> configurations;
};

/// All registered versions, in order of number.
const std::vector<Version>& versions();

/// Adds a version to versions(); made to be a global variable of a kernel file.
class Registration {
 public:
  explicit Registration(Version version);
};

template <typename Element>
constexpr Dtype dtype_of();
template <>
constexpr Dtype dtype_of<__half>() {
  return Dtype::fp16;
}
template <>
constexpr Dtype dtype_of<__nv_bfloat16>() {
  return Dtype::bf16;
}

inline std::size_t no_workspace(const AttentionProblem&) { return 0; }

/// What Traits say about steps inside a K/V tile and about buffers; most versions have one of each and need not say so.
template <typename Traits>
constexpr int stages_of() {
  if constexpr (requires { Traits::kStages; }) return Traits::kStages;
  return 1;
}
template <typename Traits>
constexpr int step_kv_of() {
  if constexpr (requires { Traits::kStepKV; }) return Traits::kStepKV;
  return Traits::kBlockKV;
}

/// The configuration that a version's Traits describe.
template <typename Traits>
Configuration configuration(std::string name, cudaError_t (*launch)(const AttentionArgs&, cudaStream_t),
                            std::size_t (*workspace_bytes)(const AttentionProblem&) = no_workspace) {
  check_limits<Traits, step_kv_of<Traits>()>();
  return {.name = std::move(name),
          .dtype = dtype_of<typename Traits::Element>(),
          .block_q = Traits::kBlockQ,
          .block_kv = Traits::kBlockKV,
          .head_dim = Traits::kHeadDim,
          .num_warps = Traits::kNumWarps,
          .stages = stages_of<Traits>(),
          .step_kv = step_kv_of<Traits>(),
          .smem_bytes = Traits::kSmemBytes,
          .traits = typeid(Traits).name(),
          .workspace_bytes = workspace_bytes,
          .launch = launch};
}

}  // namespace flash_ladder
