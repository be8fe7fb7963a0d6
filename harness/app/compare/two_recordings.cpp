#include "app/compare/two_recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/card/counters.h"
#include "app/card/opcode_counts.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "json_members.h"
#include "results/atomic_file.h"
#include "results/counter_text.h"
#include "results/profile.h"

namespace flash_ladder {
namespace {

namespace fs = std::filesystem;

// The file itself, or the file of a version in a folder.
fs::path file_of(const fs::path& path, const Version* version) {
  if (path.empty()) throw UsageError("--profiles has an empty name; name two files, or two folders and --kernel");
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  if (!version)
    throw UsageError(
        fmt::format("'{}' is a directory; name the version with --kernel, or a file of it", path.string()));
  return path / (label(*version) + ".json");
}

Profile profile_of(const fs::path& path) {
  auto profile = read_profile(path);
  if (!profile) throw UnavailableError(fmt::format("there is no profile '{}'; --record writes one", path.string()));
  if (profile->results.empty()) throw UnavailableError(fmt::format("the profile '{}' has no results", path.string()));
  return *profile;
}

bool is_counted(const Profile& profile) {
  return std::all_of(profile.results.begin(), profile.results.end(),
                     [](const Result& r) { return r.counters.has_value(); });
}

// Two results of the same configuration and problem.
struct Pair {
  const Result *a, *b;
};

struct Recordings {
  fs::path file_a, file_b;
  Profile a, b;
  std::vector<Pair> pairs;
  bool counted;  // by the virtual GPU, without timing
};

Recordings read_both(const Options& options) {
  const Version* version = nullptr;
  if (!options.kernels.empty()) {
    const auto selected = select_versions(options.kernels);
    if (selected.size() != 1)
      throw UsageError(fmt::format("--profiles A B compares two recordings of one version, and --kernel '{}' names {}",
                                   options.kernels, selected.size()));
    version = selected.front();
  }
  Recordings both{.file_a = file_of(options.recordings.first, version),
                  .file_b = file_of(options.recordings.second, version),
                  .a = {},
                  .b = {},
                  .pairs = {},
                  .counted = false};
  std::error_code error;
  if (fs::equivalent(both.file_a, both.file_b, error))
    throw UsageError(fmt::format("'{}' and '{}' are the same file; name two recordings", both.file_a.string(),
                                 both.file_b.string()));
  both.a = profile_of(both.file_a);
  both.b = profile_of(both.file_b);
  const Result &first_a = both.a.results.front(), &first_b = both.b.results.front();
  for (const auto& [file, profile] : {std::pair(&both.file_a, &both.a), std::pair(&both.file_b, &both.b)})
    for (const Result& result : profile->results)
      if (label(result) != label(profile->results.front()))
        throw UsageError(fmt::format("'{}' contains several versions, {} and {}; a profile contains one",
                                     file->string(), label(profile->results.front()), label(result)));
  if (label(first_a) != label(first_b))
    throw UsageError(fmt::format(
        "'{}' is a recording of {}, and '{}' of {}: --profiles A B compares two recordings of one version, and --diff {} {} two "
        "versions",
        both.file_a.string(), label(first_a), both.file_b.string(), label(first_b), first_a.kernel, first_b.kernel));
  both.counted = is_counted(both.a);
  if (both.counted != is_counted(both.b))
    throw UsageError(
        fmt::format("'{}' was {} ({}), and '{}' was {} ({}): a time and a count cannot be compared; name two of the "
                    "same kind",
                    both.file_a.string(), both.counted ? "counted" : "timed", both.a.device, both.file_b.string(),
                    both.counted ? "timed" : "counted", both.b.device));
  for (const Result& a : both.a.results)
    for (const Result& b : both.b.results)
      if (a.config == b.config && a.problem == b.problem) both.pairs.push_back({&a, &b});
  if (both.pairs.empty())
    throw UsageError(
        fmt::format("'{}' and '{}' have no configuration and problem in common, so there is nothing to compare",
                    both.file_a.string(), both.file_b.string()));
  return both;
}

constexpr std::size_t kColumn = 19, kChange = 9;  // "virtual GPU (sm_90)"

std::string pair_row(std::string_view name, const std::string& a, const std::string& b, const std::string& change) {
  const std::size_t figures = 2 * (kColumn + 1) + kChange + 1;
  const std::size_t width = std::clamp<std::size_t>(output_width() - std::min(output_width(), figures), 20, 44);
  std::string line = fmt::format("{} {:>{}} {:>{}} {:>{}}", pad(shortened(name, width), width), shortened(a, kColumn),
                                 kColumn, shortened(b, kColumn), kColumn, change, kChange);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

std::string count_pair_row(std::string_view name, std::int64_t a, std::int64_t b) {
  return pair_row(name, std::to_string(a), std::to_string(b), a == b ? "" : fmt::format("{:+}", b - a));
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string clock(const Profile& profile) {
  return profile.clocks.sm_max_mhz ? fmt::format("{} MHz", *profile.clocks.sm_max_mhz) : "-";
}

std::string describe_short(const Result& result) {
  const AttentionProblem& problem = result.problem;
  if (!is_plain(problem)) return fmt::format("{}: {}", result.config, describe(problem));
  const std::string keys = problem.seq_len_kv == problem.seq_len ? "" : fmt::format(" ({} keys)", problem.seq_len_kv);
  return fmt::format("{} {}: {} x {}{}", result.config, to_string(problem.dtype), problem.batch, problem.seq_len, keys);
}

// Registers and other resources of each configuration, and the opcodes that differ, which are the same for all problems.
std::string static_rows(const Recordings& both) {
  std::string text;
  bool all_same = true;
  std::set<std::string> done;
  for (const Pair& pair : both.pairs)
    for (const auto& [sm, a] : pair.a->static_study) {
      const std::string name = fmt::format("{} {}, {}", pair.a->config, to_string(pair.a->problem.dtype), sm);
      const auto found = pair.b->static_study.find(sm);
      if (found == pair.b->static_study.end() || !done.insert(name).second) continue;
      const StaticStudy& b = found->second;
      text += count_pair_row(name + ": registers", a.registers, b.registers);
      const auto add = [&](const std::string& what, int from, int to) {
        if (from != to) text += count_pair_row("  " + what, from, to);
      };
      add("bytes spilled", a.spill_bytes, b.spill_bytes);
      add("bytes of shared memory", a.smem_bytes, b.smem_bytes);
      add("CTAs per SM", a.ctas_per_sm, b.ctas_per_sm);
      if (a.sass_hash.empty() && b.sass_hash.empty()) continue;  // this SM runs the code of another architecture
      all_same = all_same && a.sass_hash == b.sass_hash;
      if (a.sass_hash != b.sass_hash) text += "  the machine code is not the same\n";
      for (const OpcodeChange& change : changes(a.hot_loop_sass, b.hot_loop_sass))
        add("hot loop, " + change.opcode, change.before, change.after);
    }
  if (!text.empty() && all_same) text += "The machine code is the same.\n";
  return text;
}

std::string counter_rows(const Pair& pair) {
  std::string text;
  std::vector<std::uint64_t> before;
  for_each_counter(*pair.a->counters, [&](const std::string&, std::uint64_t count) { before.push_back(count); });
  auto old = before.begin();
  for_each_counter(*pair.b->counters, [&](const std::string& name, std::uint64_t count) {
    const std::uint64_t was = *old++;
    if (count != was)
      text += pair_row("  " + in_words(name), std::to_string(was), std::to_string(count),
                       was == 0 ? "" : fmt::format("{:.3f}x", static_cast<double>(count) / static_cast<double>(was)));
  });
  return text.empty() ? "  all counters are the same\n" : text;
}

std::string format_recordings(const Recordings& both, const Paint& paint) {
  const Profile &a = both.a, &b = both.b;
  std::string text = paint.bold(label(a.results.front())) + "\n\n";
  text += labelled("A", both.file_a.string()) + labelled("B", both.file_b.string()) + '\n';
  text += paint.bold(pair_row("", "A", "B", "B / A"));
  text += pair_row("device", a.device, b.device, "");
  text += pair_row("recorded", or_dash(a.date.substr(0, 10)), or_dash(b.date.substr(0, 10)), "");
  text += pair_row("CUDA", a.toolkit, b.toolkit, "");
  text += pair_row("driver", or_dash(a.driver), or_dash(b.driver), "");
  if (!both.counted) text += pair_row("highest clock of the SMs", clock(a), clock(b), "");
  constexpr std::size_t kHash = 15;  // "sha256:" and eight digits
  text += pair_row("code", a.code_hash.substr(0, kHash), b.code_hash.substr(0, kHash),
                   a.code_hash == b.code_hash ? "the same" : "");
  if (a.code_hash != b.code_hash)
    text += paint.notable(labelled("", "The code differs, which may be the cause of the differences below."));
  if (both.counted) {
    text += paint.bold("\nCounters that differ\n");
    for (const Pair& pair : both.pairs) text += describe_short(*pair.a) + '\n' + counter_rows(pair);
  } else {
    text += paint.bold("\nTFLOP/s\n");
    for (const Pair& pair : both.pairs) {
      const auto figure = [](const Result& result) {
        return result.tflops ? fmt::format("{:.1f}", *result.tflops) : std::string("-");
      };
      text +=
          pair_row(describe_short(*pair.a), figure(*pair.a), figure(*pair.b),
                   pair.a->tflops && pair.b->tflops ? fmt::format("{:.3f}x", *pair.b->tflops / *pair.a->tflops) : "");
    }
  }
  const std::size_t left_out = both.a.results.size() + both.b.results.size() - 2 * both.pairs.size();
  if (left_out > 0)
    text +=
        fmt::format("{} results are left out, because only one of the two recordings has their problem\n", left_out);
  if (const std::string rows = static_rows(both); !rows.empty()) text += paint.bold("\nCompiled code\n") + rows;
  return text;
}

// harness/results/recordings.schema.json
nlohmann::json recordings_document(const Recordings& both) {
  const auto head = [](const fs::path& file, const Profile& profile) {
    return nlohmann::json{{"file", file.string()},
                          {"device", profile.device},
                          {"code_hash", profile.code_hash},
                          {"toolkit", profile.toolkit},
                          {"driver", known_or_null(profile.driver)},
                          {"date", known_or_null(profile.date)}};
  };
  auto pairs = nlohmann::json::array();
  for (const Pair& pair : both.pairs) {
    const auto counters = [](const Result& result) {
      return result.counters ? counters_to_json(*result.counters, Zeros::kept) : nlohmann::json(nullptr);
    };
    nlohmann::json one{{"config", pair.a->config}, {"problem", pair.a->problem}};
    for (const auto& [name, result] : {std::pair("a", pair.a), std::pair("b", pair.b)})
      one[name] = {
          {"tflops", known_or_null(result->tflops)}, {"counters", counters(*result)}, {"static", result->static_study}};
    pairs.push_back(std::move(one));
  }
  return {{"kernel", both.a.results.front().kernel},
          {"name", both.a.results.front().name},
          {"same_code", both.a.code_hash == both.b.code_hash},
          {"a", head(both.file_a, both.a)},
          {"b", head(both.file_b, both.b)},
          {"results", pairs}};
}

}  // namespace

int compare_recordings(const Options& options) {
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  const Recordings both = read_both(options);
  say(options, format_recordings(both, Paint()));
  write_json(options, recordings_document(both));
  return kExitOk;
}

}  // namespace flash_ladder
