// The complete comparison of two versions: gathered once, then shown as text, as JSON and as a page.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/card/busy_view.h"
#include "app/card/counters.h"
#include "app/card/profiles.h"
#include "app/options/options.h"
#include "host/versions.h"
#include "results/result.h"
#include "source/kernel_source.h"

namespace flash_ladder {

/// TFLOP/s of one problem on one device; nullopt for a version that was not recorded.
struct SpeedPair {
  std::string folder;  // the folder of profiles/: "h200"
  std::string device;  // "NVIDIA H200"
  AttentionProblem problem;
  std::optional<RecordedSpeed> from, to;

  bool stale() const { return (from && from->stale) || (to && to->stale); }
  /// The ratio, if both figures were measured in the same way.
  std::optional<double> ratio() const {
    return from && to && from->way == to->way ? std::optional(to->tflops / from->tflops) : std::nullopt;
  }
};

MeasuredWays ways_of(const std::vector<SpeedPair>& speeds);

/// "423.9", or "256x64: 423.9" if code and counters are shown for another configuration; `none` if nothing was measured.
std::string speed_figure(const std::optional<RecordedSpeed>& speed, const Configuration& shown,
                         const MeasuredWays& ways, const std::string& none);

/// Which units are busy on one device; at least one of the two is present.
struct BusyPair {
  std::string folder;
  std::optional<BusyVersion> from, to;
  const BusyVersion& any() const { return to ? *to : *from; }
};

/// What the virtual GPU counts now. If it can count, `why_not` is empty and both results have counters.
struct CountedPair {
  Result from, to;
  std::vector<LineChange> lines;
  std::string why_not;
  int exit_code = 0;
};

/// What the compiled code needs and contains; nullopt if the build has no such code.
struct StaticPair {
  int sm;
  std::string code;  // the architecture whose machine code such an SM runs: "sm_90"
  const Configuration *config_from, *config_to;
  std::optional<StaticStudy> from, to;            // under the limits of that SM
  std::optional<StaticStudy> code_from, code_to;  // its machine code
};

struct Comparison {
  const Version &from, &to;
  AttentionProblem problem;  // the problem that the verdict is about
  HeaderComment header;      // of `to`
  DiffSize size;
  std::string diff;  // as source_diff() returns it
  std::vector<SpeedPair> speeds;
  std::vector<BusyPair> busy;
  CountedPair counted;
  StaticPair compiled;
};

/// Throws UsageError if a version has no configuration for the problem, UnavailableError if there is no diff program.
Comparison gather_comparison(const Options& options, Profiles& profiles);

/// harness/results/comparison.schema.json
nlohmann::json comparison_document(const Comparison& comparison);

/// A self-contained page: no network access, no framework, light and dark themes. Machine code is read from the build's
/// study files.
std::string comparison_page(const Comparison& comparison, const Options& options);

}  // namespace flash_ladder
