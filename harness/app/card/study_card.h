// The full study of one version, on one screen.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/card/busy_view.h"
#include "app/card/profiles.h"
#include "app/terminal/terminal.h"
#include "host/versions.h"
#include "results/result.h"
#include "source/kernel_source.h"

namespace flash_ladder {

/// A speed and its origin: "measured now", "sustained on NVIDIA H200".
struct Speed {
  double tflops;
  std::string origin;
};

struct StudyCard {
  const Version& version;
  const Result& result;
  std::string device;  // which device it is, and why
  bool ran;            // false: the study is static
  std::string tuned;   // the configuration that --tune chose; empty if it did not choose
  int sm;              // the SM whose limits count

  HeaderComment header;
  std::vector<RecordedSpeed> recorded;
  std::string recorded_problem;  // empty: the same problem
  BesidePeers beside_peers;
  std::vector<BusyVersion> busy;

  const Version* before;                         // nullptr for the first version
  std::optional<Speed> own_speed, speed_before;  // measured in the same way
  std::map<std::string, StaticStudy> static_before;

  std::size_t lines;                  // how many of the counted source lines to show
  std::filesystem::path source_tree;  // the tree that contains them
  bool all_findings = false;          // all findings, not only the first

  std::vector<std::string> read_on;
};

std::string format_study_card(const StudyCard& card, const Paint& paint);

/// What a wrong output looks like and what that suggests, one sentence at a time. Empty if there is nothing to say.
std::string format_diagnosis(const Result& result, const Paint& paint);

/// The first wrong elements and the map of wrong tiles; empty if nothing is wrong.
std::string format_mismatches(const Result& result, const Paint& paint);

/// Which device it is and why, or that nothing was run and why not.
std::string describe_device(const std::string& why, bool ran, const Paint& paint);

/// The problem, and the distribution of Q, K and V: "batch 16, heads 16, …, fp16; normal data".
std::string describe_with_data(const AttentionProblem& problem, Distribution data);

/// "168 registers, no spills, 48 KiB of shared memory"
std::string describe_resources(const StaticStudy& study);
/// "3 CTAs per SM, limited by registers"
std::string describe_occupancy(const StaticStudy& study);
/// How many CTAs fit on an SM of each other compute capability, and what limits them: "sm_80: 3, registers; sm_86: does
/// not fit, 64x64 runs there". `sm` is left out.
std::string describe_other_occupancies(const Version& version, const Result& result, int sm);

/// "stale: the code has changed since"
extern const char* const kStale;

}  // namespace flash_ladder
