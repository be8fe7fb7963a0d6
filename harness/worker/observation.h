// What a device reports beyond CUDA's functions. A GPU reports nothing; the virtual GPU reports its counts and its
// findings. A worker program is linked with the implementation for its device: gpu_observation.cpp or
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

/// Passes on to the device the members of a request for which CUDA has no function. Must be called before CUDA. Throws
/// UsageError if an environment variable requests the impossible from the virtual GPU.
void prepare_device(const Request& request);

/// Makes launches end early, with an error, once this flag is true; nullptr withdraws the flag. Launches on a GPU run
/// to their end.
void end_launches_when(const std::atomic<bool>* asked);

/// Whether the device may explain on standard error why it answers with an error, which is the default. A GPU prints
/// nothing.
void let_device_explain_errors(bool allowed);

/// Whether a launch is useful even if it is neither checked nor timed, because it is counted.
bool device_counts();

/// The size of the guard bands around every buffer. 0 for the virtual GPU, which knows where each allocation ends and
/// would take an access to a band for a permitted one.
std::int64_t guard_band_bytes();

/// Tells the device that a buffer was filled with poison: reading it is an error until it is written again.
void mark_poisoned(const void* device_pointer, std::int64_t bytes);

/// Whether `launch` starts fewer CTAs on fewer SMs, because each of them then takes several query tiles. Nothing runs.
/// False for a GPU, whose number of SMs is fixed.
bool has_persistent_ctas(const std::function<void()>& launch);

/// Makes the virtual GPU report this many SMs for the lifetime of this object; 0: no change. Has no effect on a GPU.
class FewSms {
 public:
  explicit FewSms(int count);
  ~FewSms();
  FewSms(const FewSms&) = delete;
  FewSms& operator=(const FewSms&) = delete;

 private:
  int before_;
};

/// What was counted for the launches since the last call; empty for a GPU.
struct Observation {
  std::optional<Counters> counters;
  std::vector<LineCounters> lines;
  std::vector<emulator::Role> roles;                              // of the first kernel that has roles
  std::string ptx_hash;                                           // of the counted text: see source/compiled_text.h
  std::vector<std::shared_ptr<const emulator::CtaTrace>> traces;  // see Request::trace
};
Observation take_observation();

/// Adds to the result what the device has found wrong since the last call. A finding makes the result wrong, whatever
/// its output. Returns whether there was a finding.
bool add_findings(Result& result);

}  // namespace flash_ladder
