#include "rules/support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "errors.h"
#include "problem/fields.h"
#include "problem/format_bytes.h"
#include "problem/problem.h"

namespace flash_ladder {
namespace {

// "seq_len 100 is not a multiple of 64, …; use 64 or 128".
std::optional<std::string> why_not_whole_tiles(const Version& version, const Configuration& configuration,
                                               const std::string& name, const char* unit, std::int64_t length,
                                               std::int64_t tile, const Words& words) {
  if (length % tile == 0) return std::nullopt;
  const std::int64_t below = length / tile * tile;
  const std::string use = below > 0 ? fmt::format("{} or {}", below, below + tile) : fmt::format("{}", tile);
  return fmt::format("{} {} is not a multiple of {}, the {} of a tile of {} (configuration {}); use {}{}", name, length,
                     tile, unit, label(version), configuration.name, words.use_size(name), use);
}

// Those of this type, head_dim and head_dim_v; if none has these sizes, all of the type, so that a refusal can say what is
// allowed.
std::vector<const Configuration*> configurations_for(const Version& version, Dtype dtype, std::int64_t head_dim,
                                                     std::int64_t head_dim_v) {
  std::vector<const Configuration*> of_type, found;
  for (const Configuration& configuration : version.configurations) {
    if (configuration.dtype != dtype) continue;
    of_type.push_back(&configuration);
    if (configuration.head_dim == head_dim && configuration.head_dim_v == head_dim_v) found.push_back(&configuration);
  }
  return found.empty() ? of_type : found;
}

bool computes_gradients(const Version& version) { return version.kind == ProblemKind::backward; }

// "--causal is not supported by 16_overlapped_softmax; leave it out, or use …".
std::optional<std::string> why_not_solved(const Version& version, const AttentionProblem& problem, const Words& words) {
  std::optional<std::string> why;
  for_each_field([&](const auto& field) {
    if (why || !field.is_extension() || is_plain(field, problem) || version.solves.*field.solves) return;
    if (problem.packed && field.solves == &Solves::lengths)
      return;  // part of what a version of packed sequences solves
    std::vector<std::string> others;
    for (const Version& other : versions())
      if (other.solves.*field.solves && computes_gradients(other) == computes_gradients(version))
        others.push_back(label(other));
    const std::string without = words.without(field.name);
    why = fmt::format("{} is not supported by {}; {}", words.extension(field.name), label(version),
                      others.empty() ? fmt::format("no version supports it yet: {}", without)
                                     : fmt::format("{}, or use {}", without, fmt::join(others, " or ")));
  });
  return why;
}

// `size` is the field that limits the lengths.
std::optional<std::string> why_no_lengths(const char* field, const std::vector<std::int64_t>& lengths,
                                          const char* size_field, std::int64_t size, std::int64_t batch,
                                          const Words& words) {
  if (lengths.empty()) return std::nullopt;
  if (std::ssize(lengths) != batch)
    return fmt::format("{} has {} number{}, and {} is {}; give one for every batch entry", words.extension(field),
                       lengths.size(), lengths.size() == 1 ? "" : "s", words.size("batch"), batch);
  for (const std::int64_t length : lengths)
    if (length < 0 || length > size)
      return fmt::format("{} {} is out of range; allowed: 0 to {} {}", words.extension(field), length,
                         words.size(size_field), size);
  return std::nullopt;
}

// "head_dim 192 with head_dim_v 64 is not supported by head_dims; allowed: 192 with 128".
std::optional<std::string> why_not_of_sizes(const Version& version, const Configuration& configuration,
                                            const AttentionProblem& problem, const Words& words) {
  const std::int64_t head_dim_v = value_head_dim(problem);
  if (problem.head_dim == configuration.head_dim && head_dim_v == configuration.head_dim_v) return std::nullopt;
  if (problem.head_dim_v == 0)
    return fmt::format("{} {} is not supported by {}; allowed: {}", words.size("head_dim"), problem.head_dim,
                       label(version), fmt::join(head_dims(version, problem.dtype), ", "));
  if (!version.solves.head_dim_v) return std::nullopt;  // why_not_solved() says so
  std::vector<std::string> pairs;
  for (const auto& [one, other] : unequal_head_dims(version, problem.dtype))
    pairs.push_back(fmt::format("{} with {}", one, other));
  return fmt::format("{} {} with {} {} is not supported by {}; allowed: {}", words.size("head_dim"), problem.head_dim,
                     words.extension("head_dim_v"), head_dim_v, label(version), fmt::join(pairs, ", "));
}

std::optional<std::string> why_not_packed(const AttentionProblem& problem, std::int64_t largest, const Words& words) {
  if (!problem.packed) return std::nullopt;
  for (const auto& [field, lengths] : {std::pair{"lengths", &problem.lengths}, {"lengths_kv", &problem.lengths_kv}}) {
    if (lengths->empty())
      return fmt::format("{} needs {}: the length of each sequence", words.extension("packed"), words.extension(field));
    const double total = std::accumulate(lengths->begin(), lengths->end(), 0.0);
    if (total < 1 || total > static_cast<double>(largest))
      return fmt::format("the sum of {} is {}; allowed: 1 to {}", words.extension(field), total, largest);
  }
  return std::nullopt;
}

std::optional<std::string> why_not_appended(const AttentionProblem& problem, const Words& words) {
  const std::string append = words.extension("append"), rotary_dim = words.extension("rotary_dim");
  if (problem.append && (problem.packed || !problem.lengths.empty()))
    return fmt::format("{} and {} exclude each other: every batch entry has a new token; choose one of them", append,
                       words.extension(problem.packed ? "packed" : "lengths"));
  if (problem.append && problem.causal)
    return fmt::format(
        "{} and {} exclude each other: the new key is the last one, which only the last query would see; "
        "choose one of them",
        append, words.extension("causal"));
  if (problem.append && std::ranges::count(problem.lengths_kv, 0) > 0)
    return fmt::format("{} 0 is out of range with {}, because the new key is counted; allowed: 1 and above",
                       words.extension("lengths_kv"), append);
  if (problem.rotary_dim == 0) return std::nullopt;
  if (problem.rotary_dim < 0 || problem.rotary_dim > problem.head_dim || problem.rotary_dim % 16 != 0)
    return fmt::format("{} {} is out of range; allowed: multiples of 16 up to {} {}", rotary_dim, problem.rotary_dim,
                       words.size("head_dim"), problem.head_dim);
  if (!problem.append) return fmt::format("{} needs {}: it rotates a new key", rotary_dim, append);
  return std::nullopt;
}

std::optional<std::string> why_no_fp8_cache(const AttentionProblem& problem, const Words& words) {
  const std::string fp8_cache = words.extension("fp8_cache");
  if (problem.fp8_cache && problem.dtype == Dtype::e4m3)
    return fmt::format("{} is for Q of 16 bits, and with e4m3, K and V have 8 bits in any case; leave it out",
                       fp8_cache);
  if (problem.fp8_cache && problem.append)
    return fmt::format(
        "{} and {} exclude each other: a launch does not round a new token to 8 bits; write it into the "
        "cache first",
        fp8_cache, words.extension("append"));
  return std::nullopt;
}

// Scores of all heads. Beyond this limit, workspace_bytes() could overflow, and Q, K, V and O alone take half a terabyte.
constexpr double kMaxScores = 1ll << 58;

}  // namespace

const Words kFlags{
    .size = [](std::string_view field) { return field == "head_dim" ? std::string(field) : flag_of(field).substr(2); },
    .extension = flag_of,
    .without = [](std::string_view /*field*/) { return std::string("leave it out"); },
    .use_size = [](const std::string& name) { return fmt::format("--{} ", name); },
    .use_config = [](const std::string& name) { return "--config " + name; },
    .use_dtype = [](const Version& version,
                    Dtype /*dtype*/) { return "choose --dtype " + to_string(version.configurations.front().dtype); },
    .without_gpu = "study without one, with --device emulator",
    .other_gpu = "with --device gpu:N",
};

std::string compute_capability_name(int compute_capability) {
  return fmt::format("{}.{}", compute_capability / 10, compute_capability % 10);
}

std::optional<std::string> why_impossible(const AttentionProblem& problem, const Words& words) {
  const std::array<std::pair<std::string, std::int64_t>, 4> sizes{{{words.size("batch"), problem.batch},
                                                                   {words.size("heads"), problem.heads},
                                                                   {words.size("seq_len"), problem.seq_len},
                                                                   {words.size("seq_len_kv"), problem.seq_len_kv}}};
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, size] : sizes)
    if (size < 1 || size > kLargest)
      return fmt::format("{} {} is out of range; allowed: 1 to {}{}", name, size, kLargest,
                         size > kLargest
                             ? fmt::format(" (these Q, K, V and O would take {})", format_bytes(tensor_bytes(problem)))
                             : "");
  for (const auto& [name, size] : {sizes[0], sizes[1]})
    if (size > kMaxGridYZ)
      return fmt::format(
          "{} {} is more than the {} that one launch can have: a CUDA grid is at most {} wide in y and z, where "
          "heads and batch entries go; use {}{} or fewer, in several runs",
          name, size, kMaxGridYZ, kMaxGridYZ, words.use_size(name), kMaxGridYZ);
  if (problem.head_dim_v < 0 || problem.head_dim_v > kLargest)
    return fmt::format("{} {} is out of range; allowed: 1 to {}", words.extension("head_dim_v"), problem.head_dim_v,
                       kLargest);
  if (problem.kv_heads != 0 && (problem.kv_heads < 0 || problem.heads % problem.kv_heads != 0))
    return fmt::format(
        "{} {} does not divide {} {}: every head of K and V serves equally many heads of Q; choose a "
        "divisor",
        words.extension("kv_heads"), problem.kv_heads, words.size("heads"), problem.heads);
  for (const auto& [name, window] :
       {std::pair{"window_left", problem.window_left}, {"window_right", problem.window_right}})
    if (window != kNoWindow && (window < 0 || window > kLargest))
      return fmt::format("{} {} is out of range; allowed: 0 to {}", words.extension(name), window, kLargest);
  if (auto why = why_no_lengths("lengths", problem.lengths, "seq_len", problem.seq_len, problem.batch, words))
    return why;
  if (auto why =
          why_no_lengths("lengths_kv", problem.lengths_kv, "seq_len_kv", problem.seq_len_kv, problem.batch, words))
    return why;
  if (auto why = why_not_packed(problem, kLargest, words)) return why;
  if (auto why = why_no_page_size(problem.page_size, words)) return why;
  if (problem.page_size != 0 && problem.packed)
    return fmt::format("{} and {} exclude each other: pages belong to batch entries; choose one of them",
                       words.extension("page_size"), words.extension("packed"));
  if (auto why = why_not_appended(problem, words)) return why;
  if (auto why = why_no_fp8_cache(problem, words)) return why;
  if (!(problem.softcap >= 0) || !std::isfinite(static_cast<float>(problem.softcap)) ||
      (problem.softcap != 0 && static_cast<float>(problem.softcap) == 0))
    return fmt::format("{} {} is out of range; allowed: finite float32 numbers above 0, or 0 for no cap",
                       words.extension("softcap"), problem.softcap);
  constexpr double kMostDropout = 255.0 / 256;  // so that 1 of 256 weights is kept
  if (!(problem.dropout_p >= 0 && problem.dropout_p <= kMostDropout))
    return fmt::format("{} {} is out of range; allowed: 0 to {}", words.extension("dropout_p"), problem.dropout_p,
                       kMostDropout);
  constexpr std::int64_t kMostOffset = std::numeric_limits<std::uint32_t>::max();
  if (problem.dropout_seed < 0)
    return fmt::format("{} {} is out of range; allowed: 0 and above", words.extension("dropout_seed"),
                       problem.dropout_seed);
  if (problem.dropout_offset < 0 || problem.dropout_offset > kMostOffset)
    return fmt::format("{} {} is out of range; allowed: 0 to {}", words.extension("dropout_offset"),
                       problem.dropout_offset, kMostOffset);
  return std::nullopt;
}

std::optional<std::string> why_no_page_size(std::int64_t size, const Words& words) {
  constexpr std::int64_t kLeast = 16, kMost = 1 << 20;
  if (size == 0 || (size >= kLeast && size <= kMost && std::has_single_bit(static_cast<std::uint64_t>(size))))
    return std::nullopt;
  return fmt::format("{} {} is out of range; allowed: powers of two from {} to {}", words.extension("page_size"), size,
                     kLeast, kMost);
}

std::optional<std::string> why_unsupported(const Version& version, const Configuration& configuration,
                                           const AttentionProblem& problem, const Words& words) {
  if (auto why = why_impossible(problem, words)) return why;
  if (problem.dtype != configuration.dtype)
    return fmt::format("configuration {} of {} computes {}, not {}; choose another --dtype", configuration.name,
                       label(version), to_string(configuration.dtype), to_string(problem.dtype));
  if (auto why = why_not_of_sizes(version, configuration, problem, words)) return why;
  if (auto why = why_not_solved(version, problem, words)) return why;
  if (version.most_queries > 0 && problem.seq_len > version.most_queries)
    return fmt::format("{} {} is not supported by {}, which is made for few queries; allowed: 1 to {}",
                       words.size("seq_len"), problem.seq_len, label(version), version.most_queries);
  if (version.solves.any_length || problem.packed) return std::nullopt;  // packed: seq_len is only an upper limit
  if (auto why = why_not_whole_tiles(version, configuration, words.size("seq_len"), "query rows", problem.seq_len,
                                     configuration.block_q, words))
    return why;
  return why_not_whole_tiles(version, configuration, words.size("seq_len_kv"), "keys", problem.seq_len_kv,
                             configuration.block_kv, words);
}

std::optional<std::string> why_no_device(const DriverState& state, int ordinal, const Words& words) {
  const auto release = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  if (state.driver_version == 0)
    return fmt::format("no NVIDIA driver was found; install one (nvidia-smi then lists the GPUs), or {}",
                       words.without_gpu);
  if (!state.error.empty() && state.driver_version / 1000 < state.runtime_version / 1000)
    return fmt::format(
        "the NVIDIA driver supports CUDA {}, but this program was built with CUDA {}; update the driver, or build "
        "with an older toolkit",
        release(state.driver_version), release(state.runtime_version));
  if (!state.error.empty())
    return fmt::format(
        "the NVIDIA driver reported: {}; check whether nvidia-smi works, and what CUDA_VISIBLE_DEVICES is set to",
        state.error);
  if (state.device_count == 0)
    return "no GPU is visible; check whether nvidia-smi lists one, and what CUDA_VISIBLE_DEVICES is set to";
  if (ordinal < 0 || ordinal >= state.device_count)
    return fmt::format("GPU {} does not exist; allowed: {}", ordinal,
                       state.device_count == 1 ? "0" : fmt::format("0 to {}", state.device_count - 1));
  return std::nullopt;
}

std::optional<std::string> why_unusable(const DeviceInfo& device, const Words& words) {
  if (device.compute_capability >= kMinComputeCapability) return std::nullopt;
  return fmt::format(
      "{} has compute capability {}, but the kernels need {} or newer (Ampere, Ada, Hopper and later); use "
      "another GPU {}",
      device.name, compute_capability_name(device.compute_capability), compute_capability_name(kMinComputeCapability),
      words.other_gpu);
}

std::set<std::int64_t> head_dims(const Version& version, Dtype dtype) {
  std::set<std::int64_t> found;
  for (const Configuration& configuration : version.configurations)
    if (configuration.dtype == dtype && configuration.head_dim_v == configuration.head_dim)
      found.insert(configuration.head_dim);
  return found;
}

std::set<std::pair<std::int64_t, std::int64_t>> unequal_head_dims(const Version& version, Dtype dtype) {
  std::set<std::pair<std::int64_t, std::int64_t>> found;
  for (const Configuration& configuration : version.configurations)
    if (configuration.dtype == dtype && configuration.head_dim_v != configuration.head_dim)
      found.emplace(configuration.head_dim, configuration.head_dim_v);
  return found;
}

bool runs_on(Architecture architecture, int compute_capability) {
  return architecture == Architecture::sm_90a ? compute_capability == kHopperSm
                                              : compute_capability >= kMinComputeCapability;
}

std::optional<std::string> why_not_on_device(const Version& version, const DeviceInfo& device) {
  if (runs_on(version.architecture, device.compute_capability)) return std::nullopt;
  return fmt::format("{} uses Hopper's instructions (sm_90a): it needs a GPU of compute capability 9.0, but {} has {}",
                     label(version), device.name, compute_capability_name(device.compute_capability));
}

std::optional<std::string> why_unsupported_by_device(const Version& version, const Configuration& configuration,
                                                     const DeviceInfo& device, const Words& words) {
  if (auto why = why_not_on_device(version, device)) return why;
  if (configuration.smem_bytes <= device.smem_per_cta_bytes) return std::nullopt;
  const Configuration* other = preferred_configuration(version, configuration.dtype, configuration.head_dim,
                                                       configuration.head_dim_v, device.smem_per_cta_bytes);
  return fmt::format("configuration {} of {} needs {} bytes of shared memory per CTA, but {} has {}; {}",
                     configuration.name, label(version), configuration.smem_bytes, device.name,
                     device.smem_per_cta_bytes,
                     other != nullptr ? "use " + words.use_config(other->name) : "it needs another GPU");
}

const Configuration* preferred_configuration(const Version& version, Dtype dtype, std::int64_t head_dim,
                                             std::int64_t head_dim_v, int smem_per_cta_bytes) {
  for (const Configuration* configuration : configurations_for(version, dtype, head_dim, head_dim_v))
    if (configuration->smem_bytes <= smem_per_cta_bytes) return configuration;
  return nullptr;
}

FoundConfiguration find_configuration(const Version& version, const AttentionProblem& problem, const std::string& name,
                                      const DeviceInfo& device, const Words& words) {
  const Dtype dtype = problem.dtype;
  const std::int64_t head_dim = problem.head_dim, head_dim_v = value_head_dim(problem);
  const Configuration* first = nullptr;
  std::vector<std::string> known;
  for (const Configuration* one : configurations_for(version, dtype, head_dim, head_dim_v)) {
    const Configuration& configuration = *one;
    if (!name.empty() && configuration.name == name) return {&configuration, ""};
    if (first == nullptr) first = &configuration;
    known.push_back(configuration.name);
  }
  if (first == nullptr)
    return {nullptr, fmt::format("{} has no configuration for {}; {}", label(version), to_string(dtype),
                                 words.use_dtype(version, dtype))};
  if (!name.empty())
    return {nullptr, fmt::format("{} has no configuration '{}' for {}; it has {}", label(version), name,
                                 to_string(dtype), fmt::join(known, ", "))};
  const Configuration* preferred =
      preferred_configuration(version, dtype, head_dim, head_dim_v, device.smem_per_cta_bytes);
  return {preferred != nullptr ? preferred : first, ""};
}

const Configuration& select_configuration(const Version& version, const AttentionProblem& problem,
                                          const std::string& name, const DeviceInfo& device, const Words& words) {
  const FoundConfiguration found = find_configuration(version, problem, name, device, words);
  if (found.configuration == nullptr) throw UsageError(found.why_none);
  if (name.empty())
    if (const auto why = why_unsupported_by_device(version, *found.configuration, device, words))
      throw UsageError(*why);
  return *found.configuration;
}

double memory_needed_bytes(const Configuration& configuration, const AttentionProblem& problem, std::int64_t l2_bytes) {
  const double scores = 1.0 * problem.batch * problem.heads * problem.seq_len * problem.seq_len_kv;
  const double workspace = scores <= kMaxScores ? static_cast<double>(configuration.workspace_bytes(problem)) : 0.0;
  constexpr double kGuards = 5 * 2.0 * kGuardBytes;  // Q, K, V, O and the workspace have two guard bands each
  return tensor_bytes(problem) + workspace + kGuards + flush_bytes(l2_bytes);
}

std::optional<std::string> why_no_memory(const Version& version, const Configuration& configuration,
                                         const AttentionProblem& problem, const DeviceInfo& device) {
  const bool has_gradients = version.kind == ProblemKind::backward;
  const double log_sum_exp = version.solves.log_sum_exp || has_gradients
                                 ? 4.0 * problem.batch * problem.heads * problem.seq_len + 2 * kGuardBytes
                                 : 0.0;
  // dQ, dK, dV and dO are as large as Q, K, V and O.
  const double gradients = has_gradients ? tensor_bytes(problem) + 4 * 2.0 * kGuardBytes : 0.0;
  const double needed = memory_needed_bytes(configuration, problem, device.l2_bytes) + log_sum_exp + gradients;
  if (needed <= static_cast<double>(device.memory_free_bytes)) return std::nullopt;
  return fmt::format(
      "{} needs {} of GPU memory for this problem, but {} of {} are free on {}; use a smaller --batch, --heads or "
      "--seq-len",
      label(version), format_bytes(needed), format_bytes(device.memory_free_bytes),
      format_bytes(device.memory_total_bytes), device.name);
}

std::int64_t flush_bytes(std::int64_t l2_bytes) { return l2_bytes > 0 ? 2 * l2_bytes : std::int64_t{64} << 20; }

}  // namespace flash_ladder
