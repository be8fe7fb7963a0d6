#include "app/options/contradictions.h"

#include <fmt/format.h>

#include <sstream>
#include <string_view>

#include "app/options/problem_flags.h"
#include "errors.h"

namespace flash_ladder {
namespace {

enum class Relation { excludes, needs };
using enum Relation;

// A rule holds for each flag of `flags` and each flag of `others`. "problem" stands for all flags of the problem.
struct Rule {
  const char* flags;
  Relation relation;
  const char* others;
  const char* why;
};

constexpr Rule kRules[] = {
    {"--list", excludes, "--diff --kernel --sass --record", "--list only shows the versions"},
    {"--list", excludes, "--device --config --sm", "--list shows all devices and configurations"},
    {"--list --sass --ptx --quiz", excludes,
     "--data --seed --repeat --timeout --lines --all-findings --max-instructions --no-check --no-bench",
     "it runs nothing"},
    {"--diff --record --tune", excludes, "--data", "profiles/ contains only measurements with normal data"},
    {"--diff", excludes, "--device", "--diff compares recordings, and counts on the virtual GPU"},
    {"--sass", excludes, "--device", "--sass runs nothing, and --sm selects the code that it shows"},
    {"--diff", excludes, "--kernel --sass --record", "--diff only compares two versions"},
    {"--sass", excludes, "--record", "--sass runs nothing"},
    {"--record", excludes, "--no-check --no-bench", "a profile contains only results that were checked and timed"},
    {"--record", excludes, "problem", "a profile contains the standard shapes"},
    {"--record", excludes, "--config", "a profile contains every configuration"},
    {"--record", excludes, "--sm", "the virtual GPU is always recorded as sm_90, and a GPU has its own limits"},
    {"--tune", excludes, "--kernel --list --diff --sass --record",
     "--tune names the version itself and only times its configurations"},
    {"--tune", excludes, "--config", "--tune compares all configurations"},
    {"--tune", excludes, "--no-check --no-bench", "it stores only results that were checked and timed"},
    {"--tune", excludes, "--lines --all-findings --max-instructions",
     "these are for the virtual GPU, which has no clock"},
    {"--trace", excludes, "--list --diff --sass --ptx --quiz --record --tune --debug",
     "a trace shows one run of one version"},
    {"--debug", excludes, "--kernel --list --diff --sass --ptx --quiz --record --tune",
     "--debug names the version itself and examines its output"},
    {"--debug", excludes, "--no-check --no-bench --repeat --lines", "--debug compares everything and times nothing"},
    {"--html", needs, "--diff", "it writes the comparison of two versions as a page"},
    {"--listing", needs, "--sass", "it lists what --sass counts"},
    {"--registers", needs, "--listing", "it adds details to the listed instructions"},
    {"--listing", excludes, "--json", "a listing is text, and --sass --json has the counts"},
    {"--ptx", excludes, "--list --diff --sass --record --tune --quiz --json --device",
     "--ptx only shows the SASS generated from PTX"},
    {"--quiz", excludes, "--config", "--quiz compares the fastest configurations that are recorded"},
    {"--quiz", excludes, "--list --diff --sass --record --tune --json --device",
     "--quiz asks a question and shows recorded figures"},
};

// Two names after --profiles compare every problem that both recordings have, and run nothing.
constexpr const char* kNotWithTwoProfiles =
    "problem --list --diff --sass --ptx --quiz --record --tune --debug --trace --device --sm --config --data --seed "
    "--no-check --no-bench --repeat --lines --all-findings --timeout --max-instructions";

std::vector<std::string> flags_of(const char* words) {
  std::vector<std::string> flags;
  std::istringstream text(words);
  for (std::string word; text >> word;) {
    const std::vector<std::string> named = word == "problem" ? ProblemFlags::names() : std::vector{word};
    flags.insert(flags.end(), named.begin(), named.end());
  }
  return flags;
}

void check(const Rule& rule, const CLI::App& app) {
  for (const std::string& flag : flags_of(rule.flags)) {
    if (app.count(flag) == 0) continue;
    for (const std::string& other : flags_of(rule.others)) {
      const bool both = app.count(other) != 0;
      if (rule.relation == excludes && both)
        throw UsageError(fmt::format("{} cannot be combined with {}: {}; leave one out", flag, other, rule.why));
      if (rule.relation == needs && !both)
        throw UsageError(fmt::format("{} can only be used with {}: {}", flag, other, rule.why));
    }
  }
}

}  // namespace

void refuse_contradictions(const CLI::App& app, const std::vector<std::string>& profiles) {
  const auto given = [&](const std::string& flag) { return app.count(flag) != 0; };
  for (const Rule& rule : kRules) check(rule, app);
  for (const char* flag : {"--row", "--head"})
    if (given(flag) && !given("--debug"))
      throw UsageError(fmt::format("{} selects what --debug shows; add --debug VERSION, or leave it out", flag));
  if (profiles.size() == 2)
    for (const std::string& other : flags_of(kNotWithTwoProfiles))
      if (given(other))
        throw UsageError(fmt::format(
            "{} cannot be combined with two names after --profiles ('{}' and '{}'), which compare two recordings; "
            "leave one out",
            other, profiles[0], profiles[1]));
  if (given("--no-check") && given("--no-bench"))
    throw UsageError("--no-check and --no-bench leave nothing to run; to count without running, use --sass");
}

}  // namespace flash_ladder
