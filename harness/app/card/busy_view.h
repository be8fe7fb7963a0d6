// Which units a version keeps busy, as shown on a study card, beside another version, and in JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/card/profiles.h"
#include "host/versions.h"

namespace flash_ladder {

/// What was counted for one version on one device.
struct BusyVersion {
  std::string folder;  // the folder of profiles/: "h200"
  std::string device, date;
  AttentionProblem problem;
  Busy busy;
  bool stale;  // the code has changed since
};

/// The version on each of these folders of profiles/ in which it was counted. `config` names the configuration that the
/// rest of the view shows; a folder whose counts belong to another configuration contributes nothing. Empty: whichever
/// configuration was counted.
std::vector<BusyVersion> busy_of(Profiles& profiles, const std::vector<std::string>& devices, const Version& version,
                                 const std::string& config);

/// One row of the table.
struct BusyMetric {
  const char* name;  // "issue slots, %"
  double Busy::* member;
  double unit;   // what the member is divided by
  int decimals;  // digits after the decimal point
};
/// The rows of the table: percentages first, then bytes, then the rest.
const std::vector<BusyMetric>& busy_metrics();

/// "38.2", "7.41".
std::string format_metric(const BusyMetric& metric, const Busy& busy);
/// The change from one version to another: "-11.1" for percentages, "0.58x" for unbounded metrics. Empty if both are 0.
std::string format_change(const BusyMetric& metric, const Busy& from, const Busy& to);

/// "issue slots 38 %, shared memory 65 %, tensor cores 41 % of the cycles; 7.41 GB through L2, 0.53 GB from memory",
/// followed by the device and the problem.
std::string describe_busy(const BusyVersion& version);

/// `busy` in harness/results/results.schema.json: one object per device.
nlohmann::json busy_document(const Version& version, const std::vector<BusyVersion>& counted);

}  // namespace flash_ladder
