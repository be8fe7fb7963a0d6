// The command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/problem.h"
#include "host/versions.h"
#include "problem/distribution.h"

namespace flash_ladder {

/// What to do. `study`, `record`, `tune` and `debug` run kernels if there is a device; `grade` leaves everything to the
/// grader; the others only read.
enum class Action { study, list, diff, sass, listing, ptx, quiz, recordings, record, tune, debug, grade };

enum class DeviceKind { automatic, gpu, emulator };

/// --device
struct DeviceRequest {
  DeviceKind kind = DeviceKind::automatic;
  int ordinal = 0;
};

/// Where things are. The defaults are the paths of the source and build trees; tests name others.
struct Paths {
  std::filesystem::path source;           // the tree that holds kernels/, common/ and docs/
  std::filesystem::path profiles;         // --profiles
  std::filesystem::path study;            // the files that the build writes for the static study
  std::filesystem::path worker;           // --worker
  std::filesystem::path emulator_worker;  // --emulator-worker
};

struct Options {
  Action action = Action::study;
  std::string kernels;                       // --kernel, as it was typed
  std::string tune;                          // --tune, as it was typed
  std::string debug;                         // --debug, as it was typed
  std::pair<std::string, std::string> diff;  // --diff, as it was typed
  std::string html;                          // --html, with --diff: a file; empty: no page
  bool registers = false;                    // --registers, with --listing
  std::string ptx;                           // --ptx, as it was typed
  // The two profiles, or folders of profiles, that --profiles compares.
  std::pair<std::filesystem::path, std::filesystem::path> recordings;
  DeviceRequest device;
  std::optional<int> sm;              // a compute capability listed in host/sm_limits.h
  std::string config;                 // empty: the result of --tune if there is one, otherwise chosen by the device
  AttentionProblem problem;           // with the defaults filled in
  AttentionProblem emulator_problem;  // the same, with the smaller defaults of the virtual GPU
  AttentionProblem decoding_problem;  // both with the defaults for kernels/decoding/: see for_track()
  AttentionProblem emulator_decoding_problem;
  bool dtype_given = false;               // whether --dtype was given
  AttentionProblem debug_problem;         // the same without defaults: 0 for each size that was not typed
  std::optional<std::int64_t> head, row;  // --head and --row: what --debug shows
  Distribution data = Distribution::normal;
  std::uint64_t seed = 0;
  bool check = true;
  bool benchmark = true;
  int repeat = 20;
  std::string json;  // empty: none; "-": standard output
  std::chrono::milliseconds step_timeout{60'000};
  std::chrono::milliseconds emulator_step_timeout{600'000};  // a launch is one step, which may take minutes there
  std::uint64_t max_instructions = 0;                        // 0: the virtual GPU's default
  std::string trace;                                         // --trace; empty: none
  std::vector<std::string> grading;                          // the arguments for the grader, as they were typed
  bool lines = false;                                        // show the counters of every source line
  bool all_findings = false;                                 // show every finding, not only the first
  Paths paths;
};

/// Reads the command line; nullopt if it only requested help, which is then printed. Throws UsageError.
std::optional<Options> parse_options(int argc, const char* const* argv);

/// The same once the versions are known: if all that are named are of the decoding track, with its default problem.
Options for_track(Options options);

/// The same for one version: if --dtype was not given and the version does not compute fp16, with the first type that
/// it does compute.
Options for_version(Options options, const Version& version);

}  // namespace flash_ladder
