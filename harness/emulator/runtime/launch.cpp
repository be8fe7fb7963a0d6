// Launching kernels, and querying and setting their attributes.
#include <cuda_occupancy.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "emulator/function_name.h"
#include "emulator/runtime/device.h"
#include "emulator/runtime/properties.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator::runtime {
namespace {

/// The parameters between <<< and >>>, on their way from the call site to the stub that nvcc generates for a kernel.
struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

std::string to_string(const dim3& size) {
  return "(" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " + std::to_string(size.z) + ")";
}

cudaError_t refuse(Device& device, const Function& function, cudaError_t error, const std::string& message) {
  Finding finding;
  finding.kind = FindingKind::launch_limits;
  finding.message = message;
  finding.kernel = function.name;
  finding.position = line_of(host_place(function.name));
  device.record(std::move(finding));
  return error;
}

/// The error that CUDA returns later for a kernel with this finding; success if the hardware would not notice it.
cudaError_t error_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::out_of_bounds:
    case FindingKind::use_after_free:
      return cudaErrorIllegalAddress;
    case FindingKind::misaligned:
      return cudaErrorMisalignedAddress;
    case FindingKind::assertion:
      return cudaErrorAssert;
    case FindingKind::invalid_operation:
      return cudaErrorIllegalInstruction;
    case FindingKind::endless_loop:
    case FindingKind::deadlock:
      return cudaErrorLaunchTimeout;
    default:
      return cudaSuccess;
  }
}

// Written by a signal handler.
std::atomic<bool> launch_is_running = false, launch_is_to_end = false;

/// A line that shows the progress of a long launch, if standard error is a terminal.
class ProgressLine {
 public:
  ProgressLine(const std::string& kernel, std::uint64_t num_ctas) {
    if (isatty(STDERR_FILENO) == 0) return;
    thread_ = std::thread([this, name = function_name(kernel), num_ctas] {
      std::unique_lock lock(mutex_);
      bool shown = false;
      for (int seconds = 1; !condition_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; }); ++seconds) {
        if (seconds < 3) continue;
        shown = true;
        std::fprintf(stderr, "\rvirtual GPU: %s, %d s: %" PRIu64 " of %" PRIu64 " blocks (Ctrl-C ends it)",
                     name.c_str(), seconds, ctas_ended.load(), num_ctas);
      }
      if (shown) std::fputs("\r\033[K", stderr);
    });
  }
  ~ProgressLine() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    condition_.notify_one();
    thread_.join();
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  std::atomic<std::uint64_t> ctas_ended = 0;

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool ended_ = false;
  std::thread thread_;
};

cudaError_t max_active_blocks(Device& device, int* blocks, const void* handle, int block_size,
                              std::size_t shared_bytes);

/// How many CTAs the GPU can hold at a time; 0 if not even one.
std::uint64_t resident_blocks(Device& device, const void* handle, dim3 block, std::size_t shared_bytes) {
  int blocks = 0;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreadsPerCta) return 0;
  max_active_blocks(device, &blocks, handle, static_cast<int>(threads), shared_bytes);
  return static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(device_properties(device).multiProcessorCount);
}

// CTAs of a cluster: the number that every GPU with clusters supports, and the maximum of sm_90.
constexpr int kPortableCluster = 8, kLargestCluster = 16;

/// The cluster size that the launch requests, or otherwise the kernel's own (__cluster_dims__).
Dim3 cluster_of(const Function& function, Dim3 of_launch) {
  if (of_launch.x != 0) return of_launch;
  const auto [x, y, z] = function.kernel->cluster();
  return {x, y, z};
}

Dim3 cluster_of(const cudaLaunchConfig_t& config) {
  Dim3 cluster{0, 0, 0};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    cluster = {attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z};
  }
  return cluster;
}

std::uint64_t size_of(const Dim3& cluster) { return std::uint64_t{cluster.x} * cluster.y * cluster.z; }

/// The counter of a cooperative launch: CUDA's headers find it through the registers %envreg1 and %envreg2.
class GridWorkspace {
 public:
  GridWorkspace(Memory& memory, bool needed) : memory_(memory) {
    if (!needed) return;
    address_ = memory.allocate(8);
    if (address_ == 0) throw std::bad_alloc();
    memory.fill(address_, 0, 8);
  }
  ~GridWorkspace() {
    if (address_ != 0) memory_.free(address_);
  }
  GridWorkspace(const GridWorkspace&) = delete;
  GridWorkspace& operator=(const GridWorkspace&) = delete;
  Address address() const { return address_; }

 private:
  Memory& memory_;
  Address address_ = 0;
};

/// What a program asks for with a launch.
struct LaunchRequest {
  dim3 grid, block;
  void** arguments;
  std::size_t shared_bytes;
  bool cooperative;
  Dim3 cluster;         // zeros: as declared
  cudaStream_t stream;  // the one in which it was requested, also if it was captured
  bool dependent;       // may begin before the kernel ahead of it in the stream has ended

  std::uint64_t num_ctas() const { return std::uint64_t{grid.x} * grid.y * grid.z; }
};

/// What CUDA itself refuses; what the hardware cannot do, the virtual GPU reports. `resident`: the number of blocks that
/// the GPU holds at a time, 0 if none fits.
cudaError_t check_request(Device& device, const Function& function, const LaunchRequest& request,
                          std::uint64_t resident) {
  const auto& [grid, block, arguments, shared_bytes, cooperative, cluster, stream, dependent] = request;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    return refuse(device, function, cudaErrorInvalidConfiguration,
                  "a grid of " + to_string(grid) + " CTAs: each size must be at least 1, x at most " +
                      std::to_string(kMaxGridX) + ", y and z at most " + std::to_string(kMaxGridYZ));
  }
  const std::size_t static_bytes = function.kernel->static_shared_bytes();
  const auto most_shared_bytes = static_cast<std::size_t>(device.limits.smem_per_cta_bytes);
  const std::size_t allowed =
      function.max_dynamic_shared >= 0
          ? static_cast<std::size_t>(function.max_dynamic_shared)
          : kSmemBytesWithoutOptIn - std::min<std::size_t>(static_bytes, kSmemBytesWithoutOptIn);
  if (shared_bytes > allowed && shared_bytes + static_bytes <= most_shared_bytes) {
    return refuse(device, function, cudaErrorInvalidValue,
                  std::to_string(shared_bytes) + " bytes of dynamic shared memory, but " + std::to_string(allowed) +
                      " are allowed: first call cudaFuncSetAttribute(kernel, "
                      "cudaFuncAttributeMaxDynamicSharedMemorySize, " +
                      std::to_string(shared_bytes) + ")");
  }

  const std::uint64_t cluster_size = size_of(cluster_of(function, cluster));
  if (!function.large_clusters && cluster_size > kPortableCluster && cluster_size <= kLargestCluster) {
    return refuse(device, function, cudaErrorInvalidClusterSize,
                  "clusters of " + std::to_string(cluster_size) + " blocks: more than " +
                      std::to_string(kPortableCluster) +
                      " are not on every GPU; first call cudaFuncSetAttribute(kernel, "
                      "cudaFuncAttributeNonPortableClusterSizeAllowed, 1)");
  }
  const std::uint64_t num_ctas = request.num_ctas();
  if (cooperative && resident != 0 && num_ctas > resident) {
    return refuse(device, function, cudaErrorCooperativeLaunchTooLarge,
                  "a cooperative launch of " + std::to_string(num_ctas) +
                      " blocks: they must all be on the GPU at the same time, and it has room for " +
                      std::to_string(resident) +
                      " of this kernel (cudaOccupancyMaxActiveBlocksPerMultiprocessor, times the number "
                      "of SMs)");
  }
  // CUDA would dereference the null pointer and crash.
  for (std::size_t i = 0; i < function.kernel->parameters().size(); ++i) {
    if (arguments != nullptr && arguments[i] != nullptr) continue;
    return refuse(device, function, cudaErrorInvalidValue,
                  "argument " + std::to_string(i) + " of " + std::to_string(function.kernel->parameters().size()) +
                      " is null: the array of arguments holds a pointer to each of them");
  }
  return cudaSuccess;
}

Options options_of(const Device& device, const Function& function, std::uint64_t resident, ProgressLine& progress) {
  const Settings& settings = runtime::settings();
  return {.sm = device.sm,
          .threads = settings.threads,
          .checks = settings.checks,
          .early_async = settings.early_async,
          .count_lines = settings.count_lines,
          .max_warp_instructions_per_cta = settings.max_warp_instructions_per_cta,
          .how_to_allow_more =
              "If it is not endless but long, FLASH_LADDER_MAX_INSTRUCTIONS=N (scripts/emulate and scripts/harness "
              "--max-instructions N) lets it run longer",
          .max_warp_instructions = settings.max_warp_instructions,
          .max_resident_ctas = resident,
          .interrupt = settings.interrupt != nullptr ? settings.interrupt : &launch_is_to_end,
          .ctas_ended = &progress.ctas_ended,
          .registers_per_thread = function.library->registers(function.name),
          .trace_cta = settings.trace_cta,
          // Keep all of them, because only a comparison with other launches shows which are new.
          .max_findings = std::numeric_limits<std::size_t>::max(),
          .print = {}};
}

/// Runs the kernel, and records which memory it has used if the order of streams is watched, or if the next kernel may begin while
/// it runs.
Report run_watched(Device& device, const Function& function, const LaunchConfig& config, const Options& options,
                   cudaStream_t stream) {
  const bool lets_next_begin = function.kernel->lets_next_kernel_begin();
  if (!device.order.watches() && !lets_next_begin)
    return emulator::launch(*function.kernel, config, device.memory, options);
  std::vector<UsedMemory> used;
  Report report = emulator::launch(*function.kernel, config, device.memory, options, used);
  for (const UsedMemory& range : used) device.order.touch(range);
  if (lets_next_begin) device.used_by_kernel_ahead[stream] = std::move(used);
  if (!options.checks || report.outcome == Outcome::refused) return report;
  // Loads from there are not checked one by one.
  for (const ModuleVariable& constant : function.kernel->constants()) {
    device.order.touch(
        {.begin = constant.address, .end = constant.address + constant.size, .writes = false, .somewhere = true});
  }
  return report;
}

/// The error that the call returns for a launch that the GPU refused.
cudaError_t error_of_refusal(const Device& device, const Function& function, const LaunchRequest& request) {
  const dim3& block = request.block;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const bool bad_block = threads == 0 || threads > kMaxThreadsPerCta || block.x > kMaxBlockX || block.y > kMaxBlockY ||
                         block.z > kMaxBlockZ;
  const bool bad_shared = request.shared_bytes + function.kernel->static_shared_bytes() >
                          static_cast<std::size_t>(device.limits.smem_per_cta_bytes);
  const std::uint64_t cluster_size = size_of(cluster_of(function, request.cluster));
  return bad_block                        ? cudaErrorInvalidConfiguration
         : bad_shared                     ? cudaErrorInvalidValue
         : cluster_size > kLargestCluster ? cudaErrorInvalidClusterSize
                                          : cudaErrorLaunchOutOfResources;
}

cudaError_t try_launch(Device& device, const void* handle, const LaunchRequest& request) {
  Function& function = device.function(handle);
  if (device.pending_error != cudaSuccess) return cudaSuccess;  // a GPU would not start it either
  const auto& [grid, block, arguments, shared_bytes, cooperative, cluster, stream, dependent] = request;
  const std::uint64_t resident = resident_blocks(device, handle, block, shared_bytes);
  if (const cudaError_t error = check_request(device, function, request, resident); error != cudaSuccess) return error;
  if (device.ctas_asked_for) {
    *device.ctas_asked_for += request.num_ctas();
    return cudaSuccess;
  }
  const std::vector<std::byte> parameters = pack_parameters(*function.kernel, arguments);
  const GridWorkspace workspace(device.memory, cooperative);
  ProgressLine progress(function.name, request.num_ctas());
  // A launch that is not dependent begins when the kernel ahead of it has ended.
  const std::vector<UsedMemory> ahead = std::exchange(device.used_by_kernel_ahead[stream], {});
  launch_is_running = true;
  const LaunchConfig config{.grid = {grid.x, grid.y, grid.z},
                            .block = {block.x, block.y, block.z},
                            .cluster = cluster,
                            .dynamic_shared_bytes = shared_bytes,
                            .grid_workspace = workspace.address(),
                            .parameters = parameters,
                            .ahead = dependent ? &ahead : nullptr};
  Report report = run_watched(device, function, config, options_of(device, function, resident, progress), stream);
  launch_is_running = false;

  cudaError_t answer = cudaSuccess;
  if (report.outcome == Outcome::refused) {
    for (Finding& finding : report.findings) finding.position = line_of(host_place(function.name));
    answer = error_of_refusal(device, function, request);
  } else {
    for (const Finding& finding : report.findings) {
      if (device.pending_error == cudaSuccess) device.pending_error = error_of(finding.kind);
    }
    if (report.outcome == Outcome::stopped && device.pending_error == cudaSuccess) {
      device.pending_error = cudaErrorLaunchTimeout;
    }
  }
  device.record(function, std::move(report));
  if (launch_is_to_end.exchange(false)) std::raise(SIGINT);
  return answer;
}

std::string name_of(const void* handle) {
  const Function* function = registry().find_function(handle);
  return function == nullptr ? "" : function->name;
}

cudaError_t launch(Device& device, const void* handle, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared_bytes, bool cooperative, Dim3 cluster, cudaStream_t stream, bool dependent) {
  try {
    return try_launch(device, handle, {grid, block, arguments, shared_bytes, cooperative, cluster, stream, dependent});
  } catch (const ApiError&) {
    throw;
  } catch (const PtxError& error) {
    device.not_run(name_of(handle), error.what());
    return cudaErrorInvalidPtx;
  } catch (const std::bad_alloc&) {
    device.not_run(name_of(handle), "the host does not have enough memory.");
    return cudaErrorMemoryAllocation;
  } catch (const std::exception& error) {
    device.not_run(name_of(handle), error.what());
    return cudaErrorNoKernelImageForDevice;
  }
}

/// A launch in a stream. A captured launch keeps the values of its arguments.
cudaError_t launch_on(Device& device, cudaStream_t stream, const void* handle, dim3 grid, dim3 block, void** arguments,
                      std::size_t shared_bytes, bool cooperative = false, Dim3 cluster = {0, 0, 0},
                      bool dependent = false) {
  device.require_usable_stream(stream);
  if (device.capture_of(stream) == nullptr) {
    const std::string name = name_of(handle);
    return device.in_order(
        stream, "the kernel " + function_name(name),
        [&](Device&) {
          return launch(device, handle, grid, block, arguments, shared_bytes, cooperative, cluster, stream, dependent);
        },
        name);
  }
  const std::vector<KernelParameter> parameters = device.function(handle).kernel->parameters();
  std::vector<std::vector<std::byte>> values;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (arguments == nullptr || arguments[i] == nullptr) return cudaErrorInvalidValue;
    const auto* from = static_cast<const std::byte*>(arguments[i]);
    values.emplace_back(from, from + parameters[i].size);
  }
  return device.on_stream(stream, [=](Device& then) mutable {
    std::vector<void*> pointers;
    for (std::vector<std::byte>& value : values) pointers.push_back(value.data());
    return launch(then, handle, grid, block, pointers.data(), shared_bytes, cooperative, cluster, stream, dependent);
  });
}

cudaFuncAttributes attributes(const Device& device, const Function& function) {
  const Kernel& kernel = *function.kernel;
  cudaFuncAttributes attributes{};
  attributes.sharedSizeBytes = kernel.static_shared_bytes();
  attributes.localSizeBytes = kernel.local_bytes();
  attributes.maxThreadsPerBlock = kMaxThreadsPerCta;
  const auto [x, y, z] = kernel.max_block();
  if (x != 0) {
    const std::uint64_t bound = std::uint64_t{x} * std::max(y, 1u) * std::max(z, 1u);
    attributes.maxThreadsPerBlock = static_cast<int>(std::min<std::uint64_t>(bound, kMaxThreadsPerCta));
  }
  attributes.numRegs = function.library->registers(function.name);
  attributes.ptxVersion = 80;
  attributes.binaryVersion = device.sm;
  attributes.maxDynamicSharedSizeBytes = function.max_dynamic_shared >= 0
                                             ? function.max_dynamic_shared
                                             : kSmemBytesWithoutOptIn - static_cast<int>(attributes.sharedSizeBytes);
  attributes.preferredShmemCarveout = cudaSharedmemCarveoutDefault;
  return attributes;
}

cudaError_t set_attribute(Device& device, const void* handle, cudaFuncAttribute attribute, int value) {
  Function& function = device.function(handle);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const std::size_t most =
        static_cast<std::size_t>(device.limits.smem_per_cta_bytes) - function.kernel->static_shared_bytes();
    if (value < 0 || static_cast<std::size_t>(value) > most) return cudaErrorInvalidValue;
    function.max_dynamic_shared = value;
  }
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) function.large_clusters = value != 0;
  return cudaSuccess;  // the others are hints about caches and clusters
}

cudaError_t max_active_blocks(Device& device, int* blocks, const void* handle, int block_size,
                              std::size_t shared_bytes) {
  if (blocks == nullptr || block_size <= 0) return cudaErrorInvalidValue;
  const Function& function = device.function(handle);
  const cudaOccDeviceProp properties(device_properties(device));
  cudaOccFuncAttributes function_attributes(attributes(device, function));
  function_attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  const cudaOccDeviceState state;
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &function_attributes, &state, block_size,
                                              shared_bytes) != CUDA_OCC_SUCCESS) {
    return cudaErrorInvalidValue;
  }
  *blocks = result.activeBlocksPerMultiprocessor;
  return cudaSuccess;
}

}  // namespace

bool interrupt_launch() {
  if (!launch_is_running) return false;
  launch_is_to_end = true;
  return true;
}

}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  call_configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (call_configurations.empty()) return remember(cudaErrorMissingConfiguration);
  const CallConfiguration& configuration = call_configurations.back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  call_configurations.pop_back();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return api_call("cudaLaunchKernel", [&](Device& device) {
    return launch_on(device, stream, function, grid, block, arguments, shared_bytes);
  });
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  return api_call("cudaLaunchCooperativeKernel", [&](Device& device) {
    return launch_on(device, stream, function, grid, block, arguments, shared_bytes, true);
  });
}

// Since CUDA 13 the stub of a kernel requests a handle once, and launches that. The handle must not depend on whether
// the code can be loaded, so that the launch can report why it cannot.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  Function* found = registry().find_function(function);
  if (found == nullptr) return remember(cudaErrorInvalidDeviceFunction);
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return api_call("cudaLaunchKernelExC", [&](Device& device) {
    if (config == nullptr) return cudaErrorInvalidValue;
    bool cooperative = false, dependent = false;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = config->attrs[i];
      cooperative |= attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative != 0;
      dependent |= attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                   attribute.val.programmaticStreamSerializationAllowed != 0;
    }
    return launch_on(device, config->stream, function, config->gridDim, config->blockDim, arguments,
                     config->dynamicSmemBytes, cooperative, cluster_of(*config), dependent);
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return api_call("cudaFuncSetAttribute",
                  [&](Device& device) { return set_attribute(device, function, attribute, value); });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return api_call("cudaFuncGetAttributes", [&](Device& device) {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    *attributes = flash_ladder::emulator::runtime::attributes(device, device.function(function));
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return api_call("cudaFuncGetName", [&](Device& device) {
    if (name == nullptr) return cudaErrorInvalidValue;
    *name = device.function(function).name.c_str();
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache /*config*/) {
  return api_call("cudaFuncSetCacheConfig", [&](Device& device) {
    device.function(function);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetSharedMemConfig(const void* function, cudaSharedMemConfig /*config*/) {
  return api_call("cudaFuncSetSharedMemConfig", [&](Device& device) {
    device.function(function);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int block_size,
                                                                   size_t shared_bytes, unsigned /*flags*/) {
  return api_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&](Device& device) {
    return max_active_blocks(device, blocks, function, block_size, shared_bytes);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

// A GPU holds slightly fewer, because the SMs of a cluster have to be neighbours.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const cudaLaunchConfig_t* config) {
  return api_call("cudaOccupancyMaxActiveClusters", [&](Device& device) {
    if (clusters == nullptr || config == nullptr) return cudaErrorInvalidValue;
    const std::uint64_t size = size_of(cluster_of(device.function(function), cluster_of(*config)));
    if (size == 0 || size > kLargestCluster) return cudaErrorInvalidClusterSize;
    *clusters = static_cast<int>(resident_blocks(device, function, config->blockDim, config->dynamicSmemBytes) / size);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function, const cudaLaunchConfig_t* config) {
  return api_call("cudaOccupancyMaxPotentialClusterSize", [&](Device& device) {
    if (size == nullptr || config == nullptr) return cudaErrorInvalidValue;
    const Function& asked = device.function(function);
    const auto required = static_cast<int>(size_of(cluster_of(asked, {0, 0, 0})));
    *size = required > 1 ? required : asked.large_clusters ? kLargestCluster : kPortableCluster;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks,
                                                      int /*block_size*/) {
  return api_call("cudaOccupancyAvailableDynamicSMemPerBlock", [&](Device& device) {
    if (bytes == nullptr || blocks <= 0) return cudaErrorInvalidValue;
    const cudaDeviceProp properties = device_properties(device);
    const std::size_t taken =
        device.function(function).kernel->static_shared_bytes() + properties.reservedSharedMemPerBlock;
    const std::size_t share = properties.sharedMemPerMultiprocessor / static_cast<unsigned>(blocks);
    *bytes = share > taken ? std::min(share - taken, properties.sharedMemPerBlockOptin) : 0;
    return cudaSuccess;
  });
}

}  // extern "C"
