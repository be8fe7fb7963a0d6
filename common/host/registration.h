// How a kernel file describes its version: one statement at its end adds it to the list of all versions (host/versions.h).
//
// Nothing in common/host/ reaches a kernel, so it is not part of a version's code hash (harness/source/kernel_source.h). Texts
// are const char*: nvcc parses a header per architecture and for the host, and <string> took a quarter of that time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <typeinfo>
#include <vector>

#include "host/extended_args.h"
#include "host/problem.h"
#include "host/traits_limits.h"

// From cuda_fp16.h and cuda_bf16.h, which take long to parse; code that only reads the list of versions does without them.
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;

namespace flash_ladder {

/// How a configuration is launched: enqueues the kernels on the stream and returns the result of cudaGetLastError,
/// without waiting for them. Versions of the plain problem take AttentionArgs, extensions ExtendedArgs.
class Launch {
 public:
  using Plain = cudaError_t (*)(const AttentionArgs&, cudaStream_t);
  using Extended = cudaError_t (*)(const ExtendedArgs&, cudaStream_t);

  Launch() = default;  // of a configuration that is never launched
  Launch(Plain function) : plain_(function) {}
  Launch(Extended function) : extended_(function) {}

  cudaError_t operator()(const ExtendedArgs& args, cudaStream_t stream) const {
    return extended_ != nullptr ? extended_(args, stream) : plain_(args, stream);
  }

 private:
  Plain plain_ = nullptr;
  Extended extended_ = nullptr;
};

/// One way to launch a version: a tile and an element type. Text is const char* in a kernel file, and std::string in the list of
/// versions.
template <typename Text>
struct BasicConfiguration {
  Text name;  // the same for both types, e.g. "64x64"
  Dtype dtype;
  int block_q;     // query rows per CTA: seq_len must be a multiple, unless the version solves any length
  int block_kv;    // keys per K/V tile: the same holds for seq_len_kv
  int head_dim;    // the only head_dim that it supports
  int head_dim_v;  // and the only size of V's and O's rows: head_dim, unless the version solves Solves::head_dim_v
  int num_warps;   // per CTA
  int stages;      // buffers for K/V tiles
  int step_kv;     // keys per step of S, softmax and P V: block_kv, or a part of it
  int smem_bytes;  // dynamic shared memory per CTA
  // std::type_info::name() of the traits. It is part of the name of each of the configuration's __global__ functions,
  // which is how they are found in a cubin.
  Text traits;
  // Device memory that a launch needs in addition to Q, K, V and O, in bytes.
  std::size_t (*workspace_bytes)(const AttentionProblem&);
  Launch launch;
  // Whether a warp owns rows of S and O as accumulators of mma.m16n8k16 (common/ptx.h): then its Traits have kMmaM.
  bool fragments = false;
};

/// Which GPUs run a version's code.
enum class Architecture {
  sm_80,  // the instructions of Ampere: compute capability 8.0 and newer
  sm_90a,  // Hopper's own: compute capability 9.0, nothing older or newer (CUDA C++ Programming Guide, "Architecture-Specific
           // Features")
};

/// What a version solves beyond the plain problem. Other problems are refused, with a message that names the field.
struct Solves {
  bool head_dim_v = false;   // those AttentionProblem::head_dim_v for which it has a configuration
  bool causal = false;       // AttentionProblem::causal, true as well as false
  bool any_length = false;   // seq_len and seq_len_kv that are not multiples of the tiles
  bool kv_heads = false;     // any AttentionProblem::kv_heads
  bool window = false;       // any AttentionProblem::window_left and window_right
  bool lengths = false;      // any AttentionProblem::lengths and lengths_kv, multiples of a tile or not
  bool packed = false;       // AttentionProblem::packed, with any lengths
  bool paged = false;        // any AttentionProblem::page_size
  bool append = false;       // AttentionProblem::append
  bool rotary = false;       // any AttentionProblem::rotary_dim and rotary_interleaved
  bool fp8_cache = false;    // AttentionProblem::fp8_cache, true as well as false
  bool scores = false;       // any AttentionProblem::softcap, alibi and sinks
  bool dropout = false;      // any AttentionProblem::dropout_p, dropout_seed and dropout_offset
  bool log_sum_exp = false;  // not a problem, but an output: ExtendedArgs::log_sum_exp
};

/// What a kernel file states about its version. The number and the name come from the file's name.
struct Description {
  const char* source;        // __FILE__
  const char* extends = "";  // of an extension: what it is compared with, as --kernel names it ("16", "causal")
  Architecture architecture = Architecture::sm_80;
  int most_queries = 0;  // the longest seq_len that it solves; 0: any
  // flash_ladder.decode() prefers an earlier version for longer caches, and for caches of several lengths; 0: for none.
  int preferred_up_to_keys = 0;
  Solves solves = {};
  // In order of preference: of those with the right type, the first that fits the device is launched.
  std::vector<BasicConfiguration<const char*>> configurations;
};

/// Adds a version to versions(), or completes it if it was announced; meant to be a global variable of a kernel file. Visible,
/// because a kernel that is loaded finds it in the program that loads it.
class __attribute__((visibility("default"))) Registration {
 public:
  /// Throws std::invalid_argument if the file is not a kernel's, and for a second version with the same number or name.
  explicit Registration(Description description);
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
template <>
constexpr Dtype dtype_of<__nv_fp8_e4m3>() {
  return Dtype::e4m3;
}

inline std::size_t no_workspace(const AttentionProblem&) { return 0; }

/// What Traits say about steps within a K/V tile and about buffers; most versions have one of each and need not say so.
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

template <typename Traits>
constexpr bool has_fragments() {
  return requires { Traits::kMmaM; };
}

template <typename Traits>
constexpr int head_dim_v_of() {
  if constexpr (requires { Traits::kHeadDimV; }) return Traits::kHeadDimV;
  return Traits::kHeadDim;
}

/// The configuration that a version's Traits describe.
template <typename Traits>
BasicConfiguration<const char*> configuration(const char* name, Launch launch,
                                              std::size_t (*workspace_bytes)(const AttentionProblem&) = no_workspace) {
  check_limits<Traits, step_kv_of<Traits>(), head_dim_v_of<Traits>()>();
  return {.name = name,
          .dtype = dtype_of<typename Traits::Element>(),
          .block_q = Traits::kBlockQ,
          .block_kv = Traits::kBlockKV,
          .head_dim = Traits::kHeadDim,
          .head_dim_v = head_dim_v_of<Traits>(),
          .num_warps = Traits::kNumWarps,
          .stages = stages_of<Traits>(),
          .step_kv = step_kv_of<Traits>(),
          .smem_bytes = Traits::kSmemBytes,
          .traits = typeid(Traits).name(),
          .workspace_bytes = workspace_bytes,
          .launch = launch,
          .fragments = has_fragments<Traits>()};
}

}  // namespace flash_ladder
