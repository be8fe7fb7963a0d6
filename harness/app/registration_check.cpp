#include "app/registration_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "sass/configuration_code.h"

namespace flash_ladder {

std::optional<std::string> why_mixed_up(const std::vector<Version>& versions) {
  std::map<std::string, const Version*> owners;
  for (const Version& version : versions) {
    const std::string name_space = "flash_ladder::" + code_namespace(version);
    for (const Configuration& configuration : version.configurations) {
      const std::string traits = demangled(configuration.traits);
      const auto [owner, is_first] = owners.try_emplace(traits, &version);
      if (!is_first && owner->second != &version)
        return fmt::format(
            "{} and {} both have {}, so that the linker kept the code of one for both; put all of {}'s code into "
            "namespace {}, and build again",
            label(*owner->second), label(version), traits, label(version), name_space);
      if (!traits.starts_with(name_space + "::"))
        return fmt::format(
            "{}: the traits {} of configuration {} are not in namespace {}; put all of the version's "
            "code there, and build again",
            version.source, traits, configuration.name, name_space);
    }
  }
  return std::nullopt;
}

std::optional<std::string> why_extends_none(const std::vector<Version>& versions) {
  std::vector<std::string> ids;
  for (const Version& version : versions) ids.push_back(kernel_id(version));
  for (const Version& version : versions)
    if (version.is_extension() && std::ranges::find(ids, version.extends) == ids.end())
      return fmt::format("{} extends '{}', which is not a version; write one of {}, and build again", version.source,
                         version.extends, fmt::join(ids, ", "));
  return std::nullopt;
}

}  // namespace flash_ladder
