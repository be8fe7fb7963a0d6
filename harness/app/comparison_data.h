// All that there is to say of two versions beside each other: gathered once, shown as text, as JSON and as a page.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/busy_view.h"
#include "app/counters.h"
#include "app/options.h"
#include "app/recorded.h"
#include "host/versions.h"
#include "results/result.h"
#include "source/kernel_source.h"

namespace flash_ladder {

/// TFLOP/s of one problem on one device; nullopt where that version was not recorded.
struct SpeedPair {
  std::string folder;  // of profiles/: "h200"
  std::string device;  // "NVIDIA H200"
  AttentionProblem problem;
  std::optional<RecordedSpeed> from, to;

  bool stale() const { return (from && from->stale) || (to && to->stale); }
  /// Of figures that were measured in the same way.
  std::optional<double> ratio() const {
    return from && to && from->way == to->way ? std::optional(to->tflops / from->tflops) : std::nullopt;
  }
};

MeasuredWays ways_of(const std::vector<SpeedPair>& speeds);

/// "423.9", or "256x64: 423.9" where code and counters are shown of another configuration; `none` where nothing was measured.
std::string speed_figure(const std::optional<RecordedSpeed>& speed, const Configuration& shown,
                         const MeasuredWays& ways, const std::string& none);

/// Which units are busy on one device; at least one of the two is there.
struct BusyPair {
  std::string folder;
  std::optional<BusyVersion> from, to;
  const BusyVersion& any() const { return to ? *to : *from; }
};

/// What the virtual GPU counts now. `why_not` is empty where it does, and then both results have counters.
struct CountedPair {
  Result from, to;
  std::vector<LineChange> lines;
  std::string why_not;
  int exit_code = 0;
};

/// What the compiled code needs and consists of; nullopt where the build has no such code.
struct StaticPair {
  int sm;
  std::string code;  // whose machine code such an SM runs: "sm_90"
  const Configuration *config_from, *config_to;
  std::optional<StaticStudy> from, to;            // with the limits of that SM
  std::optional<StaticStudy> code_from, code_to;  // its machine code
};

struct Comparison {
  const Version &from, &to;
  AttentionProblem problem;  // that the verdict is about
  HeaderComment header;      // of `to`
  DiffSize size;
  std::string diff;  // as source_diff() has it
  std::vector<SpeedPair> speeds;
  std::vector<BusyPair> busy;
  CountedPair counted;
  StaticPair compiled;
};

/// Throws UsageError where a version has no configuration for the problem, UnavailableError without a diff program.
Comparison gather_comparison(const Options& options, Recorded& recorded);

/// harness/results/comparison.schema.json
nlohmann::json comparison_document(const Comparison& comparison);

/// A page of its own: no network, no framework, light and dark. Machine code is read from the build's study files.
std::string comparison_page(const Comparison& comparison, const Options& options);

}  // namespace flash_ladder
