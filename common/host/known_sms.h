// The compute capabilities of host/sm_limits.h as text; separate, as kernels include that header and <string> takes long to parse.
#pragma once

#include <string>

#include "host/sm_limits.h"

namespace flash_ladder {

/// "80, 86, 89 and 90", for messages; `before_last` precedes the last.
inline std::string known_sms(const std::string& before_last = " and ") {
  std::string text;
  for (const SmLimits& limits : kSmLimits) {
    const char* comma = &limits == &kSmLimits.front() ? "" : ", ";
    text += (&limits == &kSmLimits.back() ? before_last : comma) + std::to_string(limits.compute_capability);
  }
  return text;
}

}  // namespace flash_ladder
