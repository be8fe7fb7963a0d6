// Which units a version keeps busy, as it is shown: on a study card, beside another version, in JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/recorded.h"
#include "host/versions.h"

namespace flash_ladder {

/// What was counted of one version on one device.
struct BusyVersion {
  std::string folder;  // of profiles/: "h200"
  std::string device, date;
  AttentionProblem problem;
  Busy busy;
  bool stale;  // the code has changed since
};

/// The version on each of these folders of profiles/, where it was counted: nothing where `config`, the name of the configuration
/// that the rest of the view is of, is another than the one that was counted. Empty: whichever was.
std::vector<BusyVersion> busy_of(Recorded& recorded, const std::vector<std::string>& devices, const Version& version,
                                 const std::string& config);

/// One figure of the table.
struct BusyMetric {
  const char* name;  // "issue slots, %"
  double Busy::* member;
  double unit;   // what the member is divided by
  int decimals;  // behind the point
};
/// The rows of the table: percentages first, then bytes, then the rest.
const std::vector<BusyMetric>& busy_metrics();

/// "38.2", "7.41".
std::string format_metric(const BusyMetric& metric, const Busy& busy);
/// From one version to another: "-11.1" for percentages, "0.58x" for what can grow without end. Empty where both are 0.
std::string format_change(const BusyMetric& metric, const Busy& from, const Busy& to);

/// "issue slots 38 %, shared memory 65 %, tensor cores 41 % of the cycles; 7.41 GB through L2, 0.53 GB from memory", and where and of
/// what problem that is.
std::string describe_busy(const BusyVersion& version);

/// `busy` in harness/results/results.schema.json: an object for each.
nlohmann::json busy_document(const Version& version, const std::vector<BusyVersion>& counted);

}  // namespace flash_ladder
