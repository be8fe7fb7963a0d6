#include "rules/support.h"
#include "worker/observation.h"

namespace flash_ladder {

void prepare_device(const Request& /*request*/) {}

void end_launches_when(const std::atomic<bool>* /*asked*/) {}

void let_device_tell(bool /*allowed*/) {}

bool device_counts() { return false; }

std::int64_t guard_band_bytes() { return kGuardBytes; }

void mark_poisoned(const void* /*device_pointer*/, std::int64_t /*bytes*/) {}

Observation take_observation() { return {}; }

bool add_findings(Result& /*result*/) { return false; }

}  // namespace flash_ladder
