// What `--tune` found on a device, for code that must choose a configuration to launch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "app/options/options.h"
#include "app/run/device_choice.h"
#include "host/versions.h"
#include "results/tuning.h"

namespace flash_ladder {

/// profiles/<device>/tuning.json.
std::filesystem::path tuning_file(const Paths& paths, const DeviceInfo& device);

class StoredTuning {
 public:
  /// Reads the GPU's file. The virtual GPU, which has no clock, has no such file; without a GPU, nothing is read.
  StoredTuning(const Paths& paths, const std::optional<Gpu>& gpu);

  struct Answer {
    const TuningEntry* entry = nullptr;  // nullptr: no entry can be used
    std::string why_not;                 // why an existing entry is not used; empty otherwise
  };
  Answer find(const Version& version, const AttentionProblem& problem) const;

  /// Why the file cannot be used; empty if it can, or if there is no file.
  const std::string& problem() const { return problem_; }

 private:
  const Paths& paths_;
  std::filesystem::path file_;
  std::optional<Tuning> tuning_;
  std::string problem_;
};

}  // namespace flash_ladder
