// The state behind CUDA's functions: one device, with what was loaded and allocated on it.
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

  /// Throws std::runtime_error, each time, if the code cannot be used.
  Module& module(Memory& memory, int sm);
  /// Registers per thread of a kernel, as ptxas reported for this sm; 0 if not known.
  int registers(const std::string& kernel) const;
  /// The PTX; that of a library whose module() was had.
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

/// What a stream was asked to do while it was being captured, in the order of the calls; and a copy of that, to be launched.
struct Graph {
  struct Piece {
    const char* call;  // of the program's, that asked for it
    std::function<cudaError_t(Device&)> work;
  };
  std::vector<Piece> work;
  bool invalidated = false;  // a call has come in between that must not: nothing more is captured
};

/// Of a stream; they have no effect. The least is 0.
constexpr int kGreatestPriority = -5;

struct Stream {
  unsigned flags;
  int priority;
  unsigned long long id;             // that no other stream has had
  std::shared_ptr<Graph> capture{};  // null: its work is done at once
  bool began_capture = false;        // else it joined that of another stream, by waiting for an event of it
  StreamClock captured{};            // which work of the capture comes before what the stream is asked to do next
};

struct Event {
  bool timed = true;                                                // not with cudaEventDisableTiming
  std::optional<std::chrono::steady_clock::time_point> recorded{};  // host time
  std::weak_ptr<Graph> capture{};  // of the stream that recorded it, if it was captured
  StreamClock captured{};          // then what had been captured by then
  StreamClock done{};              // when it has happened
};

/// Memory that the host can use too.
struct HostMemory {
  std::size_t size;
  bool managed;  // by cudaMallocManaged
  bool owned;    // allocated here, not registered by the program
  unsigned flags = 0;
};

/// What tells findings of several launches and calls apart: kind, kernel, PTX line, position, message of a call, and where the
/// other access is.
using FindingKey = std::tuple<FindingKind, std::string, int, SourcePosition, std::string, SourcePosition>;

/// What the program said of its device code before main(). Later it only changes where a shared library is loaded.
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

/// The device as the settings say. CUDA's functions take `mutex` for their whole duration, so that a program's threads take
/// turns.
struct Device {
  Device();

  std::recursive_mutex mutex;
  const char* call_name = "";  // of the function that the program has called
  Memory memory;
  const int sm;
  const SmLimits& limits;

  // What cudaDeviceSetLimit can set but the heap's size. They have no effect: stacks and printf have what they need.
  std::map<cudaLimit, std::size_t> limit_values = {{cudaLimitStackSize, 1 << 10},
                                                   {cudaLimitPrintfFifoSize, 1 << 20},
                                                   {cudaLimitMaxL2FetchGranularity, 64},
                                                   {cudaLimitPersistingL2CacheSize, 0}};

  std::set<Stream*> streams;
  unsigned long long last_stream_id = 2;  // those of the default streams are 1 and 2
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::map<Address, HostMemory> host_memory;
  std::set<Address> allocated;          // by cudaMalloc and its like
  std::size_t most_used = 0;            // bytes at a time, of all memory
  std::uint64_t release_threshold = 0;  // of the memory pool; it has no effect
  std::set<Address> ended_by_reset;     // what was allocated when cudaDeviceReset was called
  StreamOrder order{[this](Finding finding) { record(std::move(finding)); }};

  // Of the functions of the host that run now, without the mutex: what comes after them waits.
  std::multiset<cudaStream_t> in_host_function;
  std::condition_variable_any host_function_ended;

  // An error of a kernel. The program learns of it at the next call that waits for kernels; from then on every call answers it.
  cudaError_t pending_error = cudaSuccess;
  cudaError_t sticky_error = cudaSuccess;

  std::optional<std::uint64_t> ctas_asked_for;  // while launches are only counted: see count_ctas()
  std::vector<KernelCounters> counters;
  std::vector<std::shared_ptr<const CtaTrace>> traces;
  Findings findings;
  // All of them, numbered as they came: the first ones are kept, under the same numbers.
  std::map<FindingKey, std::size_t> known_findings;
  bool kernels_not_run = false;

  /// The function, with its kernel loaded. Throws ApiError if there is none, std::runtime_error if it cannot be loaded.
  Function& function(const void* host_address_or_handle);
  /// The variable, loaded. Throws like function().
  ModuleVariable variable(const void* host_address);
  /// Throws ApiError unless the stream is one of CUDA's own or one that the program made.
  void require_stream(cudaStream_t stream) const;
  /// The same, and waits for a function of the host that runs in the stream. Throws ApiError, too, if work in the stream would wait for
  /// one that is being captured: the legacy default stream's.
  void require_usable_stream(cudaStream_t stream);
  void begin_host_function(cudaStream_t stream);
  void end_host_function(cudaStream_t stream);
  /// The host waits for all that it has asked for.
  void wait_for_all();
  /// Ends a call that must not come while `graph` is captured, and says why; there will be no graph.
  [[noreturn]] void break_capture(Graph& graph, cudaError_t error, const std::string& why);
  /// The same, for calls that wait for the stream, if it is being captured.
  void refuse_to_wait_for_capture(cudaStream_t stream);
  /// The graph that the stream's work goes to; null if it is done at once.
  Graph* capture_of(cudaStream_t stream) const;
  /// Does work of a stream, which is called `what`; see StreamOrder::begin().
  template <typename Work>
  cudaError_t in_order(cudaStream_t stream, const std::string& what, Work&& work, const std::string& kernel = {}) {
    const struct Ordered {
      StreamOrder& order;
      ~Ordered() { order.end(); }
    } ordered{order};
    order.begin(stream, what, kernel);
    return work(*this);
  }
  /// Does what a stream is asked to do: at once, or when the graph is launched that the stream is captured into. Then `work` must
  /// hold all that it needs. Throws like require_usable_stream().
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
  /// Says that a kernel was not run, and why: the program gets an error code, but it may not look.
  void not_run(const std::string& kernel, const std::string& why);
};

/// The device of this process, made by the first CUDA call. It is never destroyed, since a program may call CUDA until its very
/// end.
Device& device();

/// Memory that the host can use too: managed, or else pinned.
cudaError_t allocate_on_host(Device& device, void** pointer, std::size_t size, bool managed, unsigned flags = 0);

/// Ends a call with an error code.
struct ApiError {
  cudaError_t code;
};

/// Says once on standard error what the program cannot see from an error code, if Settings::tells.
void tell(const std::string& message);

/// Remembers an error for cudaGetLastError; hands it back.
cudaError_t remember(cudaError_t error);
/// The last error of this thread; `reset` forgets it.
cudaError_t last_error(bool reset);

/// What every function of CUDA's does around its work: one call at a time, no work after a sticky error, exceptions to error
/// codes. `work` takes the Device and returns cudaError_t.
template <typename Work>
cudaError_t api_call(const char* name, Work&& work);
/// The same for functions that wait for kernels: they also learn of errors in them.
template <typename Work>
cudaError_t synchronising_call(const char* name, Work&& work);

/// The exception in flight as an error code; what the code does not say is recorded as a finding or told.
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
