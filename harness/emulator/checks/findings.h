// Collects the findings of one CTA. Repetitions at the same line are one finding with a count.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator {

/// A finding, and what distinguishes it from others: its kind and two places in the kernel.
struct RawFinding {
  FindingKind kind{};
  std::int32_t place = -1;
  std::int32_t other_place = -1;
  Finding finding;

  std::tuple<FindingKind, std::int32_t, std::int32_t> key() const { return {kind, place, other_place}; }
};

class FindingRecorder {
 public:
  /// Whether this is the first finding of its kind at these places, so that add() needs a message. If not, counts it.
  bool is_new(FindingKind kind, std::int32_t place, std::int32_t other_place);
  void add(RawFinding finding);

  bool empty() const { return findings_.empty(); }
  std::vector<RawFinding> take();

 private:
  std::vector<RawFinding> findings_;
  std::map<std::tuple<FindingKind, std::int32_t, std::int32_t>, std::size_t> index_;
};

}  // namespace flash_ladder::emulator
