// The order between the work of streams and of the host: events, synchronisation, the legacy default stream. All work is
// done by the time the requesting call returns, so missing synchronisation has no effect here; this class detects it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator/memory.h"
#include "emulator/report.h"
#include "emulator/runtime/host_place.h"
#include "emulator/used_memory.h"

namespace flash_ladder::emulator::runtime {

/// How much of each stream's work has been done: for stream s, the first clock[s] pieces.
using StreamClock = std::map<cudaStream_t, std::uint64_t>;

/// Merges another clock into a clock.
void join(StreamClock& clock, const StreamClock& other);

class StreamOrder {
 public:
  using Report = std::function<void(Finding)>;
  explicit StreamOrder(Report report) : report_(std::move(report)) {}

  /// Nothing is checked before the program creates a stream, or memory that host and device share: until then
  /// everything is ordered.
  void watch() { watches_ = true; }
  bool watches() const { return watches_; }

  void add_stream(cudaStream_t stream, bool waits_for_legacy);
  void remove_stream(cudaStream_t stream);

  /// Work in a stream: its memory accesses are reported between begin() and end(). `what`: "cudaMemcpyAsync", "the
  /// kernel f"; for a kernel, its mangled name follows.
  void begin(cudaStream_t stream, const std::string& what, const std::string& kernel = {});
  void touch(const UsedMemory& range);
  void end();

  /// A host function begins as work of a stream: the work before it in the stream is done. It may signal that to any
  /// thread of the host, in ways that cannot be observed here, so the host is assumed to have waited for that work. In
  /// the launch of a graph: for the whole launch.
  void host_function(cudaStream_t stream);

  void record(StreamClock& event, cudaStream_t stream) const;
  void wait(cudaStream_t stream, const StreamClock& event);
  /// The host waits for a stream, for an event, or for everything.
  void host_waits(cudaStream_t stream);
  void host_waits_for(const StreamClock& event);
  void host_waits_for_all();

  /// Memory that the host can access, in whole pages: the host must not access it while work that it has not waited for
  /// reads or writes there.
  void share(void* host, std::size_t size);
  void unshare(void* host);
  /// Whether the host accessed such memory at this address too early; that is then a finding, and the host may
  /// continue. For the handler of SIGSEGV.
  bool host_touched(const void* address);

 private:
  struct Work {
    cudaStream_t stream;
    std::uint64_t number;  // number within its stream, from 1
    std::string what;
    HostPlace place;
    std::vector<UsedMemory> ranges;
  };
  static bool known(const StreamClock& clock, const Work& work);
  static std::string asked_for(const Work& work);
  void forget_what_the_host_knows();
  void forget_ended_streams();
  std::string name_of(cudaStream_t stream) const;
  void protect();
  void unprotect();

  Report report_;
  bool watches_ = false;
  struct StreamState {
    StreamClock clock;
    bool waits_for_legacy = true;
    int number = 0;
    bool has_ended = false;
  };
  std::map<cudaStream_t, StreamState> streams_;
  int numbers_ = 0;
  StreamClock host_;
  std::vector<Work> done_;  // work that the host has not waited for
  Work now_{};
  int depth_ = 0;
  struct Shared {
    std::size_t size;
    bool is_protected;
  };
  std::map<Address, Shared> shared_;
};

}  // namespace flash_ladder::emulator::runtime
