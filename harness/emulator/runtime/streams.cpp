// Streams and events. All work is done when the call that asks for it returns, so there is nothing to wait for; waiting still
// tells of errors in kernels, as it does on a GPU.
#include <limits>
#include <memory>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

/// Of a stream that the program made.
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

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in none

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return api_call("cudaStreamCreate", [&](Device& device) {
    if (stream == nullptr) return cudaErrorInvalidValue;
    auto own = std::make_unique<Stream>(Stream{.flags = flags, .priority = priority});
    device.streams.insert(own.get());
    *stream = reinterpret_cast<cudaStream_t>(own.release());
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
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return synchronising_call("cudaStreamSynchronize", [&](Device& device) {
    device.require_stream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return api_call("cudaStreamWaitEvent", [&](Device& device) {
    device.require_stream(stream);
    require_event(device, event);
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
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned /*flags*/) {
  const cudaError_t error = api_call("cudaStreamAddCallback", [&](Device& device) {
    device.require_stream(stream);
    return callback == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
  if (error == cudaSuccess) callback(stream, cudaSuccess, data);
  return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const cudaError_t error = api_call("cudaLaunchHostFunc", [&](Device& device) {
    device.require_stream(stream);
    return function == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
  if (error == cudaSuccess) function(data);
  return error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return api_call("cudaEventCreate", [&](Device& device) {
    if (event == nullptr) return cudaErrorInvalidValue;
    auto own = std::make_unique<Event>();
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
    device.require_stream(stream);
    require_event(device, event).recorded = true;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return synchronising_call("cudaEventSynchronize", [&](Device& device) {
    require_event(device, event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

// The virtual GPU has no clock, and an invented time would be believed. A program that does not look at the error gets NaN.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api_call("cudaEventElapsedTime", [&](Device& device) {
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    const bool recorded = require_event(device, start).recorded && require_event(device, end).recorded;
    if (!recorded) return cudaErrorInvalidResourceHandle;
    tell("cudaEventElapsedTime answers cudaErrorNotSupported: the virtual GPU has no clock. Times need a real GPU.");
    *milliseconds = std::numeric_limits<float>::quiet_NaN();
    return cudaErrorNotSupported;
  });
}

}  // extern "C"
