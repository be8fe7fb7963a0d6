#include "app/options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "app/options/output.h"
#include "app/options/parse_integer.h"
#include "app/options/problem_flags.h"
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

// Two flags that contradict each other.
void refuse_together(const CLI::App& app, const std::string& flag, const std::vector<std::string>& others,
                     const std::string& why) {
  if (app.count(flag) == 0) return;
  for (const auto& other : others)
    if (app.count(other) != 0)
      throw UsageError(fmt::format("{} cannot be combined with {}: {}; leave one out", flag, other, why));
}

// A flag that has no meaning without another.
void need_together(const CLI::App& app, const std::string& flag, const std::string& other, const std::string& why) {
  if (app.count(flag) != 0 && app.count(other) == 0)
    throw UsageError(fmt::format("{} can only be used with {}: {}", flag, other, why));
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

// The flags of harness/grader/grade.py, which receives them as they were typed.
struct GradingFlag {
  const char *name, *value, *help;  // value: its name in --help; null: the flag takes none
  bool says_what_to_do = false;
  int values = 1;
};
constexpr GradingFlag kGradingFlags[] = {
    {"--grade", "FILE", "Grade a submitted .cu file, without a GPU; needs --assignment", true},
    {"--grade-dir", "DIR", "Grade all files of a folder; --out receives a row for each", true},
    {"--starter", "ASSIGNMENT", "Write the file that students start from to standard output or to --out", true},
    {"--compare-courses", "A B", "Which assignments of course B the answers of course A would pass", true, 2},
    {"--assignment", "ASSIGNMENT", "A page of docs/assignments/: swizzle, 06 or 06_swizzle"},
    {"--course", "SEED", "Vary the assignment, so that no file of the ladder solves it"},
    {"--hidden", "SEED", "Seed for the shapes and inputs of the tests (the course's seed)"},
    {"--attempt", "N", "The student's attempt: below the pass mark, N hints are shown (1)"},
    {"--pass-mark", "POINTS", "The points that pass (the assignment's)"},
    {"--report", "FILE", "Write the points as JSON"},
    {"--junit", "FILE", "Write the points as JUnit XML"},
    {"--out", "FILE", "--grade-dir: the grades, as CSV; an interrupted run resumes. --starter: the file to write"},
    {"--archive", "DIR", "--grade-dir: files of earlier years, to compare those of the class with"},
    {"--due", "TIME", "--grade-dir: when the files were due, 2026-05-01T18:00; says which are late"},
    {"--written", "FILE", "--grade-dir: the marks of the written question; an empty sheet if it is not there yet"},
    {"--gradebook", "FILE", "--grade-dir: Moodle's grading worksheet or Canvas's gradebook; a copy gets the grades"},
    {"--column", "NAME", "The assignment's column in Canvas's gradebook"},
    {"--jobs", "N", "--grade-dir: number of files graded at a time (one per core)"},
    {"--with-gpu", nullptr, "Also time correct files, beside the ladder's version; does not affect the points"},
    {"--unsandboxed", nullptr, "Grade files that you trust on a machine that cannot isolate them"},
};

void add_grading_flags(CLI::App& app, std::vector<std::string>& words) {
  for (const GradingFlag& flag : kGradingFlags) {
    const char* const name = flag.name;
    const auto pass_on = [&words, name](const std::vector<std::string>& values) {
      for (const std::string& value : values) words.push_back(fmt::format("{}={}", name, value));
    };
    CLI::Option* option = flag.value == nullptr
                              ? app.add_flag_callback(name, [&words, name] { words.emplace_back(name); })
                              : app.add_option_function<std::vector<std::string>>(name, pass_on)
                                    ->expected(flag.values)
                                    ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
                                    ->type_name(flag.value);
    option->description(flag.help)->group("Teaching");
  }
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

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  CLI::App app("FlashAttention's forward pass in numbered CUDA kernels: checks, times and dissects them.", "harness");
  app.footer(kEpilogue);
  app.get_formatter()->column_width(kHelpColumn);

  Options options;
  std::vector<std::string> diff, profiles;
  std::string device = "auto", sm, data, seed, repeat, timeout, max_instructions, source, row, head;
  bool list = false, sass = false, listing = false, quiz = false, record = false, no_check = false, no_bench = false;

  app.add_option("--kernel", options.kernels,
                 "Versions: 7, 07, 07_ldmatrix, ldmatrix, 05-08, 05,07 or all; extensions by name")
      ->group("What to do");
  app.add_flag("--list", list,
               "List the versions, one per line, with their configurations and the TFLOP/s from "
               "profiles/")
      ->group("What to do");
  app.add_option("--diff", diff, "Compare two versions: source, TFLOP/s, counters per source line, registers, SASS")
      ->expected(1, 2)
      ->type_name("A B")
      ->group("What to do");
  app.add_option("--html", options.html,
                 "With --diff: write the comparison as an HTML page, with SASS side by side (- for standard output)")
      ->type_name("FILE")
      ->group("What to do");
  app.add_flag("--sass", sass, "Count the SASS instructions of --kernel by opcode and class, without running it")
      ->group("What to do");
  app.add_flag(
         "--listing", listing,
         "With --sass: list the instructions with their source lines, without addresses and registers, so that diff "
         "can compare the listings of two versions")
      ->group("What to do");
  app.add_flag("--registers", options.registers, "With --listing: include registers and source line numbers")
      ->group("What to do");
  app.add_option(
         "--ptx", options.ptx,
         "Show the SASS that --kernel has for a source line (171, common/ptx.h:59), a PTX line (ptx:3659) or all PTX "
         "instructions of a name (ldmatrix)")
      ->type_name("LINE")
      ->group("What to do");
  app.add_flag("--quiz", quiz, "Predict the speedup of --kernel over the version before, then see the measurement")
      ->group("What to do");
  app.add_flag("--record", record,
               "Measure --kernel at the standard shapes (on the virtual GPU: count) and write "
               "profiles/<device>/NN_name.json")
      ->group("What to do");
  app.add_option("--tune", options.tune,
                 "Time all configurations of one version for a problem; the fastest is stored in "
                 "profiles/<device>/tuning.json and used from then on")
      ->type_name("VERSION")
      ->group("What to do");
  app.add_option(
         "--debug", options.debug,
         "Compare O of one version with float64 after each K/V tile, and show P and the layouts; if O is wrong, name "
         "the first wrong tile, row, column, lane and register")
      ->type_name("VERSION")
      ->group("What to do");

  app.add_option("--device", device,
                 "auto (a GPU of sm_80 or newer, otherwise the virtual GPU), gpu, gpu:N or "
                 "emulator (the virtual GPU)")
      ->type_name("DEVICE")
      ->group("Where");
  app.add_option("--sm", sm,
                 fmt::format("{}: the SM whose limits the virtual GPU and the static study assume (the GPU's own, "
                             "otherwise {})",
                             known_sms(" or "), kDefaultSm))
      ->type_name("SM")
      ->group("Where");
  app.add_option("--config", options.config,
                 "One of the version's configurations (the one that --tune found, otherwise the first that fits the "
                 "device)")
      ->type_name("NAME")
      ->group("Where");

  ProblemFlags problem(app);
  app.add_option(
         "--data", data,
         fmt::format("Distribution of Q, K and V ({}): {}", to_string(Distribution::normal), all_distributions()))
      ->type_name("NAME")
      ->group("The problem");
  app.add_option("--seed", seed, "Seed of the random inputs (0)")->type_name("N")->group("The problem");

  app.add_flag("--no-check", no_check, "Do not compare with the reference")->group("How");
  app.add_flag("--no-bench", no_bench, "Do not time")->group("How");
  app.add_option("--repeat", repeat, "Timed launches (20)")->type_name("N")->group("How");
  app.add_option("--json", options.json,
                 "Write the results as JSON (- for standard output, which then contains "
                 "nothing else)")
      ->type_name("FILE")
      ->group("How");
  app.add_option("--row", row, "--debug: the query to show (the first wrong one, otherwise 0)")
      ->type_name("N")
      ->group("How");
  app.add_option("--head", head, "--debug: the head to show (the first wrong one, otherwise 0)")
      ->type_name("N")
      ->group("How");
  app.add_flag("--lines", options.lines, "Virtual GPU: show the counters of all source lines, not only the costliest")
      ->group("How");
  app.add_flag("--all-findings", options.all_findings,
               "Virtual GPU: show all findings, not only the first, from which the others may follow")
      ->group("How");
  app.add_option("--trace", options.trace,
                 "Virtual GPU: record what each warp of CTA 0 does, for https://ui.perfetto.dev (docs/virtual_gpu.md)")
      ->type_name("FILE")
      ->group("How");
  app.add_option("--max-instructions", max_instructions,
                 "Virtual GPU: stop a CTA, as an endless loop, after this many warp instructions")
      ->type_name("N")
      ->group("How");
  app.add_option("--timeout", timeout, "Kill a version that makes no progress for this long (60; virtual GPU: 600)")
      ->type_name("SECONDS")
      ->group("How");
  app.add_option(
         "--profiles", profiles,
         "Where profiles are read and written (the source tree's profiles/). With two files, or two folders and "
         "--kernel: compare two recordings of one version")
      ->expected(1, 2)
      ->type_name("DIR | A B")
      ->group("How");

  add_grading_flags(app, options.grading);

  // For the tests: an empty group hides them from --help.
  app.add_option("--worker", options.paths.worker)->group("");
  app.add_option("--emulator-worker", options.paths.emulator_worker)->group("");
  app.add_option("--source", source)->group("");

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

  const auto given = [&](const std::string& flag) { return app.count(flag) != 0; };
  refuse_together(app, "--list", {"--diff", "--kernel", "--sass", "--record"}, "--list only shows the versions");
  refuse_together(app, "--list", {"--device", "--config", "--sm"}, "--list shows all devices and configurations");
  for (const char* what : {"--list", "--sass", "--ptx", "--quiz"})
    refuse_together(app, what,
                    {"--data", "--seed", "--repeat", "--timeout", "--lines", "--all-findings", "--max-instructions",
                     "--no-check", "--no-bench"},
                    "it runs nothing");
  for (const char* what : {"--diff", "--record", "--tune"})
    refuse_together(app, what, {"--data"}, "profiles/ contains only measurements with normal data");
  refuse_together(app, "--diff", {"--device"}, "--diff compares recordings, and counts on the virtual GPU");
  refuse_together(app, "--sass", {"--device"}, "--sass runs nothing, and --sm selects the code that it shows");
  refuse_together(app, "--diff", {"--kernel", "--sass", "--record"}, "--diff only compares two versions");
  refuse_together(app, "--sass", {"--record"}, "--sass runs nothing");
  refuse_together(app, "--record", {"--no-check", "--no-bench"},
                  "a profile contains only results that were checked "
                  "and timed");
  refuse_together(app, "--record", ProblemFlags::names(), "a profile contains the standard shapes");
  refuse_together(app, "--record", {"--config"}, "a profile contains every configuration");
  refuse_together(app, "--record", {"--sm"},
                  "the virtual GPU is always recorded as sm_90, and a GPU has its own "
                  "limits");
  refuse_together(app, "--tune", {"--kernel", "--list", "--diff", "--sass", "--record"},
                  "--tune names the version itself and only times its configurations");
  refuse_together(app, "--tune", {"--config"}, "--tune compares all configurations");
  refuse_together(app, "--tune", {"--no-check", "--no-bench"}, "it stores only results that were checked and timed");
  refuse_together(app, "--tune", {"--lines", "--all-findings", "--max-instructions"},
                  "these are for the virtual GPU, which has no clock");
  refuse_together(app, "--trace", {"--list", "--diff", "--sass", "--ptx", "--quiz", "--record", "--tune", "--debug"},
                  "a trace shows one run of one version");
  if (given("--trace") && options.trace.empty()) throw UsageError("--trace needs the name of a file");
  if (options.trace == "-")
    throw UsageError("--trace writes a file, not standard output; name a file (./- is the file of that name)");
  refuse_together(app, "--debug", {"--kernel", "--list", "--diff", "--sass", "--ptx", "--quiz", "--record", "--tune"},
                  "--debug names the version itself and examines its output");
  refuse_together(app, "--debug", {"--no-check", "--no-bench", "--repeat", "--lines"},
                  "--debug compares everything and times nothing");
  for (const char* flag : {"--row", "--head"})
    if (given(flag) && !given("--debug"))
      throw UsageError(fmt::format("{} selects what --debug shows; add --debug VERSION, or leave it out", flag));
  need_together(app, "--html", "--diff", "it writes the comparison of two versions as a page");
  need_together(app, "--listing", "--sass", "it lists what --sass counts");
  need_together(app, "--registers", "--listing", "it adds details to the listed instructions");
  refuse_together(app, "--listing", {"--json"}, "a listing is text, and --sass --json has the counts");
  refuse_together(app, "--ptx", {"--list", "--diff", "--sass", "--record", "--tune", "--quiz", "--json", "--device"},
                  "--ptx only shows the SASS generated from PTX");
  refuse_together(app, "--quiz", {"--config"}, "--quiz compares the fastest configurations that are recorded");
  refuse_together(app, "--quiz", {"--list", "--diff", "--sass", "--record", "--tune", "--json", "--device"},
                  "--quiz asks a question and shows recorded figures");
  const bool two_profiles = profiles.size() == 2;
  if (two_profiles) {
    std::vector<std::string> others = ProblemFlags::names();  // compares every problem that both have in common
    for (const char* flag :
         {"--list",     "--diff",     "--sass",   "--ptx",   "--quiz",         "--record",  "--tune",
          "--debug",    "--trace",    "--device", "--sm",    "--config",       "--data",    "--seed",
          "--no-check", "--no-bench", "--repeat", "--lines", "--all-findings", "--timeout", "--max-instructions"})
      others.emplace_back(flag);
    for (const std::string& other : others)
      if (given(other))
        throw UsageError(fmt::format(
            "{} cannot be combined with two names after --profiles ('{}' and '{}'), which compare two recordings; "
            "leave one out",
            other, profiles[0], profiles[1]));
  }
  if (given("--no-check") && given("--no-bench"))
    throw UsageError("--no-check and --no-bench leave nothing to run; to count without running, use --sass");

  bool grades = false;
  for (const GradingFlag& flag : kGradingFlags) grades |= flag.says_what_to_do && given(flag.name);
  for (const GradingFlag& flag : kGradingFlags) {
    if (given(flag.name) && !grades)
      throw UsageError(
          fmt::format("{} can only be used with --grade, --grade-dir, --starter or --compare-courses", flag.name));
    for (const CLI::Option* other : app.get_options())
      if (given(flag.name) && other->count() > 0 && !other->get_group().empty() && other->get_group() != "Teaching")
        throw UsageError(
            fmt::format("{} cannot be combined with {}: the assignment determines what runs; leave one "
                        "out",
                        other->get_name(), flag.name));
  }

  if (grades)
    options.action = Action::grade;
  else if (list)
    options.action = Action::list;
  else if (given("--diff"))
    options.action = Action::diff;
  else if (sass)
    options.action = listing ? Action::listing : Action::sass;
  else if (given("--ptx"))
    options.action = Action::ptx;
  else if (quiz)
    options.action = Action::quiz;
  else if (two_profiles)
    options.action = Action::recordings;
  else if (record)
    options.action = Action::record;
  else if (given("--tune"))
    options.action = Action::tune;
  else if (given("--debug"))
    options.action = Action::debug;
  if (options.action == Action::diff && diff.size() == 1) refuse_single(diff.front());
  if (options.action == Action::diff)
    options.diff = {diff.at(0), diff.at(1)};
  else if (options.action != Action::list && options.action != Action::tune && options.action != Action::debug &&
           options.action != Action::recordings && options.action != Action::grade && !given("--kernel"))
    throw UsageError(
        "nothing to do: name versions with --kernel (7, 05-08 or all), or use --list, --diff, --tune or --debug; see harness --help");
  if (given("--json") && options.json.empty())
    throw UsageError("--json needs the name of a file, or - for standard output");
  if (profiles.size() == 1 && profiles[0].empty())
    throw UsageError("--profiles has an empty name; name a directory, or leave it out");
  if (given("--html") && options.html.empty()) throw UsageError("--html needs the name of a file");
  refuse_same_file("--trace", options.trace, "--json", options.json);
  refuse_same_file("--html", options.html, "--json", options.json);

  options.device = parse_device(device);
  if (given("--sm")) options.sm = parse_sm(sm);

  options.dtype_given = given("--dtype");
  options.problem = problem.problem(/*is_virtual=*/false);
  options.emulator_problem = problem.problem(/*is_virtual=*/true);
  options.debug_problem = problem.typed();
  constexpr auto kMostRows = std::numeric_limits<std::int64_t>::max();
  if (given("--row")) options.row = parse_integer<std::int64_t>("--row", row, 0, kMostRows);
  if (given("--head")) options.head = parse_integer<std::int64_t>("--head", head, 0, kMostRows);
  if (given("--data")) {
    const auto known = distribution_from_string(data);
    if (!known) throw UsageError(fmt::format("--data '{}' is unknown; allowed: {}", data, all_distributions()));
    options.data = *known;
  }
  if (given("--seed"))
    options.seed = parse_integer<std::uint64_t>("--seed", seed, 0, std::numeric_limits<std::uint64_t>::max());
  options.check = !no_check;
  options.benchmark = !no_bench;
  if (given("--repeat")) options.repeat = parse_integer<int>("--repeat", repeat, 1, 100'000);
  constexpr int kLeastForRecord = 20;
  if ((options.action == Action::record || options.action == Action::tune) && options.repeat < kLeastForRecord)
    throw UsageError(fmt::format("{} with --repeat {}: the stored median and p10/p90 need at least {} launches",
                                 options.action == Action::tune ? "--tune" : "--record", options.repeat,
                                 kLeastForRecord));
  if (given("--timeout")) options.step_timeout = options.emulator_step_timeout = parse_seconds("--timeout", timeout);
  if (given("--max-instructions"))
    options.max_instructions = parse_integer<std::uint64_t>("--max-instructions", max_instructions, 1,
                                                            std::numeric_limits<std::uint64_t>::max());

  const auto program_directory = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  options.paths.source =
      given("--source") ? std::filesystem::path(source) : std::filesystem::path(FLASH_LADDER_SOURCE_DIR);
  options.paths.study = program_directory / "study";
  if (!given("--worker")) options.paths.worker = program_directory / "harness-worker-gpu";
  if (!given("--emulator-worker")) options.paths.emulator_worker = program_directory / "harness-worker-emulator";
  options.paths.profiles =
      profiles.size() == 1 ? std::filesystem::path(profiles[0]) : options.paths.source / "profiles";
  std::error_code error;
  if (two_profiles)
    options.recordings = {profiles[0], profiles[1]};
  else if (given("--profiles") && options.action != Action::record && options.action != Action::tune &&
           !std::filesystem::is_directory(options.paths.profiles, error))
    throw UnavailableError(fmt::format("--profiles '{}' is not a directory{}; --record and --tune create it",
                                       options.paths.profiles.string(), error ? ": " + error.message() : ""));
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
