// What orders the work of streams and of the host: events, synchronisation, the legacy default stream. Everything is done when the
// call that asks for it returns, so that the order that a program has forgotten makes no difference here; this finds it out.
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

/// How much of the work of each stream has been done: of stream s, the first clock[s] pieces.
using StreamClock = std::map<cudaStream_t, std::uint64_t>;

/// Adds to a clock what another one knows.
void join(StreamClock& clock, const StreamClock& other);

class StreamOrder {
 public:
  using Report = std::function<void(Finding)>;
  explicit StreamOrder(Report report) : report_(std::move(report)) {}

  /// Nothing is looked at before the program makes a stream, or memory that host and device share: until then all is in order.
  void watch() { watches_ = true; }
  bool watches() const { return watches_; }

  void add_stream(cudaStream_t stream, bool waits_for_legacy);
  void remove_stream(cudaStream_t stream);

  /// Work in a stream: what it touches is told between begin() and end(). `what`: "cudaMemcpyAsync", "the kernel f"; then
  /// with its mangled name.
  void begin(cudaStream_t stream, const std::string& what, const std::string& kernel = {});
  void touch(const UsedMemory& range);
  void end();

  /// A function of the host begins as work of a stream: what comes before it there is done. It may say so to any thread of the host, in
  /// ways that cannot be seen here, so the host has waited for that. In the launch of a graph: for all of the launch.
  void host_function(cudaStream_t stream);

  void record(StreamClock& event, cudaStream_t stream) const;
  void wait(cudaStream_t stream, const StreamClock& event);
  /// The host waits for a stream, for an event, or for all.
  void host_waits(cudaStream_t stream);
  void host_waits_for(const StreamClock& event);
  void host_waits_for_all();

  /// Memory that the host can reach, whole pages: while work that it has not waited for reads or writes there, the host must not.
  void share(void* host, std::size_t size);
  void unshare(void* host);
  /// Whether the host touched such memory too early at this address; then it is a finding, and the host may go on. For the handler of
  /// SIGSEGV.
  bool host_touched(const void* address);

 private:
  struct Work {
    cudaStream_t stream;
    std::uint64_t number;  // among those of its stream, from 1
    std::string what;
    HostPlace place;
    std::vector<UsedMemory> ranges;
  };
  bool known(const StreamClock& clock, const Work& work) const;
  static std::string asked_for(const Work& work);
  void forget_what_the_host_knows();
  std::string name_of(cudaStream_t stream) const;
  void protect();
  void unprotect();

  Report report_;
  bool watches_ = false;
  struct StreamState {
    StreamClock clock;
    bool waits_for_legacy = true;
    int number = 0;
  };
  std::map<cudaStream_t, StreamState> streams_;
  int numbers_ = 0;
  StreamClock host_;
  std::vector<Work> done_;  // that the host has not waited for
  Work now_{};
  int depth_ = 0;
  struct Shared {
    std::size_t size;
    bool is_protected;
  };
  std::map<Address, Shared> shared_;
};

}  // namespace flash_ladder::emulator::runtime
