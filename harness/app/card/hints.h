// Where to look when a version is wrong: the places that the virtual GPU found, or lines that could cause a wrong output.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/card/debug_places.h"
#include "app/terminal/terminal.h"
#include "host/versions.h"
#include "results/debug_report.h"
#include "results/gradient_report.h"
#include "results/result.h"

namespace flash_ladder {

struct Hints {
  std::vector<std::string> places;  // "kernels/07_ldmatrix.cu:74"
  std::vector<std::string> notes;   // sentences about them
};

/// The lines of both sides of a finding, and the last waits of the two threads, because the missing synchronisation
/// belongs between them. For fragments that were never loaded, the lines that load them.
Hints hints_from(const Finding& finding, const std::filesystem::path& source_tree);

/// Lines in which a mistake like this one could be, in file order: those of hints_at().
Hints hints_from(const DebugReport& report, const Version& version, const std::filesystem::path& source_tree);

/// The same for gradients.
Hints hints_from(const GradientReport& report, const Version& version, const std::filesystem::path& source_tree);

/// The lines of these places in a version's file, in file order. For a place that only the file of the version before has, the
/// line in its stead, or the two lines around the gap.
Hints hints_at(const std::vector<Place>& places, const Version& version, const std::filesystem::path& source_tree);

/// "Look at", and the text of each line; empty if there are no hints.
std::string format_hints(const Hints& hints, const std::filesystem::path& source_tree, const Paint& paint);

/// The first finding, which is most likely the cause, and how many others may follow from it; or all that the worker
/// listed. Empty if there are no findings.
std::string format_findings(const Result& result, bool all, const Paint& paint);

}  // namespace flash_ladder
