// Streams, graphs and events. All work is done by the time the requesting call returns, so there is nothing to wait
// for; calls that wait still report errors in kernels, as on a GPU.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

/// The Stream that the program created.
Stream& own_stream(const Device& device, cudaStream_t stream) {
  auto* own = reinterpret_cast<Stream*>(stream);
  if (!device.streams.contains(own)) throw ApiError{cudaErrorInvalidResourceHandle};
  return *own;
}

Event& require_event(const Device& device, cudaEvent_t event) {
  auto* own = reinterpret_cast<Event*>(event);
  if (!device.events.contains(own)) throw ApiError{cudaErrorInvalidResourceHandle};
  return *own;
}

/// The Graph of a graph, or of one that is ready to be launched.
template <typename Handle>
Graph& require_graph(const Device& device, Handle handle) {
  auto* own = reinterpret_cast<Graph*>(handle);
  if (!device.graphs.contains(own)) throw ApiError{cudaErrorInvalidValue};
  return *own;
}

/// A host function that runs when the preceding work in a stream is done. It may wait for other threads, which may call
/// CUDA meanwhile.
template <typename Call>
void call_host(cudaStream_t stream, Call call) {
  Device& device = runtime::device();
  {
    const std::lock_guard lock(device.mutex);
    device.begin_host_function(stream);
  }
  call();
  const std::lock_guard lock(device.mutex);
  device.end_host_function(stream);
}

Graph* new_graph(Device& device, const Graph& copy) {
  auto own = std::make_unique<Graph>(copy);
  device.graphs.insert(own.get());
  return own.release();
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return api_call("cudaStreamCreate", [&](Device& device) {
    if (stream == nullptr) return cudaErrorInvalidValue;
    auto own = std::make_unique<Stream>(
        Stream{.flags = flags, .priority = std::clamp(priority, kGreatestPriority, 0), .id = ++device.last_stream_id});
    device.streams.insert(own.get());
    *stream = reinterpret_cast<cudaStream_t>(own.release());
    device.order.add_stream(*stream, (flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api_call("cudaStreamDestroy", [&](Device& device) {
    const std::unique_ptr<Stream> own(&own_stream(device, stream));
    device.streams.erase(own.get());
    device.order.remove_stream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return synchronising_call("cudaStreamSynchronize", [&](Device& device) {
    device.require_usable_stream(stream);
    device.refuse_to_wait_for_capture(stream);
    device.order.host_waits(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return api_call("cudaStreamWaitEvent", [&](Device& device) {
    device.require_usable_stream(stream);
    // A stream that waits for work that is being captured joins the capture.
    const Event& awaited = require_event(device, event);
    const std::shared_ptr<Graph> graph = awaited.capture.lock();
    auto* own = reinterpret_cast<Stream*>(stream);
    if (graph != nullptr && device.streams.contains(own)) {
      own->capture = graph;
      join(own->captured, awaited.captured);
    }
    if (graph == nullptr) device.order.wait(stream, awaited.done);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return api_call("cudaStreamGetFlags", [&](Device& device) {
    device.require_stream(stream);
    if (flags == nullptr) return cudaErrorInvalidValue;
    auto* own = reinterpret_cast<Stream*>(stream);
    *flags = device.streams.contains(own) ? own->flags : cudaStreamDefault;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return api_call("cudaStreamGetPriority", [&](Device& device) {
    device.require_stream(stream);
    if (priority == nullptr) return cudaErrorInvalidValue;
    auto* own = reinterpret_cast<Stream*>(stream);
    *priority = device.streams.contains(own) ? own->priority : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return api_call("cudaStreamGetId", [&](Device& device) {
    device.require_stream(stream);
    if (id == nullptr) return cudaErrorInvalidValue;
    auto* own = reinterpret_cast<Stream*>(stream);
    *id = device.streams.contains(own) ? own->id : stream == cudaStreamPerThread ? 2 : 1;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return api_call("cudaStreamGetDevice", [&](Device& state) {
    state.require_stream(stream);
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return api_call("cudaStreamIsCapturing", [&](Device& device) {
    device.require_stream(stream);
    if (status == nullptr) return cudaErrorInvalidValue;
    const Graph* graph = device.capture_of(stream);
    *status = graph == nullptr     ? cudaStreamCaptureStatusNone
              : graph->invalidated ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned /*flags*/) {
  const cudaError_t error = api_call("cudaStreamAddCallback", [&](Device& device) {
    device.require_usable_stream(stream);
    return callback == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
  if (error == cudaSuccess) call_host(stream, [&] { callback(stream, cudaSuccess, data); });
  return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  bool now = true;
  const cudaError_t error = api_call("cudaLaunchHostFunc", [&](Device& device) {
    device.require_usable_stream(stream);
    if (function == nullptr) return cudaErrorInvalidValue;
    now = device.capture_of(stream) == nullptr;
    if (now) return cudaSuccess;
    return device.on_stream(stream, [=](Device& then) {
      then.order.host_function(stream);
      function(data);
      return cudaSuccess;
    });
  });
  if (error == cudaSuccess && now) call_host(stream, [&] { function(data); });
  return error;
}

// ---- Graphs: what a stream was told to do, to be repeated. Adding nodes explicitly is not supported: a graph that the
// program creates is empty, and stays so. ----

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return api_call("cudaGraphCreate", [&](Device& device) {
    if (graph == nullptr || flags != 0) return cudaErrorInvalidValue;
    *graph = reinterpret_cast<cudaGraph_t>(new_graph(device, Graph()));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return api_call("cudaStreamBeginCapture", [&](Device& device) {
    device.require_stream(stream);
    auto* own = reinterpret_cast<Stream*>(stream);
    if (!device.streams.contains(own)) return cudaErrorStreamCaptureUnsupported;  // the legacy stream
    if (own->capture != nullptr) return cudaErrorIllegalState;
    own->capture = std::make_shared<Graph>();
    own->began_capture = true;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return api_call("cudaStreamEndCapture", [&](Device& device) {
    Stream& own = own_stream(device, stream);
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    if (own.capture == nullptr) return cudaErrorIllegalState;
    if (!own.began_capture) return cudaErrorStreamCaptureUnmatched;
    const std::shared_ptr<Graph> captured = own.capture;
    own.began_capture = false;
    const StreamClock joined = own.captured;
    bool all_joined = true;
    for (Stream* other : device.streams) {
      if (other->capture != captured) continue;
      const auto handle = reinterpret_cast<cudaStream_t>(other);
      const auto known = joined.find(handle);
      all_joined &= other->captured[handle] <= (known == joined.end() ? 0 : known->second);
      other->capture = nullptr;
      other->captured.clear();
    }
    if (captured->invalidated) return cudaErrorStreamCaptureInvalidated;
    if (!all_joined) return cudaErrorStreamCaptureUnjoined;
    *graph = reinterpret_cast<cudaGraph_t>(new_graph(device, *captured));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  return api_call("cudaGraphInstantiate", [&](Device& device) {
    const Graph& own = require_graph(device, graph);
    if (executable == nullptr) return cudaErrorInvalidValue;
    *executable = reinterpret_cast<cudaGraphExec_t>(new_graph(device, own));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return api_call("cudaGraphUpload", [&](Device& device) {
    device.require_stream(stream);
    require_graph(device, executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return api_call("cudaGraphLaunch", [&](Device& device) {
    const Graph copy = require_graph(device, executable);  // a host function may destroy it
    return device.on_stream(stream, [copy](Device& then) {
      for (const Graph::Piece& piece : copy.work) {
        if (!std::string_view(piece.call).starts_with("cudaLaunchKernel")) then.used_by_kernel_ahead.clear();
        if (const cudaError_t error = piece.work(then); error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  });
}

// The pieces of work are in the order of the calls that requested them: graphs with the same number and kinds of pieces
// count as the same.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  return api_call("cudaGraphExecUpdate", [&](Device& device) {
    Graph& old = require_graph(device, executable);
    const Graph& updated = require_graph(device, graph);
    if (result == nullptr) return cudaErrorInvalidValue;
    const bool as_many = old.work.size() == updated.work.size();
    const bool alike = as_many && std::equal(old.work.begin(), old.work.end(), updated.work.begin(),
                                             [](const Graph::Piece& a, const Graph::Piece& b) {
                                               return std::string_view(a.call) == b.call;
                                             });
    *result = {.result = alike     ? cudaGraphExecUpdateSuccess
                         : as_many ? cudaGraphExecUpdateErrorNodeTypeChanged
                                   : cudaGraphExecUpdateErrorTopologyChanged,
               .errorNode = nullptr,
               .errorFromNode = nullptr};
    if (!alike) return cudaErrorGraphExecUpdateFailure;
    old = updated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return api_call("cudaGraphDestroy", [&](Device& device) {
    const std::unique_ptr<Graph> own(&require_graph(device, graph));
    device.graphs.erase(own.get());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(executable));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return api_call("cudaThreadExchangeStreamCaptureMode",
                  [&](Device&) { return mode == nullptr ? cudaErrorInvalidValue : cudaSuccess; });
}

// ---- Events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api_call("cudaEventCreate", [&](Device& device) {
    if (event == nullptr) return cudaErrorInvalidValue;
    auto own = std::make_unique<Event>(Event{.timed = (flags & cudaEventDisableTiming) == 0});
    device.events.insert(own.get());
    *event = reinterpret_cast<cudaEvent_t>(own.release());
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api_call("cudaEventDestroy", [&](Device& device) {
    const std::unique_ptr<Event> own(&require_event(device, event));
    device.events.erase(own.get());
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api_call("cudaEventRecord", [&](Device& device) {
    device.require_usable_stream(stream);
    Event& own = require_event(device, event);
    own.recorded = std::chrono::steady_clock::now();
    const auto* from = reinterpret_cast<Stream*>(stream);
    const bool captured = device.capture_of(stream) != nullptr;
    own.capture = captured ? from->capture : nullptr;
    if (captured) own.captured = from->captured;
    if (own.capture.expired()) device.order.record(own.done, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return synchronising_call("cudaEventSynchronize", [&](Device& device) {
    const Event& own = require_event(device, event);
    if (const std::shared_ptr<Graph> graph = own.capture.lock(); graph != nullptr) {
      device.break_capture(
          *graph, cudaErrorCapturedEvent,
          "cannot wait for an event of a stream that is being captured: the work before it has not begun");
    }
    device.order.host_waits_for(own.done);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

// Only host time passes. Programs that check errors continue, and a message says once what they have measured.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api_call("cudaEventElapsedTime", [&](Device& device) {
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    const Event &first = require_event(device, start), &last = require_event(device, end);
    const bool timed = first.timed && last.timed;
    if (!timed || !first.recorded || !last.recorded) return cudaErrorInvalidResourceHandle;
    print_once(
        "cudaEventElapsedTime gives the time that the virtual GPU took on this computer. It says nothing about the "
        "time on a GPU: report neither such times nor their ratios.");
    *milliseconds = std::chrono::duration<float, std::milli>(*last.recorded - *first.recorded).count();
    return cudaSuccess;
  });
}

}  // extern "C"
