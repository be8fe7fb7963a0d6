// What a device tells beyond what CUDA's functions do. A GPU tells nothing; the virtual GPU tells what it counted and what it
// found wrong. A worker program is linked with the implementation of its device: gpu_observation.cpp or
// virtual_gpu_observation.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "results/result.h"
#include "rules/protocol.h"

namespace flash_ladder {

/// Hands the device those members of a request that CUDA has no function for. To be called before CUDA is. Throws UsageError where
/// the environment asks the virtual GPU for what cannot be.
void prepare_device(const Request& request);

/// Makes launches end early, with an error, once this is true; nullptr: no longer. Those on a GPU go on to their end.
void end_launches_when(const std::atomic<bool>* asked);

/// Whether the device may say on standard error why it answers with an error, as it does at first. A GPU says nothing.
void let_device_tell(bool allowed);

/// Whether a launch is worth something even when it is neither checked nor timed: it is counted.
bool device_counts();

/// How large the guard bands around every buffer are to be. None for the virtual GPU: it knows where each allocation ends, and
/// would take an access to a band for one that is allowed.
std::int64_t guard_band_bytes();

/// Tells the device that a buffer was filled with poison: to read it is wrong until it is written again.
void mark_poisoned(const void* device_pointer, std::int64_t bytes);

/// Whether `launch` starts fewer CTAs where there are fewer SMs, since each of them then takes several query tiles. Nothing runs.
/// False for a GPU: it has the SMs that it has.
bool has_persistent_ctas(const std::function<void()>& launch);

/// Makes the virtual GPU say that it has so many SMs, for as long as this lives; 0: as many as before. A GPU takes no notice.
class FewSms {
 public:
  explicit FewSms(int count);
  ~FewSms();
  FewSms(const FewSms&) = delete;
  FewSms& operator=(const FewSms&) = delete;

 private:
  int before_;
};

/// What was counted of the launches since the last call; nothing for a GPU.
struct Observation {
  std::optional<Counters> counters;
  std::vector<LineCounters> lines;
  std::vector<emulator::Role> roles;                              // of the first kernel that has any
  std::string ptx_hash;                                           // of what was counted: see source/compiled_text.h
  std::vector<std::shared_ptr<const emulator::CtaTrace>> traces;  // see Request::trace
};
Observation take_observation();

/// Adds to the result what the device has found wrong since the last call. With a finding the result is wrong, whatever its
/// output is like.
/// Returns whether there was any.
bool add_findings(Result& result);

}  // namespace flash_ladder
