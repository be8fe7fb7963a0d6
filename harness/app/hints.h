// Where to look when a version is wrong: at what the virtual GPU found, or at lines that a wrong output may come from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/terminal.h"
#include "host/versions.h"
#include "results/microscope.h"
#include "results/result.h"

namespace flash_ladder {

struct Hints {
  std::vector<std::string> places;  // "kernels/07_ldmatrix.cu:74"
  std::vector<std::string> notes;   // sentences about them
};

/// The lines of both sides of a finding, and where the threads had last waited. What is missing is in between. Of fragments that were
/// never loaded, the lines that load them.
Hints hints_from(const Finding& finding, const std::filesystem::path& source_tree);

/// Lines that a mistake like this one would be in, in the order of the file. Of a line that the file lacks, and the version before it
/// has, the two lines around the gap.
Hints hints_from(const Microscope& microscope, const Version& version, const std::filesystem::path& source_tree);

/// "Look at", and the text of each line; empty when there is none.
std::string format_hints(const Hints& hints, const std::filesystem::path& source_tree, const Paint& paint);

/// The first finding, which is most likely the cause, and how many may follow from it; or all that the worker listed. Empty when there
/// is none.
std::string format_findings(const Result& result, bool all, const Paint& paint);

}  // namespace flash_ladder
