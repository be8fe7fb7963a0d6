// What profiles/ knows: recordings of the versions on each device, and of what others reach there.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/options.h"
#include "registry.h"
#include "results/profile.h"

namespace flash_ladder {

/// One version on one device.
struct Recording {
  Profile profile;
  bool stale;  // the code has changed since
};

/// Another implementation of attention, on the same device.
struct Peer {
  std::string name;
  double tflops;
  bool external;  // taken over from elsewhere; no program of this project measured it
};

/// A view of the profiles directory that reads each file once. A profile that cannot be used counts as missing and is
/// remembered in problems(), so that one broken file does not end a study.
class Recorded {
 public:
  explicit Recorded(const Paths& paths) : paths_(paths) {}

  /// Names of the folders, sorted: "h200". That of the virtual GPU, which has no TFLOP/s, is left out.
  std::vector<std::string> devices() const;

  /// nullptr when there is none.
  const Recording* find(const std::string& device, const Version& version);

  /// From profiles/<device>/peers.json: those that were measured for this problem, the slowest first.
  std::vector<Peer> peers(const std::string& device, const AttentionProblem& problem);

  /// What was wrong with profiles so far, a message each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const Paths& paths_;
  std::map<std::filesystem::path, std::unique_ptr<Recording>> recordings_;
  std::vector<std::string> problems_;
};

/// The fastest result of the problem, of one configuration if it is named; nullptr when there is none.
const Result* find_result(const Recording& recording, const AttentionProblem& problem, const std::string& config = "");

}  // namespace flash_ladder
