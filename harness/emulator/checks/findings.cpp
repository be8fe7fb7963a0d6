#include "emulator/checks/findings.h"

#include <utility>

namespace flash_ladder::emulator {

bool FindingRecorder::is_new(FindingKind kind, std::int32_t place, std::int32_t other_place) {
  const auto found = index_.find({kind, place, other_place});
  if (found == index_.end()) return true;
  ++findings_[found->second].finding.count;
  return false;
}

void FindingRecorder::add(RawFinding finding) {
  index_[finding.key()] = findings_.size();
  findings_.push_back(std::move(finding));
}

std::vector<RawFinding> FindingRecorder::take() {
  index_.clear();
  return std::exchange(findings_, {});
}

}  // namespace flash_ladder::emulator
