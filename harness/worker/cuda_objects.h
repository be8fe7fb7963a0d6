// Streams, events and device memory that free themselves. Destructors report nothing, because the only error they could
// meet, a fault in a kernel, was already reported by the call that waited for the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/checker.h"

namespace flash_ladder {

/// A stream that synchronises with the default stream, so that waiting for it also covers a kernel launched there by
/// mistake.
class Stream {
 public:
  Stream();
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event that records a time.
class Event {
 public:
  Event();
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  void record(const Stream& stream) { record(stream.get()); }
  void wait() const;  // blocks the host until the GPU has passed the event
  /// Milliseconds between two events, both of which have been passed.
  static double milliseconds(const Event& start, const Event& stop);

 private:
  cudaEvent_t event_ = nullptr;
};

/// Device memory between two guard bands of guard_band_bytes().
class GuardedBuffer {
 public:
  /// `name` is for messages: "O". Throws UsageError if there is not enough memory.
  GuardedBuffer(std::string name, std::int64_t bytes);
  ~GuardedBuffer() { cudaFree(allocation_); }
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;

  std::uint8_t* data() const;
  void upload(const HostBuffer& from);
  HostBuffer download() const;
  /// Enqueues filling the whole buffer with kPoison.
  void poison(const Stream& stream);
  /// What is wrong with the guard bands; nullopt if nothing is.
  std::optional<std::string> guard_damage() const;

 private:
  std::string name_;
  std::int64_t bytes_;
  std::uint8_t* allocation_ = nullptr;
};

}  // namespace flash_ladder
