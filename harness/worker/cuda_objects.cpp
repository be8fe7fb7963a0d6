#include "worker/cuda_objects.h"

#include <fmt/format.h>

#include <utility>

#include "errors.h"
#include "problem/format_bytes.h"
#include "worker/cuda_check.h"
#include "worker/observation.h"

namespace flash_ladder {
namespace {

std::int64_t guard_elements() { return guard_band_bytes() / static_cast<std::int64_t>(sizeof(std::uint16_t)); }

}  // namespace

Stream::Stream() { check(cudaStreamCreate(&stream_), "creating a stream"); }

Event::Event() { check(cudaEventCreate(&event_), "creating an event"); }

void Event::record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }

void Event::wait() const { check(cudaEventSynchronize(event_), "waiting for the GPU"); }

double Event::milliseconds(const Event& start, const Event& stop) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, start.event_, stop.event_), "reading the time between two events");
  return milliseconds;
}

GuardedBuffer::GuardedBuffer(std::string name, std::int64_t bytes) : name_(std::move(name)), bytes_(bytes) {
  const std::int64_t needed = bytes + 2 * guard_band_bytes();
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, needed);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is not sticky, and the next call must not report it
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "querying the free GPU memory");
    throw UsageError(fmt::format("{} needs {} more of GPU memory, but {} of {} are free; use a smaller problem", name_,
                                 format_bytes(needed), format_bytes(free), format_bytes(total)));
  }
  check(error, fmt::format("allocating {} for {}", format_bytes(needed), name_));
  allocation_ = static_cast<std::uint8_t*>(pointer);

  try {
    const std::vector<std::uint16_t> band(guard_elements(), kGuard);
    for (std::uint8_t* start : {allocation_, data() + bytes_})
      check(cudaMemcpy(start, band.data(), guard_band_bytes(), cudaMemcpyHostToDevice),
            "filling a guard band of " + name_);
  } catch (...) {
    cudaFree(allocation_);
    throw;
  }
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : name_(std::move(other.name_)), bytes_(other.bytes_), allocation_(std::exchange(other.allocation_, nullptr)) {}

std::uint8_t* GuardedBuffer::data() const { return allocation_ + guard_band_bytes(); }

void GuardedBuffer::upload(const HostBuffer& from) {
  check(cudaMemcpy(data(), from.data(), from.bytes(), cudaMemcpyHostToDevice),
        fmt::format("copying {} to the GPU", name_));
}

HostBuffer GuardedBuffer::download() const {
  HostBuffer to(bytes_ / static_cast<std::int64_t>(sizeof(std::uint16_t)));
  check(cudaMemcpy(to.data(), data(), to.bytes(), cudaMemcpyDeviceToHost),
        fmt::format("copying {} from the GPU", name_));
  return to;
}

void GuardedBuffer::poison(const Stream& stream) {
  static_assert(kPoison == 0xffff, "two bytes of 0xff");
  check(cudaMemsetAsync(data(), 0xff, bytes_, stream.get()), fmt::format("filling {} with NaN", name_));
  mark_poisoned(data(), bytes_);
}

std::optional<std::string> GuardedBuffer::guard_damage() const {
  std::vector<std::uint16_t> before(guard_elements()), after(guard_elements());
  check(cudaMemcpy(before.data(), allocation_, guard_band_bytes(), cudaMemcpyDeviceToHost),
        "reading a guard band of " + name_);
  check(cudaMemcpy(after.data(), data() + bytes_, guard_band_bytes(), cudaMemcpyDeviceToHost),
        "reading a guard band of " + name_);
  return find_guard_damage(name_, before, after);
}

}  // namespace flash_ladder
