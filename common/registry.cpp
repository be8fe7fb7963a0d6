#include "registry.h"

#include <algorithm>

namespace flash_ladder {
namespace {

// A function's static, since registrations run before main in an order that nothing fixes.
std::vector<Version>& registry() {
  static std::vector<Version> versions;
  return versions;
}

}  // namespace

const std::vector<Version>& versions() { return registry(); }

Registration::Registration(Version version) {
  auto& all = registry();
  auto position = std::upper_bound(all.begin(), all.end(), version.number,
                                   [](int number, const Version& other) { return number < other.number; });
  all.insert(position, std::move(version));
}

}  // namespace flash_ladder
