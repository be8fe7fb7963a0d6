#include "app/run/stored_tuning.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/options/selection.h"
#include "errors.h"
#include "results/profile.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {

std::filesystem::path tuning_file(const Paths& paths, const DeviceInfo& device) {
  return paths.profiles / device_slug(device.name) / "tuning.json";
}

StoredTuning::StoredTuning(const Paths& paths, const std::optional<Gpu>& gpu) : paths_(paths) {
  if (!gpu || gpu->is_virtual) return;
  file_ = tuning_file(paths, gpu->info);
  try {
    tuning_ = read_tuning(file_, gpu->info.name);
  } catch (const UnavailableError& error) {
    problem_ = error.what();
  }
}

StoredTuning::Answer StoredTuning::find(const Version& version, const AttentionProblem& problem) const {
  const TuningEntry* entry = tuning_ ? tuning_->find(kernel_id(version), problem) : nullptr;
  if (!entry) return {};
  const auto refuse = [&](const std::string& why) {
    return Answer{nullptr, fmt::format("'{}' has an entry for {} that is not used: {}; harness --tune {} measures it "
                                       "again",
                                       file_.string(), label(version), why, kernel_id(version))};
  };
  if (entry->code_hash != code_hash(source_file(version, paths_.source), paths_.source / "common"))
    return refuse("it is stale, the code has changed since");
  const std::string& config = entry->ranking.front().config;
  const bool known =
      std::any_of(version.configurations.begin(), version.configurations.end(),
                  [&](const Configuration& other) { return other.name == config && other.dtype == problem.dtype; });
  if (!known) return refuse(fmt::format("there is no configuration '{}'", config));
  return {entry, ""};
}

}  // namespace flash_ladder
