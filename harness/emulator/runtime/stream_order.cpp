#include "emulator/runtime/stream_order.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace flash_ladder::emulator::runtime {
namespace {

constexpr Address kPage = 4096;
// At most this much unsynchronised work is remembered.
constexpr std::size_t kMostWork = 512;

bool in_conflict(const UsedMemory& a, const UsedMemory& b) {
  const auto contains = [](const UsedMemory& all, const UsedMemory& part) {
    return all.begin <= part.begin && part.end <= all.end;
  };
  if (a.end <= b.begin || b.end <= a.begin || !(a.writes || b.writes)) return false;
  return !(a.somewhere && !contains(b, a)) && !(b.somewhere && !contains(a, b));
}

/// A verb for the memory access of work.
const char* does(const std::string& what, bool writes) {
  if (what == "cudaMallocAsync") return "allocates";
  if (what == "cudaFreeAsync") return "frees";
  return writes ? "writes" : "reads";
}

Address page_of(Address address) { return address / kPage * kPage; }

// Whether the first `number` pieces of the stream's work are done.
bool knows(const StreamClock& clock, cudaStream_t stream, std::uint64_t number) {
  const auto found = clock.find(stream);
  return found != clock.end() && number <= found->second;
}

}  // namespace

void join(StreamClock& clock, const StreamClock& other) {
  for (const auto& [stream, number] : other) {
    std::uint64_t& own = clock[stream];
    own = std::max(own, number);
  }
}

void StreamOrder::add_stream(cudaStream_t stream, bool waits_for_legacy) {
  watch();
  streams_[stream] = {.clock = {}, .waits_for_legacy = waits_for_legacy, .number = ++numbers_};
}

// The destroyed stream's work may still be in flight, and what waits for this stream must still wait for it.
void StreamOrder::remove_stream(cudaStream_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  // The handle may be given to another stream, so work in flight gets a handle that no stream has.
  static char ended[1 << 16];
  static std::size_t next = 0;
  const auto handle = reinterpret_cast<cudaStream_t>(&ended[next++ % sizeof ended]);
  const auto rename = [&](StreamClock& clock) {
    if (const auto entry = clock.find(stream); entry != clock.end()) {
      clock[handle] = entry->second;
      clock.erase(stream);
    }
  };
  streams_[handle] = found->second;
  streams_[handle].has_ended = true;
  streams_.erase(stream);
  for (auto& [other, state] : streams_) rename(state.clock);
  rename(host_);
  for (Work& work : done_) {
    if (work.stream == stream) work.stream = handle;
  }
  forget_ended_streams();
}

std::string StreamOrder::name_of(cudaStream_t stream) const {
  if (stream == nullptr || stream == cudaStreamLegacy) return "the default stream";
  const auto found = streams_.find(stream);
  return found == streams_.end() || found->second.number == 0 ? "the thread's default stream"
                                                              : "stream " + std::to_string(found->second.number);
}

std::string StreamOrder::asked_for(const Work& work) {
  const SourcePosition position = line_of(work.place);
  return position.empty() ? "" : "; " + work.what + " was requested at " + to_string(position);
}

bool StreamOrder::known(const StreamClock& clock, const Work& work) { return knows(clock, work.stream, work.number); }

void StreamOrder::forget_what_the_host_knows() {
  std::erase_if(done_, [&](const Work& work) { return known(host_, work); });
  forget_ended_streams();
}

// All work that begins later comes after what the host knows. So an ended stream that knows no more than the host does not
// order anything. Without this, each launch of a program with a stream per launch would take longer than the one before.
void StreamOrder::forget_ended_streams() {
  const auto host_knows = [&](const auto& entry) {
    const auto& [stream, number] = entry;
    const bool is_forgotten = !streams_.contains(stream);  // events may still name it
    return is_forgotten || knows(host_, stream, number);
  };
  std::vector<cudaStream_t> forgotten;
  for (const auto& [stream, state] : streams_)
    if (state.has_ended && std::ranges::all_of(state.clock, host_knows)) forgotten.push_back(stream);
  for (cudaStream_t stream : forgotten) {
    streams_.erase(stream);
    host_.erase(stream);
    for (auto& [other, state] : streams_) state.clock.erase(stream);
  }
}

void StreamOrder::begin(cudaStream_t stream, const std::string& what, const std::string& kernel) {
  if (!watches_ || depth_++ != 0) return;
  unprotect();
  if (stream == cudaStreamLegacy) stream = nullptr;
  StreamState& state = streams_[stream];
  join(state.clock, host_);
  // The legacy default stream and the streams that synchronise with it wait for each other.
  if (stream == nullptr) {
    for (const auto& [other, of_other] : streams_) {
      if (of_other.waits_for_legacy) join(state.clock, of_other.clock);
    }
  } else if (state.waits_for_legacy) {
    join(state.clock, streams_[nullptr].clock);
  }
  now_ = {.stream = stream, .number = ++state.clock[stream], .what = what, .place = host_place(kernel), .ranges = {}};
  forget_what_the_host_knows();
}

void StreamOrder::touch(const UsedMemory& range) {
  if (depth_ == 0 || range.begin == range.end) return;
  const StreamClock& clock = streams_[now_.stream].clock;
  for (const Work& work : done_) {
    if (known(clock, work)) continue;
    for (const UsedMemory& other : work.ranges) {
      if (!in_conflict(range, other)) continue;
      Finding finding;
      finding.kind = FindingKind::race;
      finding.message =
          now_.what + " in " + name_of(now_.stream) + " " + does(now_.what, range.writes) + " what " + work.what +
          " in " + name_of(work.stream) + " " + does(work.what, other.writes) +
          ", and nothing orders the two: let one stream wait for an event of the other (cudaStreamWaitEvent), or the host for one "
          "(cudaStreamSynchronize)";
      finding.address = std::max(other.begin, range.begin);
      finding.position = line_of(now_.place);
      finding.message += asked_for(work);
      report_(std::move(finding));
      break;
    }
  }
  now_.ranges.push_back(range);
}

void StreamOrder::end() {
  if (depth_ == 0 || --depth_ != 0) return;
  // Repeating the same work adds no information, and a loop of launches would fill the list.
  std::erase_if(done_, [&](const Work& work) {
    return work.stream == now_.stream && work.what == now_.what &&
           std::equal(work.ranges.begin(), work.ranges.end(), now_.ranges.begin(), now_.ranges.end(),
                      [](const UsedMemory& a, const UsedMemory& b) {
                        return a.begin == b.begin && a.end == b.end && a.writes == b.writes &&
                               a.of_system == b.of_system;
                      });
  });
  if (done_.size() >= kMostWork) done_.erase(done_.begin());
  if (!known(host_, now_)) done_.push_back(now_);
  protect();
}

void StreamOrder::host_function(cudaStream_t stream) {
  if (depth_ != 0) return join(host_, streams_[now_.stream].clock);
  begin(stream, "a function of the host");
  end();
  host_waits(stream);
}

void StreamOrder::record(StreamClock& event, cudaStream_t stream) const {
  const auto found = streams_.find(stream == cudaStreamLegacy ? nullptr : stream);
  event = found == streams_.end() ? StreamClock() : found->second.clock;
  if (stream == nullptr || stream == cudaStreamLegacy) {  // it waits for the other streams
    for (const auto& [other, state] : streams_) {
      if (state.waits_for_legacy) join(event, state.clock);
    }
  }
}

void StreamOrder::wait(cudaStream_t stream, const StreamClock& event) {
  join(streams_[stream == cudaStreamLegacy ? nullptr : stream].clock, event);
}

void StreamOrder::host_waits(cudaStream_t stream) {
  StreamClock clock;
  record(clock, stream);
  host_waits_for(clock);
}

void StreamOrder::host_waits_for(const StreamClock& event) {
  if (!watches_) return;
  unprotect();
  join(host_, event);
  forget_what_the_host_knows();
  protect();
}

void StreamOrder::host_waits_for_all() {
  if (!watches_) return;
  for (const auto& [stream, state] : streams_) join(host_, state.clock);
  forget_what_the_host_knows();
  unprotect();
}

void StreamOrder::share(void* host, std::size_t size) {
  watch();
  shared_[reinterpret_cast<Address>(host)] = {.size = (size + kPage - 1) / kPage * kPage, .is_protected = false};
}

void StreamOrder::unshare(void* host) {
  unprotect();
  shared_.erase(reinterpret_cast<Address>(host));
}

// Memory with unsynchronised writes cannot be read, and memory with unsynchronised reads cannot be written. Protection
// has the granularity of the processor's pages; host_touched() knows the bytes.
void StreamOrder::protect() {
  for (auto& [address, shared] : shared_) {
    for (const bool writes : {false, true}) {
      for (const Work& work : done_) {
        for (const UsedMemory& range : work.ranges) {
          if (range.of_system || range.writes != writes || range.end <= address || range.begin >= address + shared.size)
            continue;
          const Address begin = std::max(page_of(range.begin), address),
                        end = std::min(page_of(range.end + kPage - 1), address + shared.size);
          mprotect(reinterpret_cast<void*>(begin), end - begin, writes ? PROT_NONE : PROT_READ);
          shared.is_protected = true;
        }
      }
    }
  }
}

void StreamOrder::unprotect() {
  for (auto& [address, shared] : shared_) {
    if (!std::exchange(shared.is_protected, false)) continue;
    mprotect(reinterpret_cast<void*>(address), shared.size, PROT_READ | PROT_WRITE);
  }
}

bool StreamOrder::host_touched(const void* touched) {
  const Address address = reinterpret_cast<Address>(touched);
  auto after = shared_.upper_bound(address);
  if (after == shared_.begin()) return false;
  const auto& [begin, shared] = *std::prev(after);
  if (address - begin >= shared.size || !shared.is_protected) return false;
  mprotect(reinterpret_cast<void*>(page_of(address)), kPage, PROT_READ | PROT_WRITE);
  // The access has at most 64 bytes, and the first inaccessible one is known.
  for (const Work& work : done_) {
    for (const UsedMemory& range : work.ranges) {
      if (range.of_system || address + 1 <= range.begin || range.end <= address) continue;
      Finding finding;
      finding.kind = FindingKind::race;
      finding.address = address;
      finding.message = std::string("the host ") + (range.writes ? "touches" : "writes to") + " memory that " +
                        work.what + " in " + name_of(work.stream) + " " + (range.writes ? "writes" : "reads") +
                        ", and has not waited for that: cudaStreamSynchronize or cudaDeviceSynchronize must come first";
      finding.position = line_of(host_place());
      finding.message += asked_for(work);
      report_(std::move(finding));
      return true;
    }
  }
  return true;  // it was a neighbour on the same page
}

}  // namespace flash_ladder::emulator::runtime
