#include "python/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "host/backward.h"
#include "problem/fields.h"
#include "problem/format_bytes.h"
#include "problem/kind.h"
#include "rules/support.h"
#include "rules/version_name.h"
#include "worker/cuda_check.h"
#include "worker/cuda_objects.h"
#include "worker/gpu.h"
#include "worker/inputs.h"
#include "worker/observation.h"

namespace flash_ladder::python {
namespace {

/// Restores the thread's current GPU at the end, whichever GPU is current by then.
class CurrentDevice {
 public:
  CurrentDevice() {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = kNone;  // no driver or no GPU: other code reports that better
  }
  ~CurrentDevice() {
    int now = before_;
    if (before_ != kNone && cudaGetDevice(&now) == cudaSuccess && now != before_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  void set(int ordinal) const {
    if (before_ != ordinal) check(cudaSetDevice(ordinal), fmt::format("switching to GPU {}", ordinal));
  }

 private:
  static constexpr int kNone = -1;
  int before_ = kNone;
};

/// Device memory that is allocated and freed in stream order, so that nothing has to wait.
class Workspace {
 public:
  Workspace(const Version& version, std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    if (bytes == 0) return;
    const cudaError_t error = cudaMallocAsync(&data_, bytes, stream);
    if (error == cudaErrorMemoryAllocation) {
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "querying the free GPU memory");
      throw OutOfMemory(fmt::format(
          "{} needs {} of GPU memory for its workspace, but {} of {} are free; use a smaller problem, or a kernel that "
          "needs none (from 02 on)",
          label(version), format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(free)),
          format_bytes(static_cast<double>(total))));
    }
    check(error, fmt::format("allocating the workspace of {}", label(version)));
  }
  ~Workspace() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// A graph would copy numbers from memory of the host that is free by the time of its launch.
void refuse_in_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "querying whether the stream is captured");
  if (status != cudaStreamCaptureStatusNone)
    throw UsageError(
        "the lengths of sequences are numbers of Python, which a CUDA graph cannot keep; give decode() an array on the "
        "GPU, or call outside of the capture");
}

/// Lengths of sequences, or their sums, in such memory.
class DeviceLengths {
 public:
  DeviceLengths(const Version& version, const std::vector<std::int64_t>& lengths, cudaStream_t stream)
      : memory_(version, lengths.size() * sizeof(int), stream) {
    if (lengths.empty()) return;
    refuse_in_capture(stream);
    const std::vector<int> numbers(lengths.begin(), lengths.end());  // CUDA has read them by the time the call returns
    check(cudaMemcpyAsync(memory_.data(), numbers.data(), numbers.size() * sizeof(int), cudaMemcpyHostToDevice, stream),
          "copying the lengths to the GPU");
  }

  const int* data() const { return static_cast<const int*>(memory_.data()); }

 private:
  Workspace memory_;
};

/// Lets the virtual GPU use the arrays in place, with exact bounds.
class MappedArrays {
 public:
  explicit MappedArrays(const Arrays& arrays) {
    // Slices of one array, such as a packed q, k and v, interleave: they are mapped as one.
    std::vector<Span> spans;
    arrays.for_each([&](const Array& array) { spans.push_back(span_of(array)); });
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    std::vector<Span> joined;
    for (const Span& span : spans) {
      if (!joined.empty() && span.begin < joined.back().end)
        joined.back().end = std::max(joined.back().end, span.end);
      else
        joined.push_back(span);
    }
    for (const Span& span : joined) {
      auto* const data = reinterpret_cast<void*>(span.begin);
      check(cudaHostRegister(data, span.end - span.begin, cudaHostRegisterDefault), "mapping an array");
      mapped_.push_back(data);
    }
  }
  ~MappedArrays() {
    for (void* data : mapped_) cudaHostUnregister(data);
  }
  MappedArrays(const MappedArrays&) = delete;
  MappedArrays& operator=(const MappedArrays&) = delete;

 private:
  std::vector<void*> mapped_;
};

/// The settings in which one call differs from programs on the virtual GPU; they apply to the whole process.
class VirtualGpuSettings {
 public:
  VirtualGpuSettings(const std::atomic<bool>& interrupt, bool explains_errors) {
    end_launches_when(&interrupt);
    let_device_explain_errors(explains_errors);
  }
  ~VirtualGpuSettings() {
    end_launches_when(nullptr);
    let_device_explain_errors(true);
  }
  VirtualGpuSettings(const VirtualGpuSettings&) = delete;
  VirtualGpuSettings& operator=(const VirtualGpuSettings&) = delete;
};

// What this process has queried or launched before. Several threads may call at the same time.
std::mutex known_mutex;

const DeviceInfo& device_of_arrays(int ordinal) {
  static std::map<int, DeviceInfo> known;
  const std::lock_guard lock(known_mutex);
  const auto found = known.find(ordinal);
  if (found != known.end()) return found->second;
  try {
    return known.emplace(ordinal, device_info(ordinal)).first->second;
  } catch (const UnavailableError& error) {
    throw UnavailableError(fmt::format("q is on GPU {}: {}", ordinal, error.what()));
  }
}

/// Whether this is the first launch of the configuration on the GPU, which loads its code.
bool first_launch(int ordinal, const Configuration& configuration) {
  static std::set<std::pair<int, const Configuration*>> launched;
  const std::lock_guard lock(known_mutex);
  return launched.emplace(ordinal, &configuration).second;
}

const Configuration& configuration_of(const Version& version, const AttentionProblem& problem, const std::string& name,
                                      const DeviceInfo& device) {
  try {
    return select_configuration(version, problem, name, device, kArguments);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", name.empty() ? "kernel" : "config", error.what()));
  }
}

float scale_of(const Call& call, const AttentionProblem& problem) {
  if (!call.softmax_scale) return softmax_scale(problem.head_dim);
  const auto scale = static_cast<float>(*call.softmax_scale);
  if (!std::isfinite(scale) || scale <= 0)
    throw UsageError(fmt::format("softmax_scale is {}; allowed: finite float32 numbers above 0", *call.softmax_scale));
  return scale;
}

// The first array with a stride below 0, and that stride: "q has stride -384 in dimension 1".
std::optional<std::string> goes_back(const Arrays& arrays) {
  std::vector<const Array*> all = {&arrays.q, &arrays.k, &arrays.v, &arrays.out};
  if (arrays.dout) all.push_back(&*arrays.dout);
  for (const Array* array : all)
    for (std::size_t i = 0; i < array->shape.size(); ++i)
      if (array->shape[i] > 1 && array->strides[i] < 0)
        return fmt::format("{} has stride {} in dimension {}", array->name, array->strides[i], i);
  return std::nullopt;
}

// Only a version's launch knows which arrays it copies with TMA, so its result decides: everything else that would make
// an argument of it invalid has already been refused.
void refuse_if_tma_goes_back(cudaError_t error, const Version& version, Dtype dtype, const Arrays& arrays) {
  if (error != cudaErrorInvalidValue || version.architecture == Architecture::sm_80) return;
  if (const auto back = goes_back(arrays))
    throw UsageError(fmt::format(
        "{}, but TMA, with which {} copies, does not support strides below 0; give a copy{}", *back, label(version),
        dtype == Dtype::e4m3
            ? ""
            : fmt::format(", or a kernel that needs no Hopper GPU: {}", label(version_of("", nullptr)))));
}

void refuse_if(const std::optional<std::string>& why) {
  if (why) throw UsageError(*why);
}

std::vector<std::string> take_findings() {
  Result result;
  add_findings(result);
  std::vector<std::string> texts;
  for (const Finding& finding : result.findings) texts.push_back(finding.text);
  return texts;
}

// How many versions it is built on, up to one of the ladder.
int depth(const Version& version) { return version.is_extension() ? 1 + depth(select_version(version.extends)) : 0; }

int num_solved(const Version& version) {
  const auto solved = std::ranges::count_if(kSolves, [&](const auto& one) { return version.solves.*one.second; });
  // Another head size of V has configurations of its own, which cost the others nothing.
  return static_cast<int>(solved) - version.solves.head_dim_v;
}

// The fields that the problem has beyond the plain one, and the log-sum-exp, as the caller names them.
std::vector<std::string> asked_fields(const AttentionProblem& problem, bool log_sum_exp) {
  std::vector<std::string> names;
  for_each_field([&](const auto& field) {
    const std::string name = kArguments.extension(field.name);
    if (field.solves == &Solves::lengths && (problem.packed || name != "lengths"))
      return;  // one argument for the caller
    if (field.is_extension() && !is_plain(field, problem) && std::ranges::find(names, name) == names.end())
      names.push_back(name);
  });
  if (log_sum_exp) names.emplace_back("return_lse=True");
  return names;
}

std::optional<std::string> why_no_log_sum_exp(const Version& version, bool log_sum_exp) {
  if (!log_sum_exp || version.solves.log_sum_exp) return std::nullopt;
  std::vector<std::string> others;
  for (const Version& other : versions())
    if (other.solves.log_sum_exp) others.push_back(label(other));
  return fmt::format("return_lse=True is not supported by {}; leave it out, or use {}", label(version),
                     fmt::join(others, " or "));
}

// For which sizes a version computes gradients, or O, in this type: a head_dim of q, k and v, or one of q and k and another of v.
struct HeadDims {
  std::set<std::int64_t> equal;
  std::set<std::pair<std::int64_t, std::int64_t>> unequal;
};
HeadDims head_dims_on(const DeviceInfo& device, Dtype dtype, bool of_gradients) {
  HeadDims found;
  for (const Version& version : versions()) {
    if ((version.kind == ProblemKind::backward) != of_gradients || why_not_on_device(version, device)) continue;
    found.equal.merge(head_dims(version, dtype));
    found.unequal.merge(unequal_head_dims(version, dtype));
  }
  return found;
}

void refuse_head_dims(const AttentionProblem& problem, const DeviceInfo& device, bool of_gradients = false) {
  const auto [equal, unequal] = head_dims_on(device, problem.dtype, of_gradients);
  if (problem.head_dim_v == 0 && !equal.contains(problem.head_dim))
    throw UsageError(
        fmt::format("{} is {}; allowed: {}", kArguments.size("head_dim"), problem.head_dim, fmt::join(equal, ", ")));
  if (problem.head_dim_v == 0 || unequal.contains({problem.head_dim, problem.head_dim_v})) return;
  std::vector<std::string> pairs{"equal sizes"};
  for (const auto& [one, other] : unequal) pairs.push_back(fmt::format("{} with {}", one, other));
  throw UsageError(fmt::format("{} is {}, and {} is {}; allowed: {}", kArguments.size("head_dim"), problem.head_dim,
                               kArguments.extension("head_dim_v"), problem.head_dim_v, fmt::join(pairs, ", ")));
}

bool solves(const Version& version, const AttentionProblem& problem, const DeviceInfo& device) {
  const Configuration* configuration = preferred_configuration(version, problem.dtype, problem.head_dim,
                                                               value_head_dim(problem), device.smem_per_cta_bytes);
  return configuration != nullptr && !why_unsupported(version, *configuration, problem, kArguments);
}

// The newest version of the ladder that the device runs, if it solves the problem; otherwise an extension that does, on a
// Hopper GPU preferably one of Hopper's. With the causal mask, an extension that solves fewer other fields is faster, although not
// for all problems (docs/results.md). Of those that solve the same, the last one is chosen.
const Version& fastest_version(const AttentionProblem& problem, bool log_sum_exp, const DeviceInfo& device,
                               bool without_tma) {
  const Version& newest = version_of("", without_tma ? nullptr : &device);
  const auto computes_all = [&](const Version& version) {
    return solves(version, problem, device) && !why_no_log_sum_exp(version, log_sum_exp);
  };
  if (computes_all(newest) || find_configuration(newest, problem, "", device, kArguments).configuration == nullptr)
    return newest;
  const Version* best = nullptr;
  const auto rank = [](const Version& version) {
    return std::tuple(version.architecture == Architecture::sm_90a, -num_solved(version), depth(version));
  };
  for (const Version& version : versions())
    if (version.is_extension() && version.kind != ProblemKind::backward && !why_not_on_device(version, device) &&
        computes_all(version) && (!without_tma || version.architecture == Architecture::sm_80) &&
        (best == nullptr || rank(*best) < rank(version)))
      best = &version;
  if (best != nullptr) return *best;
  if (problem.head_dim_v != 0) refuse_head_dims(problem, device);
  const std::vector<std::string> fields = asked_fields(problem, log_sum_exp);
  if (fields.size() > 1)
    throw UsageError(fmt::format("no version that {} runs solves {} together; leave one out", device.name,
                                 fmt::join(fields, " and ")));
  refuse_head_dims(problem, device);
  return newest;  // of which the caller says what it does not solve
}

// Whether a version that is fast for some caches only is fast for these. If an array has their lengths, they may be of any length.
bool is_preferred(const Version& version, const AttentionProblem& problem, bool lengths_in_array) {
  return version.preferred_up_to_keys == 0 ||
         (!lengths_in_array && problem.lengths_kv.empty() && problem.seq_len_kv <= version.preferred_up_to_keys);
}

// The newest version of the call's kind that the device runs, and that solves the problem and is preferred for it. If only extensions
// do, on a Hopper GPU preferably one of Hopper's, and of these the one that solves the fewest other fields; if none does, the newest
// version, of which the caller says what it does not solve. A version for gradients that adds with atomics is faster than a
// deterministic one, which is chosen if it is asked for, or if no other version solves the problem.
const Version& newest_for(const Call& call, const AttentionProblem& problem, const Arrays& arrays,
                          const DeviceInfo& device) {
  const bool without_tma = goes_back(arrays).has_value();
  const auto rank = [](const Version& version) {
    return std::tuple(!version.is_extension(), version.architecture == Architecture::sm_90a, -num_solved(version));
  };
  const Version *newest = nullptr, *solver = nullptr;
  const Version* other_solver = nullptr;  // deterministic if the call need not be, and not if it must
  for (const Version& version : versions()) {
    if (version.kind != call.kind || why_not_on_device(version, device)) continue;
    if (without_tma && version.architecture != Architecture::sm_80) continue;
    if (!is_preferred(version, problem, arrays.cache_lengths.has_value())) continue;
    const bool is_solver = solves(version, problem, device);
    if (call.kind == ProblemKind::backward && version.deterministic != call.deterministic) {
      if (is_solver) other_solver = &version;
      continue;
    }
    if (!version.is_extension()) newest = &version;
    if (is_solver && (solver == nullptr || !version.is_extension() || rank(*solver) < rank(version))) solver = &version;
  }
  if (solver != nullptr) return *solver;
  if (!call.deterministic && other_solver != nullptr) return *other_solver;
  std::vector<std::string> fields = asked_fields(problem, false);
  if (call.kind == ProblemKind::backward) {
    refuse_head_dims(problem, device, /*of_gradients=*/true);
    if (newest != nullptr && problem.head_dim_v == 0 && !head_dims(*newest, problem.dtype).contains(problem.head_dim))
      fields.push_back(fmt::format("{} {}", kArguments.size("head_dim"), problem.head_dim));
  }
  if (call.deterministic && other_solver != nullptr && !fields.empty())
    throw UsageError(
        fmt::format("no deterministic version supports {}; leave deterministic out", fmt::join(fields, " and ")));
  if (call.kind == ProblemKind::backward && fields.size() > 1)
    throw UsageError(fmt::format("no version that {} runs solves {} together in the backward pass; leave one out",
                                 device.name, fmt::join(fields, " and ")));
  if (newest == nullptr)
    throw UsageError(fmt::format("there is no {} version that {} runs", describe(call.kind).name, device.name));
  return *newest;
}

/// The versions chosen for recent calls. A model makes the same call in each layer and each step, and a choice compares
/// all versions, which takes longer than many launches do. Several threads may call at the same time.
class RecentChoices {
 public:
  struct Question {
    ProblemKind kind;
    bool deterministic, log_sum_exp, without_tma, lengths_in_array;
    int device;
    AttentionProblem problem;

    bool operator==(const Question&) const = default;
  };

  /// The answer of choose(), which may throw, or an earlier answer to the same question.
  const Version& version_for(Question question, const std::function<const Version&()>& choose) {
    const std::lock_guard lock(mutex_);
    for (const auto& [asked, version] : known_)
      if (asked == question) return *version;
    const Version& version = choose();
    if (known_.size() == kMost) known_.pop_front();
    known_.emplace_back(std::move(question), &version);
    return version;
  }

 private:
  static constexpr std::size_t kMost = 32;  // more than a model has kinds of layers
  std::mutex mutex_;
  std::deque<std::pair<Question, const Version*>> known_;
};

// The version that was asked for, or else the fastest one of the call's kind. Every version but those for gradients computes O.
const Version& version_for(const Call& call, const AttentionProblem& problem, const Arrays& arrays,
                           const DeviceInfo& device) {
  const bool of_any_kind = call.kind == ProblemKind::forward;
  // A tensor map cannot have a negative stride, and only versions for Hopper copy with tensor maps.
  const bool without_tma = goes_back(arrays).has_value();
  if (call.kernel.empty()) {
    static RecentChoices choices;
    return choices.version_for({.kind = call.kind,
                                .deterministic = call.deterministic,
                                .log_sum_exp = arrays.lse.has_value(),
                                .without_tma = without_tma,
                                .lengths_in_array = arrays.cache_lengths.has_value(),
                                .device = call.device,
                                .problem = problem},
                               [&]() -> const Version& {
                                 return of_any_kind
                                            ? fastest_version(problem, arrays.lse.has_value(), device, without_tma)
                                            : newest_for(call, problem, arrays, device);
                               });
  }
  const Version& version = version_of(call.kernel, &device);
  if (of_any_kind && version.kind == ProblemKind::backward)
    throw UsageError(fmt::format("kernel: {} computes {}, not O; leave kernel out, or use another version",
                                 label(version), kind_of(version).outputs));
  if (call.deterministic && version.kind == call.kind && !version.deterministic)
    throw UsageError(fmt::format(
        "kernel: {} adds in any order, so its launches differ in the last bits; leave kernel out, or use {}",
        label(version), label(newest_for(call, problem, arrays, device))));
  if (of_any_kind || version.kind == call.kind) return version;
  throw UsageError(
      fmt::format("kernel: {} {}; leave kernel out, or use {}", label(version),
                  call.kind == ProblemKind::decoding ? "is not made for few queries" : "computes O, not gradients",
                  label(newest_for(call, problem, arrays, device))));
}

}  // namespace

const Version& version_of(std::string_view kernel, const DeviceInfo* device) {
  const auto runs = [&](const Version& version) {
    return device != nullptr ? !why_not_on_device(version, *device) : version.architecture == Architecture::sm_80;
  };
  const Version* newest = nullptr;
  for (const Version& version : versions())
    if (!version.is_extension() && version.kind == ProblemKind::forward && runs(version)) newest = &version;
  if (kernel.empty() && newest != nullptr) return *newest;
  try {
    return select_version(std::string(kernel));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("kernel: {}", error.what()));
  }
}

void* allocate_on_gpu(int ordinal, std::size_t bytes) {
  const CurrentDevice current;
  current.set(ordinal);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) return nullptr;
  check(error, fmt::format("allocating {} on GPU {}", format_bytes(static_cast<double>(bytes)), ordinal));
  return data;
}

DeviceInfo device_info(int ordinal) {
  const CurrentDevice restored;
  return open_gpu(ordinal, kArguments);
}

Answer forward(const Call& call, const Arrays& arrays, Place place, const std::atomic<bool>& interrupt) {
  version_of(call.kernel, nullptr);  // an invalid name is refused before anything else
  const AttentionProblem problem = check_arrays(arrays, call.asked);
  const float scale = scale_of(call, problem);
  const DeviceInfo& device = device_of_arrays(call.device);
  const Version& version = version_for(call, problem, arrays, device);
  const Configuration& configuration = configuration_of(version, problem, call.config, device);
  AttentionProblem solved = problem;
  if (arrays.cache_lengths)
    solved.lengths_kv.assign(problem.batch, problem.append);  // they are there, whatever they are
  refuse_if(why_unsupported(version, configuration, solved, kArguments));
  if (!arrays.dout) refuse_if(why_no_log_sum_exp(version, arrays.lse.has_value()));
  refuse_if(why_unsupported_by_device(version, configuration, device, kArguments));
  if (place == Place::host && (arrays.page_table || arrays.cache_lengths)) check_cache(arrays, problem);
  if (call.only_chooses) return {.findings = {}, .milliseconds = std::nullopt, .kernel = label(version)};

  // The virtual GPU runs one launch at a time, and two calls may map the same array.
  static std::mutex virtual_gpu;
  const auto turn = place == Place::host ? std::unique_lock(virtual_gpu) : std::unique_lock<std::mutex>();
  std::optional<VirtualGpuSettings> settings;
  // For negative strides the exception says more, and in terms of the arguments.
  if (place == Place::host) settings.emplace(interrupt, !goes_back(arrays).has_value());
  const CurrentDevice current;
  current.set(call.device);
  cudaGetLastError();  // from an earlier call; launches must not report it
  std::optional<MappedArrays> mapped;
  if (place == Place::host) mapped.emplace(arrays);
  const Workspace workspace(version, configuration.workspace_bytes(problem), call.stream);
  const DeviceLengths lengths(version, problem.packed ? first_rows(problem) : problem.lengths, call.stream);
  const DeviceLengths lengths_kv(version, problem.packed ? first_rows_kv(problem) : lengths_of_cache(problem),
                                 call.stream);
  Tensors tensors = tensors_of(arrays);
  tensors.lengths = tensors.offsets = lengths.data();
  tensors.lengths_kv = tensors.offsets_kv = lengths_kv.data();
  BackwardArgs args;  // of which a version that computes O sees the base
  static_cast<ExtendedArgs&>(args) = launch_args(problem, tensors, scale, workspace.data());
  args.gradients = gradients_of(arrays, problem.packed);
  if (arrays.cache_lengths) args.lengths_kv = static_cast<const int*>(arrays.cache_lengths->data);

  const std::string what =
      fmt::format("{}, configuration {}, {}", label(version), configuration.name, describe(problem));
  const auto launch = [&] {
    const cudaError_t error = configuration.launch(args, call.stream);
    refuse_if_tma_goes_back(error, version, problem.dtype, arrays);
    check(error, "launching " + what);
  };
  Answer answer{.findings = {}, .milliseconds = std::nullopt, .kernel = label(version)};
  try {
    if (first_launch(call.device, configuration) && call.timed) launch();
    if (call.timed) {
      Event start, stop;
      start.record(call.stream);
      launch();
      stop.record(call.stream);
      stop.wait();
      answer.milliseconds = Event::milliseconds(start, stop);
    } else {
      launch();
    }
    if (place == Place::host || call.wait) check(cudaStreamSynchronize(call.stream), "running " + what);
  } catch (const CudaError&) {
    // The virtual GPU's findings say more than the error that follows from them.
    answer.findings = take_findings();
    if (answer.findings.empty()) throw;
    return answer;
  }
  answer.findings = take_findings();
  return answer;
}

}  // namespace flash_ladder::python
