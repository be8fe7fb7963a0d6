#include "app/quiz/quiz.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "app/card/busy_view.h"
#include "app/card/counters.h"
#include "app/card/opcode_counts.h"
#include "app/card/profiles.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/configuration_choice.h"
#include "app/run/kernel_code.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "host/sm_limits.h"
#include "sass/machine_code.h"
#include "sass/static_study.h"
#include "source/kernel_source.h"
#include "trimmed.h"

namespace flash_ladder {
namespace {

constexpr double kLeast = 0.001, kMost = 1000;

// The speeds of both versions on one device, measured in the same way.
struct Measured {
  RecordedSpeed before, after;
  bool stale() const { return before.stale || after.stale; }
  double factor() const { return after.tflops / before.tflops; }
};

std::vector<Measured> measurements(Profiles& profiles, const Version& before, const Version& version,
                                   const AttentionProblem& problem) {
  std::vector<Measured> found;
  for (const std::string& folder : profiles.devices())
    if (auto both = profiles.speeds(folder, before, version, problem))
      found.push_back({std::move(both->first), std::move(both->second)});
  return found;
}

// "119,904 warp instructions, 0.62x of 193,120"
std::string count_line(std::string_view what, double before, double after) {
  const std::string change = before > 0 ? fmt::format(" ({:.2f}x)", after / before) : "";
  return fmt::format("{} {:.0f} → {:.0f}{}", what, before, after, change);
}

// What the virtual GPU counted for both, as recorded, at the first problem that both recordings contain.
std::string recorded_counts(Profiles& profiles, const Version& before, const Version& version, Dtype dtype) {
  const Recording *a = profiles.find("emulator", before), *b = profiles.find("emulator", version);
  if (!a || !b) return "";
  for (const Result& after : b->profile.results) {
    if (after.problem.dtype != dtype || !after.counters) continue;
    for (const Result& old : a->profile.results) {
      if (!(old.problem == after.problem) || !old.counters) continue;
      const auto sum = [](const Counters& counters, auto member) {
        return static_cast<double>((counters.shared_load.*member) + (counters.shared_store.*member) +
                                   (counters.shared_copy.*member));
      };
      const auto global = [](const Counters& c) {
        return static_cast<double>(c.global_load.transactions + c.global_store.transactions);
      };
      const Counters &x = *old.counters, &y = *after.counters;
      return fmt::format(
          "{}; {}; {} (virtual GPU, {}{})",
          count_line("warp instructions", static_cast<double>(x.warp_instructions),
                     static_cast<double>(y.warp_instructions)),
          count_line("wavefronts of shared memory", sum(x, &Traffic::transactions), sum(y, &Traffic::transactions)),
          count_line("sectors of global memory", global(x), global(y)), describe(after.problem),
          a->stale || b->stale ? std::string("; ") + kStale : "");
    }
  }
  return "";
}

// The opcodes of the hot loop whose counts changed most.
std::string sass_changes(const Version& before, const Version& version, const Options& options) {
  const int sm = options.sm.value_or(kDefaultSm);
  const auto counts = [&](const Version& one) -> OpcodeCounts {
    const auto choice = choose_configuration(one, options.config, options.problem, std::nullopt, sm);
    if (!choice.configuration) return {};
    const auto studies = static_study(one, *choice.configuration, options.paths.study);
    const StaticStudy* study = code_for(studies, sm);
    return study ? study->hot_loop_sass : OpcodeCounts();
  };
  const OpcodeCounts from = counts(before), to = counts(version);
  if (from.empty() || to.empty()) return "";
  constexpr std::size_t kMostShown = 8;
  std::vector<std::string> parts;
  for (const OpcodeChange& change : changes(from, to))
    if (change.change() != 0 && parts.size() < kMostShown)
      parts.push_back(fmt::format("{} {} → {}", change.opcode, change.before, change.after));
  return fmt::format("hot loop, per iteration ({}): {} instructions → {}; {}", code_name(sm), total(from), total(to),
                     fmt::join(parts, ", "));
}

// Asks until a line is a factor. Throws UsageError at the end of the input, or after several lines that are not factors.
double ask() {
  constexpr int kTries = 5;
  const std::string_view prompt = "Your factor, such as 2 or 0.8: ";
  for (int i = 0; i < kTries; ++i) {
    write_out(prompt);
    std::string line;
    if (!std::getline(std::cin, line)) {
      write_out("\n");
      throw UsageError(
          "the input ended without a factor, so nothing is shown: type a number such as 2 or 0.8, or use "
          "echo 1.3 | harness --kernel NN --quiz; harness --kernel NN shows everything without a question");
    }
    if (isatty(STDIN_FILENO) == 0) write_out(std::string(trimmed(line)) + '\n');  // no terminal has echoed it
    if (const auto factor = parse_factor(line)) return *factor;
    complain(fmt::format(
        "'{}' is not a factor; 1.3 means 1.3 times as many TFLOP/s, 0.9 means slower; allowed are {} to {:.0f}",
        trimmed(line), kLeast, kMost));
  }
  throw UsageError(fmt::format("none of the {} lines was a factor; type a number such as 2 or 0.8", kTries));
}

}  // namespace

std::optional<double> parse_factor(const std::string& text) {
  std::string number(trimmed(text));
  for (const std::string_view times : {"x", "X", "×"})
    if (number.ends_with(times)) {
      number = trimmed(number.substr(0, number.size() - times.size()));
      break;
    }
  if (const std::size_t comma = number.find(','); comma != std::string::npos) number[comma] = '.';
  double factor = 0;
  const char* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, factor, std::chars_format::fixed);
  if (number.empty() || stop != end || error != std::errc{} || !(factor >= kLeast && factor <= kMost))
    return std::nullopt;
  return factor;
}

std::string judge(double guess, double measured) {
  // On a logarithmic scale, on which half and twice are equally far from 1.
  const double off = std::abs(std::log(guess / measured));
  if (off <= std::log(1.05)) return "within 5 %";
  const std::string side = guess > measured ? "too much" : "too little";
  const bool wrong_way = (guess - 1) * (measured - 1) < 0 && std::abs(measured - 1) > 0.01;
  return fmt::format("{} by a factor of {:.2f}{}", side, std::exp(off), wrong_way ? ", in the opposite direction" : "");
}

int quiz(const Options& options) {
  const auto selected = select_versions(options.kernels);
  if (selected.size() != 1)
    throw UsageError(
        fmt::format("--quiz asks about one version, and --kernel '{}' names {}; name one, such as --kernel 07",
                    options.kernels, selected.size()));
  const Version& version = *selected.front();
  const Version* before = version_before(version);
  if (!before)
    throw UsageError(
        fmt::format("--quiz asks for a factor over the version before, and {} is the first; try --kernel {}",
                    label(version), kernel_id(versions().at(1))));
  for (const auto& [_, why] : provide_code({&version, before})) throw UnavailableError(why);
  Profiles profiles(options.paths);
  const auto measured = measurements(profiles, *before, version, options.problem);
  const HeaderComment header = read_header_comment(source_file(version, options.paths.source));
  const Paint paint;

  std::string question = paint.bold(fmt::format("{} → {}", label(*before), label(version))) + "\n\n";
  if (!header.changed.empty()) question += labelled(paint.dim("Changed"), header.changed);
  question +=
      labelled(paint.dim("Before"),
               measured.empty() ? fmt::format("no figures of both are recorded for {}", describe(options.problem))
                                : fmt::format("{} reaches {:.1f} TFLOP/s on {} ({}; {})", label(*before),
                                              measured.front().before.tflops, measured.front().before.device,
                                              measured.front().before.way, describe(options.problem)));
  question +=
      labelled(paint.dim("Question"), fmt::format("by what factor does {} change the TFLOP/s?", label(version)));
  write_out(question + '\n');
  const double guess = ask();

  std::string answer = "\n";
  const auto line = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) answer += labelled(paint.dim(name), text);
  };
  line("Idea", header.idea);
  line("Prediction", header.prediction);
  answer += '\n';
  line("Counted", recorded_counts(profiles, *before, version, options.problem.dtype));
  line("SASS", sass_changes(*before, version, options));
  for (const BusyVersion& busy : busy_of(profiles, profiles.devices(), *before, ""))
    line("Busy before", describe_busy(busy) + (busy.stale ? fmt::format(" {}", kStale) : ""));
  for (const BusyVersion& busy : busy_of(profiles, profiles.devices(), version, ""))
    line("Busy now", describe_busy(busy) + (busy.stale ? fmt::format(" {}", kStale) : ""));
  answer += '\n';
  line("You", fmt::format("{:.2f}x", guess));
  for (const Measured& one : measured)
    line("Measured", fmt::format("{}: {:.1f} → {:.1f} TFLOP/s on {}, {}{}. Your guess: {}.",
                                 paint.bold(fmt::format("{:.2f}x", one.factor())), one.before.tflops, one.after.tflops,
                                 one.after.device, one.after.way, one.stale() ? std::string("; ") + kStale : "",
                                 judge(guess, one.factor())));
  if (measured.empty())
    line("Measured", "no figures of both are recorded for this problem; --record measures the standard shapes");
  answer += '\n';
  line("Read on", fmt::format("{}  ·  harness --diff {} {}", version.source, kernel_id(*before), kernel_id(version)));
  write_out(answer);
  for (const auto& problem : profiles.problems()) complain(problem);
  return profiles.problems().empty() && !measured.empty() ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
