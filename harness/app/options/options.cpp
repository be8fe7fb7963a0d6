#include "app/options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "app/options/contradictions.h"
#include "app/options/flags.h"
#include "app/options/grading_flags.h"
#include "app/options/output.h"
#include "app/options/parse_integer.h"
#include "app/options/selection.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "host/known_sms.h"
#include "host/sm_limits.h"
#include "rules/suggestion.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kHelpColumn = 30;  // the column at which --help begins to explain a flag

std::chrono::milliseconds parse_seconds(const std::string& flag, const std::string& text) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  constexpr double kMost = 86400;
  if (stop != end || error != std::errc{} || !(seconds > 0) || seconds > kMost)
    throw UsageError(fmt::format("{} '{}' is not a time; give seconds, more than 0 and at most {}", flag, text, kMost));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

DeviceRequest parse_device(const std::string& text) {
  if (text == "auto") return {DeviceKind::automatic, 0};
  if (text == "emulator") return {DeviceKind::emulator, 0};
  if (text == "gpu") return {DeviceKind::gpu, 0};
  const std::string prefix = "gpu:";
  if (text.starts_with(prefix))
    return {DeviceKind::gpu, parse_integer<int>("--device gpu:", text.substr(prefix.size()), 0, 1023)};
  throw UsageError(fmt::format("--device '{}' is unknown; allowed are auto, gpu, gpu:N and emulator", text));
}

// "90" or "sm_90".
int parse_sm(const std::string& text) {
  const std::string number = text.starts_with("sm_") ? text.substr(3) : text;
  for (const SmLimits& limits : kSmLimits)
    if (number == std::to_string(limits.compute_capability)) return limits.compute_capability;
  throw UsageError(fmt::format("--sm '{}' is unknown; allowed are {}", text, known_sms()));
}

// A word that was typed and is not a flag: a misspelt flag, or a version without one.
[[noreturn]] void refuse_extra(const CLI::App& app, const Options& options) {
  const auto extras = app.remaining();
  const std::string& extra = extras.front();
  if (extra.starts_with('-')) {
    std::vector<std::string> flags;
    for (const CLI::Option* option : app.get_options())
      if (!option->get_group().empty()) flags.push_back(option->get_name());
    const std::string meant = closest(extra.substr(0, extra.find('=')), flags);  // the flag without its value
    throw UsageError(fmt::format("there is no flag {}{}; see harness --help", extra,
                                 meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
  }
  const std::string versions = options.kernels.empty() ? fmt::format("{}", fmt::join(extras, ","))
                                                       : fmt::format("{},{}", options.kernels, fmt::join(extras, ","));
  throw UsageError(fmt::format("'{}' belongs to no flag; if it names a version, write --kernel {}; see harness --help",
                               extra, versions));
}

// "05-06" for --diff, which needs two separate names.
[[noreturn]] void refuse_single(const std::string& version) {
  const auto separator = version.find_first_of("-,:");
  const bool two = separator != std::string::npos && separator > 0 && separator + 1 < version.size();
  throw UsageError(
      fmt::format("--diff takes two versions, and '{}' is one word; write {}", version,
                  two ? fmt::format("--diff {} {}", version.substr(0, separator), version.substr(separator + 1))
                      : fmt::format("--diff A {}, where A is the version to compare it with", version)));
}

// If both were written to one file, the second would replace the first. /dev/null accepts both.
void refuse_same_file(const char* a, const std::string& file_a, const char* b, const std::string& file_b) {
  namespace fs = std::filesystem;
  if (file_a.empty() || file_b.empty() || file_a == "-" || file_b == "-") return;
  std::error_code error;
  const auto whole = [&](const std::string& file) { return fs::weakly_canonical(fs::absolute(file), error); };
  const fs::path path_a = whole(file_a), path_b = whole(file_b);
  if (error || path_a != path_b || (fs::exists(path_a, error) && !fs::is_regular_file(path_a, error))) return;
  throw UsageError(
      fmt::format("{} and {} both name '{}', and one would replace the other; name two files", a, b, file_a));
}

const char* const kEpilogue = R"(
Examples
  harness --kernel 07                    check, time and dissect version 07
  harness --kernel 05-08 --seq-len 1024  a range, a line each
  harness --diff 06 07                   what changed, in the source and in the figures
  harness --kernel 07 --quiz             predict how much faster it is, then see
  harness --kernel 07 --ptx ldmatrix     the SASS of a PTX instruction or a source line
  harness --kernel all --record          measure everything again for profiles/
  harness --tune 16 --seq-len 512        which configuration is the fastest for this problem
  harness --debug 07 --row 9             how m, l and O of a row evolve, tile by tile
  harness --debug B03                    S, P, dP, dS and the gradients of a tile, step by step
  harness --kernel 06 --device emulator --lines
                                         count, per source line, without a GPU
  harness --grade FILE.cu --assignment swizzle
                                         grade a student's submission

Exit status
  0  the request was carried out, and everything that ran is correct
  1  a wrong result or a finding; of --grade: points below the pass mark
  2  bad usage, or the one requested version does not support the problem
  3  a device, a tool or a file is missing (a study is then static, and says so), or the requested device cannot run the
     version, or a CUDA error; of --grade and --grade-dir: a file that could not be graded)";

// What the flags ask for, of which there is at most one: see contradictions.cpp.
Action action_of(const CLI::App& app, const TypedFlags& typed) {
  if (asks_for_grader(app)) return Action::grade;
  if (typed.list) return Action::list;
  if (app.count("--diff") != 0) return Action::diff;
  if (typed.sass) return typed.listing ? Action::listing : Action::sass;
  if (app.count("--ptx") != 0) return Action::ptx;
  if (typed.quiz) return Action::quiz;
  if (typed.profiles.size() == 2) return Action::recordings;
  if (typed.record) return Action::record;
  if (app.count("--tune") != 0) return Action::tune;
  if (app.count("--debug") != 0) return Action::debug;
  return Action::study;
}

// Whether the action works on the versions of --kernel, and on nothing without them.
bool needs_kernel(Action action) {
  switch (action) {
    case Action::study:
    case Action::sass:
    case Action::listing:
    case Action::ptx:
    case Action::quiz:
    case Action::record:
      return true;
    case Action::list:
    case Action::diff:
    case Action::recordings:
    case Action::tune:
    case Action::debug:
    case Action::grade:
      break;
  }
  return false;
}

// Names of files that are empty, or that are the same.
void refuse_bad_names(const CLI::App& app, const Options& options, const TypedFlags& typed) {
  const auto is_empty = [&](const char* flag, const std::string& file) { return app.count(flag) != 0 && file.empty(); };
  if (is_empty("--trace", options.trace)) throw UsageError("--trace needs the name of a file");
  if (options.trace == "-")
    throw UsageError("--trace writes a file, not standard output; name a file (./- is the file of that name)");
  if (is_empty("--json", options.json)) throw UsageError("--json needs the name of a file, or - for standard output");
  if (typed.profiles.size() == 1 && typed.profiles[0].empty())
    throw UsageError("--profiles has an empty name; name a directory, or leave it out");
  if (is_empty("--html", options.html)) throw UsageError("--html needs the name of a file");
  refuse_same_file("--trace", options.trace, "--json", options.json);
  refuse_same_file("--html", options.html, "--json", options.json);
}

// Whether all versions that are named belong to the decoding track. Names of no version are refused later.
bool names_only_decoding(const Options& options) {
  bool any = false;
  for (const std::string& typed :
       {options.kernels, options.tune, options.debug, options.diff.first, options.diff.second}) {
    if (typed.empty()) continue;
    try {
      for (const Version* version : select_versions(typed))
        if (version->track != Track::decoding) return false;
    } catch (const UsageError&) {
      return false;
    }
    any = true;
  }
  return any;
}

// The values that CLI11 does not read itself, because its messages do not say what is allowed.
void read_values(const CLI::App& app, const TypedFlags& typed, Options& options) {
  const auto given = [&](const char* flag) { return app.count(flag) != 0; };
  options.device = parse_device(typed.device);
  if (given("--sm")) options.sm = parse_sm(typed.sm);

  options.dtype_given = given("--dtype");
  options.decoding_problem = typed.problem->decoding_problem(/*is_virtual=*/false);
  options.emulator_decoding_problem = typed.problem->decoding_problem(/*is_virtual=*/true);
  options.problem = typed.problem->problem(/*is_virtual=*/false);
  options.emulator_problem = typed.problem->problem(/*is_virtual=*/true);
  options.debug_problem = typed.problem->typed();
  constexpr auto kMostRows = std::numeric_limits<std::int64_t>::max();
  if (given("--row")) options.row = parse_integer<std::int64_t>("--row", typed.row, 0, kMostRows);
  if (given("--head")) options.head = parse_integer<std::int64_t>("--head", typed.head, 0, kMostRows);
  if (given("--data")) {
    const auto known = distribution_from_string(typed.data);
    if (!known) throw UsageError(fmt::format("--data '{}' is unknown; allowed: {}", typed.data, all_distributions()));
    options.data = *known;
  }
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  if (given("--seed")) options.seed = parse_integer<std::uint64_t>("--seed", typed.seed, 0, kMost);
  options.check = !typed.no_check;
  options.benchmark = !typed.no_bench;
  if (given("--repeat")) options.repeat = parse_integer<int>("--repeat", typed.repeat, 1, 100'000);
  constexpr int kLeastForRecord = 20;
  if ((options.action == Action::record || options.action == Action::tune) && options.repeat < kLeastForRecord)
    throw UsageError(fmt::format("{} with --repeat {}: the stored median and p10/p90 need at least {} launches",
                                 options.action == Action::tune ? "--tune" : "--record", options.repeat,
                                 kLeastForRecord));
  if (given("--timeout"))
    options.step_timeout = options.emulator_step_timeout = parse_seconds("--timeout", typed.timeout);
  if (given("--max-instructions"))
    options.max_instructions = parse_integer<std::uint64_t>("--max-instructions", typed.max_instructions, 1, kMost);
}

void find_paths(const CLI::App& app, const TypedFlags& typed, Options& options) {
  namespace fs = std::filesystem;
  Paths& paths = options.paths;
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  paths.source = app.count("--source") != 0 ? fs::path(typed.source) : fs::path(FLASH_LADDER_SOURCE_DIR);
  paths.study = programs / "study";
  if (app.count("--worker") == 0) paths.worker = programs / "harness-worker-gpu";
  if (app.count("--emulator-worker") == 0) paths.emulator_worker = programs / "harness-worker-emulator";
  paths.profiles = typed.profiles.size() == 1 ? fs::path(typed.profiles[0]) : paths.source / "profiles";
  if (options.action == Action::recordings) options.recordings = {typed.profiles[0], typed.profiles[1]};
  std::error_code error;
  if (typed.profiles.size() == 1 && options.action != Action::record && options.action != Action::tune &&
      !fs::is_directory(paths.profiles, error))
    throw UnavailableError(fmt::format("--profiles '{}' is not a directory{}; --record and --tune create it",
                                       paths.profiles.string(), error ? ": " + error.message() : ""));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  CLI::App app("FlashAttention's forward pass in numbered CUDA kernels: checks, times and dissects them.", "harness");
  app.footer(kEpilogue);
  app.get_formatter()->column_width(kHelpColumn);

  Options options;
  TypedFlags typed;
  add_flags(app, options, typed);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    write_out(wrapped(app.help(), output_width(), kHelpColumn));
    return std::nullopt;
  } catch (const CLI::ExtrasError&) {
    refuse_extra(app, options);
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}; see harness --help", error.what()));
  }

  refuse_contradictions(app, typed.profiles);
  options.action = action_of(app, typed);
  if (options.action == Action::diff) {
    if (typed.diff.size() == 1) refuse_single(typed.diff.front());
    options.diff = {typed.diff.at(0), typed.diff.at(1)};
  }
  if (needs_kernel(options.action) && app.count("--kernel") == 0)
    throw UsageError(
        "nothing to do: name versions with --kernel (7, 05-08 or all), or use --list, --diff, --tune or --debug; see harness --help");
  refuse_bad_names(app, options, typed);
  read_values(app, typed, options);
  find_paths(app, typed, options);
  return options;
}

Options for_track(Options options) {
  if (names_only_decoding(options)) {
    options.problem = options.decoding_problem;
    options.emulator_problem = options.emulator_decoding_problem;
  }
  return options;
}

Options for_version(Options options, const Version& version) {
  const auto& known = version.configurations;
  const auto computes = [&](Dtype dtype) {
    return std::ranges::any_of(known, [&](const Configuration& one) { return one.dtype == dtype; });
  };
  if (!options.dtype_given && !computes(options.problem.dtype))
    for (AttentionProblem* problem : {&options.problem, &options.emulator_problem, &options.debug_problem})
      problem->dtype = known.front().dtype;
  return options;
}

}  // namespace flash_ladder
