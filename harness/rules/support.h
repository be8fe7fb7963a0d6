// Decides, before anything is launched, what a version of the ladder, a GPU and the two together can run. These are
// pure functions: they call no CUDA, so the harness uses them to skip versions and the tests need no GPU.
//
// Every function returns nullopt for "yes", and otherwise one message that says what is wrong, with which value, what
// is allowed, and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "host/sm_limits.h"
#include "host/versions.h"
#include "rules/device_info.h"

namespace flash_ladder {

/// Size of the guard band on either side of each buffer of a run, in bytes: more than a tile of 128 rows of 16 heads.
constexpr std::int64_t kGuardBytes = std::int64_t{1} << 20;

/// The compute capability whose instructions the ladder uses.
constexpr int kMinComputeCapability = kSmLimits.front().compute_capability;

/// The caller's words for messages: what the fields of a problem are called, and how to advise another value.
struct Words {
  // The caller's name of a size, given that of the field: "seq_len".
  std::string (*size)(std::string_view field);
  // The same for a field that only extensions solve: "kv_heads".
  std::string (*extension)(std::string_view field);
  // What to do instead of using a field that only extensions solve.
  std::string (*without)(std::string_view field);
  // Given the caller's name of a size, the text before the advised value.
  std::string (*use_size)(const std::string& name);
  std::string (*use_config)(const std::string& name);
  // What to do if the version computes no elements of this type.
  std::string (*use_dtype)(const Version& version, Dtype dtype);
  const char* without_gpu;  // what to do on a machine without a GPU
  const char* other_gpu;    // how to choose another GPU
};

/// The words of the command line: its flags.
extern const Words kFlags;

/// "8.0" for 80, "12.1" for 121.
std::string compute_capability_name(int compute_capability);

/// Whether the problem is valid at all, for any version: sizes of at least 1 that fit the 32-bit members of AttentionArgs,
/// grids that CUDA can launch, equal groups of heads, and a length for every batch entry that fits the tensors.
std::optional<std::string> why_impossible(const AttentionProblem& problem, const Words& words = kFlags);

/// A part of it: whether pages can have so many keys. 0 stands for no pages.
std::optional<std::string> why_no_page_size(std::int64_t size, const Words& words = kFlags);

/// Whether the configuration computes the problem: why_impossible(), the problem's type, head_dim and tiles, and
/// whether the version solves the fields that the problem has beyond the plain one.
std::optional<std::string> why_unsupported(const Version& version, const Configuration& configuration,
                                           const AttentionProblem& problem, const Words& words = kFlags);

/// The values of head_dim that the version computes in this type with rows of V of the same size, in order.
std::set<std::int64_t> head_dims(const Version& version, Dtype dtype);
/// The values of head_dim and of another head_dim_v.
std::set<std::pair<std::int64_t, std::int64_t>> unequal_head_dims(const Version& version, Dtype dtype);

/// What the CUDA runtime reports before it accesses a GPU.
struct DriverState {
  int driver_version = 0;   // the CUDA version that the driver supports, 13000 for 13.0; 0: there is no driver
  int runtime_version = 0;  // of the CUDA runtime in this program
  int device_count = 0;
  std::string error;  // the error of the call that counts the GPUs; empty if it succeeded
};

/// Whether there is a GPU with this ordinal.
std::optional<std::string> why_no_device(const DriverState& state, int ordinal, const Words& words = kFlags);

/// Whether the ladder runs on this GPU at all: compute capability 8.0 or newer.
std::optional<std::string> why_unusable(const DeviceInfo& device, const Words& words = kFlags);

/// Whether a GPU of this compute capability has the instructions of an architecture.
bool runs_on(Architecture architecture, int compute_capability);

/// Whether this GPU runs the version's code, whatever the problem.
std::optional<std::string> why_not_on_device(const Version& version, const DeviceInfo& device);

/// Whether the configuration's shared memory fits a CTA of this GPU.
std::optional<std::string> why_unsupported_by_device(const Version& version, const Configuration& configuration,
                                                     const DeviceInfo& device, const Words& words = kFlags);

/// The configuration that the version runs on a GPU whose CTAs can have this much shared memory: the first of the right
/// type, head_dim and head_dim_v that fits, or of any sizes if none has these; nullptr if none fits.
const Configuration* preferred_configuration(const Version& version, Dtype dtype, std::int64_t head_dim,
                                             std::int64_t head_dim_v, int smem_per_cta_bytes);

/// The configuration of this name with the problem's type and head_dim, or with an empty name the preferred one; if none fits the device, the first
/// of the type, so that the message can say what it would need. nullptr and the reason if there is no such
/// configuration at all.
struct FoundConfiguration {
  const Configuration* configuration = nullptr;
  std::string why_none;
};
FoundConfiguration find_configuration(const Version& version, const AttentionProblem& problem, const std::string& name,
                                      const DeviceInfo& device, const Words& words = kFlags);

/// The same for callers that are about to launch it. Throws UsageError if there is no such configuration, or none fits.
const Configuration& select_configuration(const Version& version, const AttentionProblem& problem,
                                          const std::string& name, const DeviceInfo& device,
                                          const Words& words = kFlags);

/// Device memory that a run needs: Q, K, V, O and the version's workspace, each between guard bands, and the buffer that
/// the benchmark writes to flush an L2 of `l2_bytes`. A double, because the sizes that a user may type overflow 64 bits.
double memory_needed_bytes(const Configuration& configuration, const AttentionProblem& problem, std::int64_t l2_bytes);

/// Whether the problem fits in the free memory of the GPU, with the log-sum-exp and the gradients of a version that has them.
std::optional<std::string> why_no_memory(const Version& version, const Configuration& configuration,
                                         const AttentionProblem& problem, const DeviceInfo& device);

/// Bytes to write between two timed launches so that no data of the first remain in the L2: twice its size, or 64 MiB
/// if that is not known.
std::int64_t flush_bytes(std::int64_t l2_bytes);

}  // namespace flash_ladder
