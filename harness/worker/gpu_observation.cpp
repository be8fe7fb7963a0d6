#include "rules/support.h"
#include "worker/observation.h"

namespace flash_ladder {

void prepare_device(const Request& /*request*/) {}

void end_launches_when(const std::atomic<bool>* /*asked*/) {}

void let_device_explain_errors(bool /*allowed*/) {}

bool device_counts() { return false; }

std::int64_t guard_band_bytes() { return kGuardBytes; }

void mark_poisoned(const void* /*device_pointer*/, std::int64_t /*bytes*/) {}

bool has_persistent_ctas(const std::function<void()>& /*launch*/) { return false; }

FewSms::FewSms(int /*count*/) : before_(0) {}

FewSms::~FewSms() = default;

Observation take_observation() { return {}; }

bool add_findings(Result& /*result*/) { return false; }

}  // namespace flash_ladder
