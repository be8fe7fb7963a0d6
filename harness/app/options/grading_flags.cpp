#include "app/options/grading_flags.h"

#include <fmt/format.h>

#include "errors.h"

namespace flash_ladder {
namespace {

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
    {"--hidden", "FILE",
     "File that contains the seed for the shapes and inputs of the tests; or put the seed into the environment variable "
     "FLASH_LADDER_HIDDEN (the course's name)"},
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

constexpr const char* kTeaching = "Teaching";

}  // namespace

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
    option->description(flag.help)->group(kTeaching);
  }
}

bool asks_for_grader(const CLI::App& app) {
  bool grades = false;
  for (const GradingFlag& flag : kGradingFlags) grades |= flag.says_what_to_do && app.count(flag.name) != 0;
  for (const GradingFlag& flag : kGradingFlags) {
    if (app.count(flag.name) == 0) continue;
    if (!grades)
      throw UsageError(
          fmt::format("{} can only be used with --grade, --grade-dir, --starter or --compare-courses", flag.name));
    for (const CLI::Option* other : app.get_options())
      if (other->count() > 0 && !other->get_group().empty() && other->get_group() != kTeaching)
        throw UsageError(
            fmt::format("{} cannot be combined with {}: the assignment determines what runs; leave one out",
                        other->get_name(), flag.name));
  }
  return grades;
}

}  // namespace flash_ladder
