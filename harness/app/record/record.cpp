#include "app/record/record.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "app/card/counters.h"
#include "app/card/hints.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/options/standard_shapes.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "app/run/up_to_date.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "results/document.h"
#include "results/profile.h"
#include "rules/support.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

// Versions slower than 04 would take most of an hour for the two longest shapes.
constexpr std::int64_t kLongestSlowSeqLen = 4096;

// For what an extension shares with its base, and for each further head_dim: recording takes seconds a point.
constexpr std::int64_t kFewSeqLens[] = {4096, 16384};

// Keys to the left of a query's own, as models have them, and the shortest sequence of which they are a small part.
constexpr struct {
  std::int64_t window, shortest_seq_len;
} kStandardWindows[] = {{1024, 2048}, {512, 8192}};

std::optional<int> if_known(int value) { return value > 0 ? std::optional(value) : std::nullopt; }

Profile profile_of(const DeviceInfo& device, std::string code_hash, std::vector<Result> results) {
  return {.device = device.name,
          .code_hash = std::move(code_hash),
          .toolkit = FLASH_LADDER_TOOLKIT,
          .driver = device.driver,
          .clocks = {if_known(device.sm_clock_max_mhz), if_known(device.memory_clock_max_mhz)},
          .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))),
          .results = std::move(results)};
}

std::string line(const Result& result) {
  std::string figure = to_string(result.status);
  if (result.tflops) figure = fmt::format("{:.1f} TFLOP/s", *result.tflops);
  if (result.tflops && is_decoding(result.problem))
    figure = fmt::format("{:.0f} GB/s", kv_gb_per_s(result.problem, *result.tflops));
  if (result.counters) figure = summarise_counters(result).instructions + " instr.";
  std::string text = fmt::format("  {}  {:<8} {:>16}\n", pad(describe(result.problem), 66), result.config, figure);
  if (!result.reason.empty()) text += labelled("", result.reason);
  return text;
}

// 64 sequences with log-normal lengths, 1024 in the mean, in an order that mixes short and long ones.
AttentionProblem packed_standard_problem() {
  constexpr std::int64_t kSequences = 64, kTotal = 64 * 1024, kStep = 27;  // coprime to 64
  constexpr double kDeviation = 0.8;                                       // of the logarithm
  // Lengths at evenly spaced quantiles: the number of which `quantile` of all are smaller, by bisection.
  const auto normal_at = [](double quantile) {
    double low = -8, high = 8;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::numbers::sqrt2) / 2 < quantile ? low : high) = middle;
    }
    return low;
  };
  std::vector<double> relative;
  for (std::int64_t i = 0; i < kSequences; ++i)
    relative.push_back(std::exp(kDeviation * normal_at((i * kStep % kSequences + 0.5) / kSequences)));
  const double sum = std::accumulate(relative.begin(), relative.end(), 0.0);
  AttentionProblem problem{.batch = kSequences, .heads = kStandardHeads, .head_dim = kStandardHeadDim, .packed = true};
  for (const double length : relative)
    problem.lengths.push_back(static_cast<std::int64_t>(std::lround(length / sum * kTotal)));
  problem.lengths.back() += kTotal - std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  problem.lengths_kv = problem.lengths;
  problem.seq_len = problem.seq_len_kv = std::ranges::max(problem.lengths);
  return problem;
}

std::vector<std::pair<AttentionProblem, const Configuration*>> what_to_record(const Version& version, bool is_virtual) {
  std::vector<std::pair<AttentionProblem, const Configuration*>> runs;
  if (is_virtual) {
    for (const Configuration& configuration : version.configurations)
      for (const AttentionProblem& problem : emulator_problems(version, configuration))
        runs.emplace_back(problem, &configuration);
    return runs;
  }
  for (const AttentionProblem& problem : standard_problems(version))
    for (const Configuration& configuration : version.configurations)
      if (configuration.dtype == problem.dtype && configuration.head_dim == problem.head_dim &&
          configuration.head_dim_v == value_head_dim(problem))
        runs.emplace_back(problem, &configuration);
  return runs;
}

// One query against the caches of the standard shapes, with few heads of K and V and with as many as of Q; and caches of
// different lengths. A version that solves them has some of the caches in pages, with a new token, and in 8 bits.
std::vector<AttentionProblem> decoding_problems(const Version& version) {
  std::vector<AttentionProblem> problems;
  const auto add = [&](const StandardShape& shape, std::int64_t kv_heads, Dtype dtype) -> AttentionProblem& {
    return problems.emplace_back(in_plainest_form({.batch = shape.batch,
                                                   .heads = kDecodingHeads,
                                                   .seq_len = 1,
                                                   .seq_len_kv = shape.seq_len,
                                                   .head_dim = kStandardHeadDim,
                                                   .dtype = dtype,
                                                   .kv_heads = kv_heads}));
  };
  for (const std::int64_t kv_heads : kDecodingKvHeads) {
    for (const StandardShape& shape : kDecodingShapes) add(shape, kv_heads, Dtype::fp16);
    add(kDefaultDecodingShape, kv_heads, Dtype::bf16);
  }
  if (version.solves.paged) {
    const std::size_t contiguous = problems.size();
    for (std::size_t i = 0; i < contiguous; ++i) {
      if (problems[i].kv_heads != kDecodingKvHeads.front() || problems[i].dtype != Dtype::fp16) continue;
      problems.push_back(problems[i]);
      problems.back().page_size = kStandardPageSize;
    }
  }
  if (version.solves.causal)
    for (const StandardShape& shape : kDecodingShapes) {
      AttentionProblem& problem = add(shape, kDecodingKvHeads.front(), Dtype::fp16);
      problem.seq_len = kSeveralQueries;
      problem.causal = true;
    }
  const auto add_appended = [&](std::int64_t rotary_dim) {
    for (const StandardShape& shape : kDecodingShapes) {
      AttentionProblem& problem = add(shape, kDecodingKvHeads.front(), Dtype::fp16);
      problem.append = true;
      problem.rotary_dim = rotary_dim;
    }
  };
  if (version.solves.append) add_appended(0);
  if (version.solves.rotary) add_appended(kStandardHeadDim);
  if (version.solves.fp8_cache) {
    for (const std::int64_t kv_heads : kDecodingKvHeads)
      for (const StandardShape& shape : kDecodingShapes) add(shape, kv_heads, Dtype::fp16).fp8_cache = true;
    add(kDefaultDecodingShape, kDecodingKvHeads.front(), Dtype::bf16).fp8_cache = true;
  }
  AttentionProblem& mixed = add(kDecodingShapes.back(), kDecodingKvHeads.front(), Dtype::fp16);
  for (std::int64_t i = 1; i <= mixed.batch; ++i) mixed.lengths_kv.push_back(mixed.seq_len_kv * i / mixed.batch);
  return problems;
}

// What the virtual GPU counts: the default problem, other numbers of keys, of heads and of queries.
std::vector<AttentionProblem> emulator_decoding_problems(const Version& version, const Configuration& configuration) {
  const AttentionProblem first{.batch = kEmulatorDecodingShape.batch,
                               .heads = kEmulatorDecodingHeads,
                               .seq_len = 1,
                               .seq_len_kv = kEmulatorDecodingShape.seq_len,
                               .head_dim = configuration.head_dim,
                               .dtype = configuration.dtype,
                               .kv_heads = kEmulatorDecodingKvHeads};
  std::vector<AttentionProblem> problems(6, first);
  problems[1].seq_len_kv -= 1;
  problems[2].seq_len_kv -= configuration.block_kv;
  problems[3].kv_heads = 0;
  problems[4].seq_len = 3;
  problems[5].lengths_kv = {1, first.seq_len_kv / 2 + 1};
  if (version.solves.paged) {
    problems.push_back(first);
    problems.back().page_size = kStandardPageSize;
  }
  if (version.solves.causal) {
    problems.push_back(first);
    problems.back().seq_len = kSeveralQueries;
    problems.back().causal = true;
  }
  if (version.solves.append) {
    problems.push_back(first);
    problems.back().append = true;
  }
  if (version.solves.rotary) {
    problems.push_back(problems.back());
    problems.back().rotary_dim = configuration.head_dim;
  }
  if (version.solves.fp8_cache) {
    problems.push_back(first);
    problems.back().fp8_cache = true;
  }
  return problems;
}

}  // namespace

std::vector<AttentionProblem> standard_problems(const Version& version) {
  if (version.track == Track::decoding) return decoding_problems(version);
  std::vector<AttentionProblem> problems;
  const auto computes = [&](Dtype dtype) {
    return std::ranges::any_of(version.configurations, [&](const Configuration& c) { return c.dtype == dtype; });
  };
  enum class Shapes { all, few };
  const auto add_all = [&](Shapes shapes, const std::function<void(AttentionProblem&)>& change,
                           std::int64_t shortest = 0) {
    const auto add = [&](const StandardShape& shape, Dtype dtype) {
      if (shape.seq_len < shortest || (!is_fast(version) && shape.seq_len > kLongestSlowSeqLen)) return;
      if (shapes == Shapes::few && std::ranges::find(kFewSeqLens, shape.seq_len) == std::end(kFewSeqLens)) return;
      problems.push_back({.batch = shape.batch,
                          .heads = kStandardHeads,
                          .seq_len = shape.seq_len,
                          .seq_len_kv = shape.seq_len,
                          .head_dim = kStandardHeadDim,
                          .dtype = dtype});
      change(problems.back());
    };
    for (const Dtype dtype : {Dtype::fp16, Dtype::e4m3})
      if (computes(dtype))
        for (const StandardShape& shape : kStandardShapes) add(shape, dtype);
    if (computes(Dtype::bf16) && shapes == Shapes::all) add(kDefaultShape, Dtype::bf16);
  };
  const Solves base = version.is_extension() ? select_version(version.extends).solves : Solves();
  const bool adds_a_field = std::ranges::any_of(
      kSolves, [&](const auto& field) { return version.solves.*field.second && !(base.*field.second); });
  const auto shapes_of = [&](bool Solves::* field) { return base.*field && adds_a_field ? Shapes::few : Shapes::all; };

  add_all(version.is_extension() && adds_a_field ? Shapes::few : Shapes::all, [](AttentionProblem&) {});
  if (version.solves.causal)
    add_all(shapes_of(&Solves::causal), [](AttentionProblem& problem) { problem.causal = true; });
  if (version.solves.kv_heads)
    add_all(shapes_of(&Solves::kv_heads), [](AttentionProblem& problem) { problem.kv_heads = problem.heads / 4; });
  if (version.solves.window)
    for (const auto& [window, shortest] : kStandardWindows)
      add_all(
          shapes_of(&Solves::window),
          [&](AttentionProblem& problem) {
            problem.causal = version.solves.causal;
            problem.window_left = window;
          },
          shortest);
  if (version.solves.lengths)  // from 1/batch of the longest length up to all of it
    add_all(shapes_of(&Solves::lengths), [](AttentionProblem& problem) {
      for (std::int64_t i = 1; i <= problem.batch; ++i) problem.lengths.push_back(problem.seq_len * i / problem.batch);
      problem.lengths_kv = problem.lengths;
    });
  const Dtype first_type = version.configurations.front().dtype;
  std::set<std::pair<std::int64_t, std::int64_t>> sizes = unequal_head_dims(version, first_type);
  for (const std::int64_t head_dim : head_dims(version, first_type))
    if (head_dim != kStandardHeadDim) sizes.emplace(head_dim, 0);
  for (const auto& [head_dim, head_dim_v] : sizes)
    for (const bool causal : {false, true})
      if (!causal || version.solves.causal)
        add_all(Shapes::few, [&](AttentionProblem& problem) {
          problem.head_dim = head_dim;
          problem.head_dim_v = head_dim_v;
          problem.causal = causal;
        });
  if (version.solves.packed) {
    problems.push_back(packed_standard_problem());
    problems.back().causal = version.solves.causal;
  }
  const auto add_change = [&](const std::function<void(AttentionProblem&)>& change) {
    add_all(Shapes::few, [&](AttentionProblem& problem) {
      problem.causal = version.solves.causal;
      change(problem);
    });
  };
  if (version.solves.scores) {
    add_change([](AttentionProblem& problem) { problem.softcap = 50; });  // Gemma 2's
    add_change([](AttentionProblem& problem) { problem.alibi = true; });
    add_change([](AttentionProblem& problem) { problem.sinks = true; });
  }
  if (version.solves.dropout) add_change([](AttentionProblem& problem) { problem.dropout_p = 0.1; });
  return problems;
}

std::vector<AttentionProblem> emulator_problems(const Version& version, const Configuration& configuration) {
  if (version.track == Track::decoding) return emulator_decoding_problems(version, configuration);
  constexpr std::int64_t kSeqLen = kEmulatorShape.seq_len;
  std::vector<AttentionProblem> problems;
  const auto add = [&](std::int64_t seq_len, std::int64_t seq_len_kv) -> AttentionProblem& {
    return problems.emplace_back(in_plainest_form({.batch = kEmulatorShape.batch,
                                                   .heads = kEmulatorHeads,
                                                   .seq_len = seq_len,
                                                   .seq_len_kv = seq_len_kv,
                                                   .head_dim = configuration.head_dim,
                                                   .dtype = configuration.dtype,
                                                   .head_dim_v = configuration.head_dim_v}));
  };
  add(kSeqLen, kSeqLen);
  if (configuration.head_dim != kStandardHeadDim) {  // counts for each field would fill megabytes per head_dim
    if (version.solves.causal) add(kSeqLen, kSeqLen).causal = true;
    return problems;
  }
  add(kSeqLen, kSeqLen - configuration.block_kv);
  if (version.solves.any_length) add(kSeqLen - 1, kSeqLen - 1);
  if (version.solves.causal) add(kSeqLen, kSeqLen).causal = true;
  if (version.solves.kv_heads) add(kSeqLen, kSeqLen).kv_heads = 1;
  if (version.solves.window) {
    AttentionProblem& problem = add(kSeqLen, kSeqLen);
    problem.window_left = problem.window_right = kSeqLen / 4;
  }
  if (version.solves.window && version.solves.causal) {
    AttentionProblem& problem = add(kSeqLen, kSeqLen);
    problem.causal = true;
    problem.window_left = kSeqLen / 4;
  }
  if (version.solves.lengths) {
    AttentionProblem& problem = add(kSeqLen, kSeqLen);
    problem.lengths = problem.lengths_kv = {kSeqLen / 2 + 1};
  }
  if (version.solves.packed) {
    AttentionProblem& problem = add(kSeqLen, kSeqLen);
    problem.batch = 3;
    problem.packed = true;
    problem.lengths = problem.lengths_kv = {kSeqLen / 4 + 1, kSeqLen, 9};
  }
  if (version.solves.scores) {
    AttentionProblem& problem = add(kSeqLen, kSeqLen);
    problem.softcap = 50;
    problem.alibi = problem.sinks = true;
  }
  if (version.solves.dropout) add(kSeqLen, kSeqLen).dropout_p = 0.1;
  return problems;
}

int record(const Options& options) {
  const auto selected = select_all_with_code(options.kernels);
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (const auto file = newer_source(selected, options.paths.source))
    throw UsageError(fmt::format(
        "--record: {} is newer than the compiled code; build again, so that the profile names the code that ran",
        *file));
  const Runner runner(options);
  if (!runner.device().gpu)
    throw UnavailableError(fmt::format("--record needs a GPU or the virtual GPU: {}", runner.device().why));
  const DeviceInfo& device = runner.device().gpu->info;
  const auto directory =
      options.paths.profiles / (runner.is_virtual() ? std::string("emulator") : device_slug(device.name));
  const auto file_of = [&](const Version& version) { return directory / (label(version) + ".json"); };
  for (const Version* version : selected) check_document_writable(file_of(*version));
  say(options, labelled("Device", runner.device().why));

  const Paint paint;
  std::vector<Result> all;
  for (const Version* version : selected) {
    say(options, fmt::format("\n{}\n", paint.bold(label(*version))));
    // Take the hash before the work, because a file that is edited meanwhile is not what ran.
    const auto hash = code_hash(source_file(*version, options.paths.source), options.paths.source / "common");
    std::vector<Result> kept;
    bool all_right = true;
    std::set<const Configuration*> checked;
    for (const auto& [problem, configuration] : what_to_record(*version, runner.is_virtual())) {
      // The small problems of the check are the same each time: check them once per configuration.
      const bool known = !checked.insert(configuration).second;
      Result result =
          runner.run(*version, {.problem = problem, .config = configuration->name, .only_requested_problem = known});
      say(options,
          line(result) + format_findings(result, options.all_findings, paint) + format_mismatches(result, paint));
      all.push_back(result);
      if (result.status == Status::skipped) continue;  // does not fit this device: not the version's fault
      const bool measured = runner.is_virtual() ? result.counters.has_value() : result.ms && result.tflops;
      all_right = all_right && result.status == Status::ok && result.correct == true && measured;
      // The host's mathematics library affects these values, so they are not the same everywhere.
      if (runner.is_virtual()) result.max_abs_error = result.relative_error = std::nullopt;
      result.roles.clear();    // they follow from the code
      result.checked.clear();  // these follow from check_sets()
      // Of a profile's bytes, nine in ten would be counts per source line. Those of the first problem are what pages quote.
      if (!kept.empty()) result.lines.clear();
      kept.push_back(std::move(result));
    }
    const auto path = file_of(*version);
    if (all_right && !kept.empty()) {
      Profile profile = profile_of(device, hash, kept);
      if (runner.is_virtual()) profile.date = profile.driver = "";
      write_profile(path, profile);
      say(options, fmt::format("  wrote {}\n", path.string()));
    } else {
      complain(fmt::format("{}: no profile was written, because {}", label(*version),
                           kept.empty() ? "nothing could run" : "some results were wrong or not measured"));
    }
  }
  write_json(options, all);
  return exit_code(options, all);
}

}  // namespace flash_ladder
