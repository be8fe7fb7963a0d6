// The state behind CUDA's functions: one device, with everything that was loaded and allocated on it.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/runtime/stream_order.h"
#include "emulator/runtime/virtual_runtime.h"

namespace flash_ladder::emulator::runtime {

/// The device code of one object file. It is parsed when the first of its kernels or variables is used, as CUDA does by
/// default, so a program does not wait for kernels that it never launches.
class Library {
 public:
  explicit Library(const void* fat_binary) : fat_binary_(fat_binary) {}

  /// Throws std::runtime_error on every call if the code cannot be used.
  Module& module(Memory& memory, int sm);
  /// Registers per thread of a kernel, as ptxas reported for this sm; 0 if not known.
  int registers(const std::string& kernel) const;
  /// The PTX of a library whose module() has been called.
  std::string_view ptx() const;

  std::map<std::string, Address> managed_variables;  // by name

 private:
  const void* fat_binary_;
  std::unique_ptr<Module> module_;
  std::map<std::string, int> registers_;
  std::string error_;  // why there is no module
};

/// A __global__ function. Its address is the cudaKernel_t.
struct Function {
  Library* library;
  std::string name;                // mangled
  int max_dynamic_shared = -1;     // cudaFuncAttributeMaxDynamicSharedMemorySize, -1: not set
  bool large_clusters = false;     // cudaFuncAttributeNonPortableClusterSizeAllowed
  const Kernel* kernel = nullptr;  // null until first used
};

/// A __device__ or __constant__ variable.
struct Variable {
  Library* library;
  std::string name;
  std::size_t size;
};

struct Device;

/// What a stream was told to do while it was being captured, in the order of the calls, together with what is needed to
/// launch a copy.
struct Graph {
  struct Piece {
    const char* call;  // the program's call that requested it
    std::function<cudaError_t(Device&)> work;
  };
  std::vector<Piece> work;
  bool invalidated = false;  // a forbidden call was made during the capture: nothing more is captured
};

/// The range of stream priorities, which have no effect. The least is 0.
constexpr int kGreatestPriority = -5;

struct Stream {
  unsigned flags;
  int priority;
  unsigned long long id;             // unique among streams
  std::shared_ptr<Graph> capture{};  // null: its work is done immediately
  bool began_capture = false;        // otherwise it joined another stream's capture by waiting for an event of it
  StreamClock captured{};            // the captured work that precedes the stream's next operation
};

struct Event {
  bool timed = true;                                                // false with cudaEventDisableTiming
  std::optional<std::chrono::steady_clock::time_point> recorded{};  // host time
  std::weak_ptr<Graph> capture{};  // of the stream that recorded it, if it was captured
  StreamClock captured{};          // then the work captured up to that point
  StreamClock done{};              // when it has occurred
};

/// Memory that the host can use too.
struct HostMemory {
  std::size_t size;
  bool managed;  // with cudaMallocManaged
  bool owned;    // allocated here, not registered by the program
  unsigned flags = 0;
};

/// What distinguishes findings of several launches and calls: kind, kernel, PTX line, position, message of a call, and
/// the place of the other access.
using FindingKey = std::tuple<FindingKind, std::string, int, SourcePosition, std::string, SourcePosition>;

/// What the program registered about its device code before main(). Later it changes only when a shared library is loaded.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Library>> libraries;
  std::vector<std::unique_ptr<Function>> functions;
  std::unordered_map<const void*, Function*> functions_by_host_address;  // and by its own
  std::unordered_map<const void*, Variable> variables;                   // by host address

  /// Null if there is none.
  Function* find_function(const void* host_address_or_handle);
  const Variable* find_variable(const void* host_address);
};

/// The registry of this process. Never destroyed, like device().
Registry& registry();

/// The device that the settings describe. CUDA's functions hold `mutex` for their whole duration, so that a program's
/// threads take turns.
struct Device {
  Device();

  std::recursive_mutex mutex;
  const char* call_name = "";  // the function that the program has called
  Memory memory;
  const int sm;
  const SmLimits& limits;

  // The limits of cudaDeviceSetLimit other than the heap's size. They have no effect: stacks and printf get what they need.
  std::map<cudaLimit, std::size_t> limit_values = {{cudaLimitStackSize, 1 << 10},
                                                   {cudaLimitPrintfFifoSize, 1 << 20},
                                                   {cudaLimitMaxL2FetchGranularity, 64},
                                                   {cudaLimitPersistingL2CacheSize, 0}};

  std::set<Stream*> streams;
  unsigned long long last_stream_id = 2;  // those of the default streams are 1 and 2
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::map<Address, HostMemory> host_memory;
  std::set<Address> allocated;          // with cudaMalloc and its variants
  std::size_t most_used = 0;            // the maximum number of bytes allocated at a time, in all kinds of memory
  std::uint64_t release_threshold = 0;  // of the memory pool; has no effect
  std::set<Address> ended_by_reset;     // what was allocated when cudaDeviceReset was called
  StreamOrder order{[this](Finding finding) { record(std::move(finding)); }};

  // The streams whose host functions are running now, without the mutex: work that follows them waits.
  std::multiset<cudaStream_t> in_host_function;
  std::condition_variable_any host_function_ended;

  // An error of a kernel. The program learns about it at the next call that waits for kernels; from then on every call
  // returns it.
  cudaError_t pending_error = cudaSuccess;
  cudaError_t sticky_error = cudaSuccess;

  // For each stream whose last work is a kernel that lets the next one begin while it runs: what it uses.
  std::map<cudaStream_t, std::vector<UsedMemory>> used_by_kernel_ahead;

  std::optional<std::uint64_t> ctas_asked_for;  // set while launches are only counted: see count_ctas()
  std::vector<KernelCounters> counters;
  std::vector<std::shared_ptr<const CtaTrace>> traces;
  Findings findings;
  // All of them, numbered in order of occurrence: the first ones are kept, under the same numbers.
  std::map<FindingKey, std::size_t> known_findings;
  bool kernels_not_run = false;

  /// The function, with its kernel loaded. Throws ApiError if there is none, std::runtime_error if it cannot be loaded.
  Function& function(const void* host_address_or_handle);
  /// The variable, loaded. Throws like function().
  ModuleVariable variable(const void* host_address);
  /// Throws ApiError unless the stream is one of CUDA's own or one that the program created.
  void require_stream(cudaStream_t stream) const;
  /// The same, and waits for a host function that runs in the stream. Also throws ApiError if work in the stream would
  /// wait for a stream that is being captured, as work in the legacy default stream would.
  void require_usable_stream(cudaStream_t stream);
  void begin_host_function(cudaStream_t stream);
  void end_host_function(cudaStream_t stream);
  /// The host waits for everything that it has requested.
  void wait_for_all();
  /// Ends a call that is forbidden while `graph` is being captured, and says why; the capture will not produce a graph.
  [[noreturn]] void break_capture(Graph& graph, cudaError_t error, const std::string& why);
  /// The same, for calls that wait for the stream, if it is being captured.
  void refuse_to_wait_for_capture(cudaStream_t stream);
  /// The graph into which the stream's work is captured; null if the work is done immediately.
  Graph* capture_of(cudaStream_t stream) const;
  /// Performs a stream's work, called `what` in messages; see StreamOrder::begin().
  template <typename Work>
  cudaError_t in_order(cudaStream_t stream, const std::string& what, Work&& work, const std::string& kernel = {}) {
    const struct Ordered {
      StreamOrder& order;
      ~Ordered() { order.end(); }
    } ordered{order};
    order.begin(stream, what, kernel);
    if (kernel.empty()) used_by_kernel_ahead.erase(stream);
    return work(*this);
  }
  /// Performs what a stream is told to do: immediately, or when the graph into which the stream is captured is
  /// launched. In that case `work` must own everything that it needs. Throws like require_usable_stream().
  template <typename Work>
  cudaError_t on_stream(cudaStream_t stream, Work work) {
    require_usable_stream(stream);
    Graph* graph = capture_of(stream);
    if (graph == nullptr) return in_order(stream, call_name, work);
    if (graph->invalidated) return cudaErrorStreamCaptureInvalidated;
    graph->work.push_back({call_name, std::move(work)});
    ++reinterpret_cast<Stream*>(stream)->captured[stream];
    return cudaSuccess;
  }
  /// Adds to `counters` and `findings`.
  void record(const Function& function, Report report);
  void record(Finding finding);
  /// Reports that a kernel was not run, and why: the program gets an error code, but may not check it.
  void not_run(const std::string& kernel, const std::string& why);
};

/// The device of this process, created by the first CUDA call. It is never destroyed, because a program may call CUDA
/// until its very end.
Device& device();

/// Memory that the host can use too: managed or, otherwise, pinned.
cudaError_t allocate_on_host(Device& device, void** pointer, std::size_t size, bool managed, unsigned flags = 0);

/// Ends a call with an error code.
struct ApiError {
  cudaError_t code;
};

/// Prints on standard error, once, what the program cannot see from an error code, if Settings::explains_errors.
void print_once(const std::string& message);

/// Remembers an error for cudaGetLastError, and returns it.
cudaError_t remember(cudaError_t error);
/// The last error of this thread; `reset` forgets it.
cudaError_t last_error(bool reset);

/// What every CUDA function does around its work: admits one call at a time, does no work after a sticky error, and
/// turns exceptions into error codes. `work` takes the Device and returns cudaError_t.
template <typename Work>
cudaError_t api_call(const char* name, Work&& work);
/// The same for functions that wait for kernels: they also report errors in them.
template <typename Work>
cudaError_t synchronising_call(const char* name, Work&& work);

/// The exception in flight as an error code; details that the code does not express are recorded as a finding or printed.
cudaError_t error_of_exception(const char* name, Device& device);

template <typename Work>
cudaError_t api_call(const char* name, Work&& work) {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  if (device.sticky_error != cudaSuccess) return remember(device.sticky_error);
  device.call_name = name;
  try {
    return remember(work(device));
  } catch (...) {
    return remember(error_of_exception(name, device));
  }
}

template <typename Work>
cudaError_t synchronising_call(const char* name, Work&& work) {
  return api_call(name, [&](Device& device) {
    if (device.pending_error != cudaSuccess) {
      device.sticky_error = device.pending_error;
      return device.sticky_error;
    }
    return work(device);
  });
}

}  // namespace flash_ladder::emulator::runtime
