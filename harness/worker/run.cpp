#include "worker/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "errors.h"
#include "host/versions.h"
#include "problem/fields.h"
#include "problem/kind.h"
#include "problem/problem.h"
#include "results/trace_file.h"
#include "rules/support.h"
#include "rules/version_name.h"
#include "worker/benchmark.h"
#include "worker/check_sets.h"
#include "worker/checker.h"
#include "worker/cuda_check.h"
#include "worker/device_problem.h"
#include "worker/diagnosis/diagnosis.h"
#include "worker/diagnosis/gradient_steps.h"
#include "worker/diagnosis/tile_by_tile.h"
#include "worker/gpu.h"
#include "worker/gradients.h"
#include "worker/neighbours.h"
#include "worker/observation.h"
#include "worker/reference_cache.h"
#include "worker/timing.h"

namespace flash_ladder {
namespace {

void refuse_if(const std::optional<std::string>& why) {
  if (why) throw UsageError(*why);
}

// The configuration of this name, after checking that it can run the problem here.
const Configuration& runnable_configuration(const Version& version, const Request& request, const std::string& name,
                                            const DeviceInfo& device) {
  const Configuration& configuration = select_configuration(version, request.problem, name, device);
  refuse_if(why_unsupported(version, configuration, request.problem));
  refuse_if(why_unsupported_by_device(version, configuration, device));
  refuse_if(why_no_memory(version, configuration, request.problem, device));
  return configuration;
}

// What is known about a result before anything has run.
Result result_of(const Version& version, const Configuration& configuration, const Request& request,
                 const DeviceInfo& device) {
  Result result;
  result.kernel = kernel_id(version);
  result.name = version.name;
  result.config = configuration.name;
  result.device = device.name;
  result.problem = request.problem;
  result.data = request.data;
  result.status = Status::ok;
  return result;
}

void add_times(Result& result, const Timing& timing, const Version& version) {
  result.ms = summarise(timing.milliseconds);
  result.tflops = tflops(result.problem, result.ms->median, kind_of(version).products);
  result.load = timing.load;
}

// The file of the cache that keeps something of a set, so that other versions and configurations need not compute it again. Empty:
// there is no cache.
std::filesystem::path cache_file(std::string_view of, const CheckSet& set, const RowSelection& rows,
                                 const Request& request) {
  if (request.reference_cache.empty()) return {};
  return std::filesystem::path(request.reference_cache) /
         reference_file_name(of, set.problem, set.distribution, rows, request.seed);
}

RowSelection rows_of(const CheckSet& set, const Request& request) {
  return {.seq_len = set.problem.seq_len, .tile = set.row_tile, .seed = request.seed};
}

Reference find_reference(const CheckSet& set, const Inputs& inputs, const Request& request, const Progress& progress) {
  const RowSelection rows = rows_of(set, request);
  const std::filesystem::path file = cache_file("reference", set, rows, request);
  if (auto reference = read_reference(file, set.problem, rows)) return std::move(*reference);
  Reference reference = make_reference(inputs, rows, progress);
  write_reference(file, reference);  // if it fails, the next worker computes it again
  return reference;
}

// How large a set's dO is. Designed scores come from rows of Q and K so long that gradients, which are sums over some hundred
// of them, would overflow fp16 with a dO of normal size.
OutputGradient output_gradient_of(const CheckSet& set) {
  const bool is_reduced =
      set.distribution == Distribution::adversarial && set.output_gradient == OutputGradient::normal;
  return is_reduced ? OutputGradient::reduced : set.output_gradient;
}

// What the gradients of a set depend on, beyond the names of its problem and its distribution.
std::string name_of_gradients(std::string_view of, const CheckSet& set) {
  return fmt::format("{}-dO{}", of, static_cast<int>(output_gradient_of(set)));
}

// The inputs of a set: of a backward version, dO, O and L too.
Inputs inputs_of(const CheckSet& set, const Version& version, const Request& request, EventWriter& events) {
  Inputs inputs = make_inputs(set.problem, set.distribution, set.packing, request.seed,
                              events.reporter("make inputs for " + set.name));
  if (version.kind == ProblemKind::backward)
    inputs.gradients = make_gradient_inputs(
        inputs, set.packing, output_gradient_of(set), request.seed,
        cache_file(name_of_gradients("forward", set), set, {.seq_len = set.problem.seq_len}, request),
        events.reporter("make O and L for " + set.name));
  return inputs;
}

// What is expected of one of the outputs.
struct Expected {
  std::string_view name;  // "dK"; empty if there is only one output
  Reference reference;
};

std::vector<Expected> find_expected(const CheckSet& set, const Inputs& inputs, const Request& request,
                                    const Progress& progress) {
  std::vector<Expected> expected;
  if (!inputs.gradients) {
    expected.push_back({"", find_reference(set, inputs, request, progress)});
    return expected;
  }
  auto references = make_gradient_references(
      inputs, set.row_tile, request.seed,
      cache_file(name_of_gradients("gradients", set), set, rows_of(set, request), request), progress);
  for (std::size_t i = 0; i < references.size(); ++i) expected.push_back({kGradientNames[i], std::move(references[i])});
  return expected;
}

// The verdict on all outputs: the worst errors, and the first output that is wrong.
Verdict check_outputs(const Inputs& inputs, const std::vector<Expected>& expected,
                      const std::vector<HostBuffer>& outputs, const Configuration& configuration) {
  if (!inputs.gradients)
    return check_output(inputs, expected.front().reference, outputs.front(), configuration.block_q);
  Verdict all;
  const auto worse = [](double a, double b) { return std::isnan(a) || a >= b ? a : b; };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool rows_are_queries = i == 0;
    Verdict one = check_gradient(expected[i].reference, outputs[i],
                                 rows_are_queries ? configuration.block_q : configuration.block_kv);
    all.max_abs_error = worse(all.max_abs_error, one.max_abs_error);
    all.relative_error = worse(all.relative_error, one.relative_error);
    if (one.correct()) continue;
    all.reason += fmt::format("{}{}: {}", all.reason.empty() ? "" : "; ", expected[i].name, one.reason);
    if (!all.mismatches.empty()) continue;
    all.mismatches = std::move(one.mismatches);
    all.tile_map = std::move(one.tile_map);
  }
  return all;
}

// The first difference between the outputs of two launches.
std::optional<std::string> find_difference(const std::vector<Expected>& expected, const std::vector<HostBuffer>& first,
                                           const std::vector<HostBuffer>& second) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (const auto difference = find_difference(expected[i].reference.problem, first[i], second[i]))
      return expected[i].name.empty() ? *difference : fmt::format("{}: {}", expected[i].name, *difference);
  return std::nullopt;
}

// Keeps what the device counts for one launch, and discards the counts before it.
template <typename Launch>
void count(Result& result, const Launch& launch) {
  take_observation();
  launch();
  Observation observation = take_observation();
  result.counters = observation.counters;
  result.lines = std::move(observation.lines);
  result.roles = std::move(observation.roles);
  result.ptx_hash = std::move(observation.ptx_hash);
  result.traces = std::move(observation.traces);
}

// Whether a packed sequence is the same with NaN in its neighbours. Gradients may differ in the last bits, but must be right.
std::optional<std::string> find_influence_of_neighbours(const Inputs& inputs, const CheckSet& set,
                                                        const Version& version, const Configuration& configuration,
                                                        const Request& request, const std::vector<Expected>& expected,
                                                        const std::vector<HostBuffer>& outputs) {
  for (const std::int64_t first : {0, 1}) {
    Inputs spoilt = make_inputs(inputs.problem, set.distribution, set.packing, request.seed);
    spoilt.gradients = inputs.gradients;
    spoil_every_other(spoilt, first);
    DeviceProblem problem(version, {&configuration}, spoilt);
    const Stream stream;
    problem.poison(stream);
    problem.launch(configuration, stream);
    problem.wait();
    std::vector<HostBuffer> beside_nan = problem.outputs();
    if (!inputs.gradients) {
      if (auto influence = find_influence(inputs.problem, outputs.front(), beside_nan.front(), first)) return influence;
      continue;
    }
    for (std::size_t i = 0; i < beside_nan.size(); ++i)
      restore_spoilt(expected[i].reference.problem, beside_nan[i], outputs[i], first);
    const Verdict verdict = check_outputs(inputs, expected, beside_nan, configuration);
    if (!verdict.correct()) return "a packed sequence changes when its neighbours become NaN: " + verdict.reason;
  }
  return std::nullopt;
}

// Launches a set's problem several times and says what is wrong: the output first, because a kernel's other errors
// often have the same cause.
Verdict check_set(const CheckSet& set, const Inputs& inputs, DeviceProblem& problem, const Version& version,
                  const Configuration& configuration, const Request& request, Result& result, EventWriter& events) {
  const std::vector<Expected> expected =
      find_expected(set, inputs, request, events.reporter("reference for " + set.name));
  const Stream stream;
  Verdict verdict;
  std::vector<HostBuffer> first_outputs;
  std::vector<float> first_log_sum_exp;
  std::optional<std::string> difference, wrong_log_sum_exp;
  for (int launch = 0; launch < set.launches; ++launch) {
    events.progress("check " + set.name, launch, set.launches);
    problem.poison(stream);
    count(result, [&] {
      problem.launch(configuration, stream);
      problem.wait();
    });
    std::vector<HostBuffer> outputs = problem.outputs();
    std::vector<float> log_sum_exp = problem.log_sum_exp();
    if (launch == 0) {
      verdict = check_outputs(inputs, expected, outputs, configuration);
      first_outputs = std::move(outputs);
      wrong_log_sum_exp = find_wrong_log_sum_exp(expected.front().reference, log_sum_exp);
      first_log_sum_exp = std::move(log_sum_exp);
    } else if (!version.deterministic) {
      // The outputs may differ, but each of them must be right.
      if (verdict.correct()) verdict = check_outputs(inputs, expected, outputs, configuration);
    } else if (!difference) {
      difference = find_difference(expected, first_outputs, outputs);
      if (!difference) difference = find_difference(set.problem, first_log_sum_exp, log_sum_exp);
    }
  }
  if (verdict.correct()) verdict.reason = wrong_log_sum_exp.value_or("");
  if (verdict.correct()) verdict.reason = problem.guard_damage().value_or("");
  if (verdict.correct()) verdict.reason = find_changed_input(inputs, problem.inputs()).value_or("");
  if (verdict.correct() && set.problem.append)
    verdict.reason = find_wrong_append(inputs, problem.inputs()).value_or("");
  if (verdict.correct() && inputs.gradients)
    verdict.reason = find_changed_input(*inputs.gradients, problem.gradient_inputs()).value_or("");
  if (verdict.correct()) verdict.reason = difference.value_or("");
  if (verdict.correct() && version.solves.log_sum_exp && set.launches > 1) {
    problem.poison(stream);
    problem.launch_without_log_sum_exp(configuration, stream);
    problem.wait();
    if (const auto other = find_difference(set.problem, first_outputs.front(), problem.output()))
      verdict.reason = "the second time without the log-sum-exp, " + *other;
  }
  if (verdict.correct() && set.problem.packed && set.row_tile == 1)  // not a large problem
    verdict.reason = find_influence_of_neighbours(inputs, set, version, configuration, request, expected, first_outputs)
                         .value_or("");
  return verdict;
}

// Adds a set's verdict to the result, which keeps the worst errors of all sets and describes the first wrong set.
void add_verdict(Result& result, const CheckSet& set, const Verdict& verdict) {
  const auto worst = [](std::optional<double> a, double b) { return !a || std::isnan(b) || b > *a ? b : *a; };
  result.max_abs_error = worst(result.max_abs_error, verdict.max_abs_error);
  result.relative_error = worst(result.relative_error, verdict.relative_error);
  if (verdict.correct()) return;
  if (result.status == Status::wrong) {
    result.reason += fmt::format("; also wrong: {}", full_name(set));
    return;
  }
  result.status = Status::wrong;
  result.correct = false;
  result.reason = fmt::format("{} ({}): {}", full_name(set), describe(set.problem), verdict.reason);
  result.mismatches = verdict.mismatches;
  result.tile_map = verdict.tile_map;
}

// The field for which --debug and diagnoses have no probes: they compute scores as Q K^T times the scale, keep all weights, and take
// every batch entry to have rows of its own; those of gradients, as many rows as the others. nullptr: the problem has none.
const char* field_without_probes(ProblemKind kind, const AttentionProblem& problem) {
  const bool of_gradients = kind == ProblemKind::backward;
  return problem.packed                                ? "packed"
         : of_gradients && !problem.lengths.empty()    ? "lengths"
         : of_gradients && !problem.lengths_kv.empty() ? "lengths_kv"
         : of_gradients && problem.head_dim_v != 0     ? "head_dim_v"
         : problem.page_size > 0                       ? "page_size"
         : problem.append                              ? "append"
         : problem.fp8_cache                           ? "fp8_cache"
         : problem.softcap != 0                        ? "softcap"
         : problem.alibi                               ? "alibi"
         : problem.sinks                               ? "sinks"
         : problem.dropout_p > 0                       ? "dropout_p"
                                                       : nullptr;
}

Tiling tiling_of(const Configuration& configuration) {
  return {.block_q = configuration.block_q,
          .block_kv = configuration.block_kv,
          .step_kv = configuration.step_kv,
          .num_warps = configuration.num_warps,
          .mma = configuration.fragments};
}

// The outputs; nullopt if the kernel faults.
std::optional<std::vector<HostBuffer>> launch_once(const Version& version, const Configuration& configuration,
                                                   const Inputs& inputs) {
  try {
    DeviceProblem problem(version, {&configuration}, inputs);
    const Stream stream;
    problem.poison(stream);
    problem.launch(configuration, stream);
    problem.wait();
    return problem.outputs();
  } catch (const CudaError&) {
    return std::nullopt;
  }
}

// The only output of a version that computes no gradients.
std::optional<HostBuffer> only_output(std::optional<std::vector<HostBuffer>> outputs) {
  return outputs ? std::optional(std::move(outputs->front())) : std::nullopt;
}

// The outcomes of the sets, and the first set whose output was wrong.
struct Checked {
  std::vector<std::pair<CheckSet, bool>> sets;  // the sets, and whether the output of each was right
  std::optional<CheckSet> first_wrong;
};

// Why the output of a set may be wrong, judging by a few more launches. Empty if the output is right this time.
Diagnosis diagnose_set(const CheckSet& set, const Checked& checked, const Version& version,
                       const Configuration& configuration, const Request& request, EventWriter& events) {
  int launches = 0;
  const Relaunch launch = [&](const Inputs& inputs) {
    events.progress("launch to diagnose " + set.name, launches++, kMaxDiagnosisLaunches + 1);
    return only_output(launch_once(version, configuration, inputs));
  };
  const Inputs inputs = make_inputs(set.problem, set.distribution, set.packing, request.seed);
  const Reference reference = find_reference(set, inputs, request, events.reporter("reference for " + set.name));
  // If the output is also wrong on all SMs, diagnose it there: on few SMs, more elements may be wrong than the mistake
  // alone explains.
  auto output = launch(inputs);
  const auto is_right = [&](const HostBuffer& o) {
    return check_output(inputs, reference, o, configuration.block_q).correct();
  };
  const bool wrong_on_few_sms = set.sms > 0 && output && is_right(*output);
  const FewSms few(wrong_on_few_sms ? set.sms : 0);
  if (wrong_on_few_sms) output = launch(inputs);
  if (!output) return {};
  std::vector<CheckedSet> sets;
  for (const auto& [other, right] : checked.sets)
    sets.push_back({.name = wrong_on_few_sms ? full_name(other) : other.name, .right = right});
  Diagnosis diagnosis = diagnose({inputs, set.distribution, reference, *output}, sets, tiling_of(configuration), launch,
                                 events.reporter("diagnose " + set.name));
  if (wrong_on_few_sms)
    diagnosis.sentences.insert(diagnosis.sentences.begin(), fmt::format("With all SMs, {} (FLASH_LADDER_SM_COUNT={}).",
                                                                        kind_of(version).wrong_on_few_sms, set.sms));
  return diagnosis;
}

// The same for gradients.
Diagnosis diagnose_gradients_of(const CheckSet& set, const Checked& checked, const Version& version,
                                const Configuration& configuration, const Request& request, EventWriter& events) {
  std::int64_t launches = 0;
  const ExamineGradients examine = [&](const Inputs& inputs) {
    events.progress("launch to diagnose " + set.name, launches++, 0);
    return ExaminedGradients{.outputs = launch_once(version, configuration, inputs), .findings = {}};
  };
  const Inputs inputs = inputs_of(set, version, request, events);
  const std::vector<Expected> expected =
      find_expected(set, inputs, request, events.reporter("reference for " + set.name));
  const FewSms few(set.sms);
  const auto outputs = examine(inputs).outputs;
  if (!outputs) return {};
  std::vector<CheckedSet> sets;
  for (const auto& [other, right] : checked.sets) sets.push_back({.name = full_name(other), .right = right});
  const std::array references{expected[0].reference, expected[1].reference, expected[2].reference};
  return diagnose_gradients({inputs, set.distribution, references, *outputs}, sets, tiling_of(configuration),
                            field_without_probes(version.kind, set.problem) == nullptr ? examine : ExamineGradients{},
                            events.reporter("diagnose " + set.name));
}

Checked run_sets(const Request& request, const DeviceInfo& device, const Version& version,
                 const Configuration& configuration, Result& result, EventWriter& events) {
  Checked checked;
  std::vector<CheckSet> sets = check_sets(version, configuration, request.problem, device);
  // The last is the requested problem, which the benchmark needs.
  sets.back().distribution = request.data;
  if (request.data != Distribution::normal) sets.back().name += fmt::format(" with {} inputs", to_string(request.data));
  if (!request.check || request.only_requested_problem) sets.erase(sets.begin(), sets.end() - 1);
  // The virtual GPU executes everything in the same order each time. A second launch still detects state that the first
  // has left behind.
  if (device.is_virtual)
    for (CheckSet& set : sets) set.launches = &set == &sets.front() ? 2 : 1;
  sets.back().launches = std::max(sets.back().launches, request.launches);
  for (CheckSet& set : sets) {
    const bool last = &set == &sets.back();
    if (!request.check && !request.benchmark && !device_counts()) break;
    const Inputs inputs = inputs_of(set, version, request, events);
    events.progress("copy inputs for " + set.name, 0, 1);
    DeviceProblem problem(version, {&configuration}, inputs);
    if (set.sms > 0 && !has_persistent_ctas([&] { problem.launch(configuration, Stream()); })) set.sms = 0;
    const FewSms few(set.sms);
    if (request.check) {
      result.correct = result.correct.value_or(true);
      result.checked.push_back(full_name(set));
      const Verdict verdict = check_set(set, inputs, problem, version, configuration, request, result, events);
      add_verdict(result, set, verdict);
      const bool right = verdict.mismatches.empty();
      checked.sets.push_back({set, right});
      if (!right && !checked.first_wrong) checked.first_wrong = set;
      if (request.stop_when_wrong && (add_findings(result) || result.status == Status::wrong)) break;
    } else if (device_counts()) {
      events.progress("count", 0, 1);
      const Stream stream;
      count(result, [&] {
        problem.launch(configuration, stream);
        problem.wait();
      });
    }
    if (last && request.benchmark && result.status == Status::ok) {
      const Nvml nvml(pci_bus_id(request.device));
      const Timing timing =
          time_launches(to_be_timed(problem, {&configuration}), device, nvml, request.repeat, events).front();
      add_times(result, timing, version);
    }
  }
  return checked;
}

}  // namespace

Result run(const Request& request, EventWriter& events) {
  events.progress("open the GPU", 0, 1);
  const Version& version = select_version(request.kernel);
  refuse_if(why_impossible(request.problem));
  const DeviceInfo device = open_gpu(request.device);
  const Configuration& configuration = runnable_configuration(version, request, request.config, device);

  Result result = result_of(version, configuration, request, device);

  // On the virtual GPU, a kernel that faults has left findings about what it did wrong.
  Checked checked;
  try {
    checked = run_sets(request, device, version, configuration, result, events);
  } catch (const CudaError& error) {
    if (!add_findings(result)) throw;
    result.reason = error.what();
    return result;
  }
  if (!request.trace.empty()) write_trace(request.trace, result);
  const bool has_findings = add_findings(result);
  // The probes of a diagnosis use numbers that e4m3 cannot represent. Known mistakes of gradients can be told without probes.
  if (!checked.first_wrong || request.stop_when_wrong || request.problem.dtype == Dtype::e4m3) return result;
  const bool has_gradients = version.kind == ProblemKind::backward;
  if (!has_gradients && field_without_probes(version.kind, checked.first_wrong->problem)) return result;
  const auto diagnose_it = has_gradients ? diagnose_gradients_of : diagnose_set;
  Diagnosis diagnosis = diagnose_it(*checked.first_wrong, checked, version, configuration, request, events);
  if (!diagnosis.sentences.empty()) result.diagnosis = std::move(diagnosis);
  Result again;  // findings with other inputs are most likely the same as before
  add_findings(has_findings ? again : result);
  return result;
}

std::variant<DebugReport, GradientReport> debug(const Request& request, EventWriter& events) {
  events.progress("open the GPU", 0, 1);
  const Version& version = select_version(request.kernel);
  const AttentionProblem& problem = request.problem;
  refuse_if(why_impossible(problem));
  if (problem.dtype == Dtype::e4m3)
    throw UsageError("e4m3 cannot represent the numbers that --debug probes with; choose --dtype fp16 or bf16");
  if (const char* field = field_without_probes(version.kind, problem))
    throw UsageError(fmt::format("--debug does not show {0}problems with {1}; leave {1} out",
                                 version.kind == ProblemKind::backward ? "gradients of " : "", flag_of(field)));
  const auto check_range = [](const char* flag, const std::optional<std::int64_t>& value, std::int64_t size) {
    if (value && (*value < 0 || *value >= size))
      throw UsageError(fmt::format("{} {} is out of range; this problem has 0 to {}", flag, *value, size - 1));
  };
  check_range("--head", request.head, problem.heads);
  check_range("--row", request.row, problem.seq_len);
  const DeviceInfo device = open_gpu(request.device);
  const Configuration& configuration = runnable_configuration(version, request, request.config, device);

  std::int64_t launches = 0;
  const auto launch = [&](const Inputs& inputs, std::vector<Finding>& findings) {
    events.progress(
        fmt::format("launch with {} queries and {} keys", inputs.problem.seq_len, inputs.problem.seq_len_kv),
        launches++, 0);
    auto outputs = launch_once(version, configuration, inputs);
    Result found;
    if (add_findings(found)) findings = std::move(found.findings);
    return outputs;
  };
  const auto identified = [&](auto report) {
    report.kernel = kernel_id(version);
    report.name = version.name;
    report.config = configuration.name;
    report.device = device.name;
    return report;
  };
  const ShownRow shown{.head = request.head, .row = request.row};
  const Tiling tiling = tiling_of(configuration);
  if (version.kind == ProblemKind::backward) {
    const ExamineGradients examine = [&](const Inputs& inputs) {
      ExaminedGradients examined;
      examined.outputs = launch(inputs, examined.findings);
      return examined;
    };
    return identified(
        debug_gradients(problem, request.data, request.seed, tiling, shown, examine, events.reporter("reference")));
  }
  const Examine examine = [&](const Inputs& inputs) {
    Examined examined;
    examined.output = only_output(launch(inputs, examined.findings));
    return examined;
  };
  return identified(
      debug_tile_by_tile(problem, request.data, request.seed, tiling, shown, examine, events.reporter("reference")));
}

std::vector<Result> time_in_turn(const Request& request, EventWriter& events) {
  events.progress("open the GPU", 0, 1);
  const Version& version = select_version(request.kernel);
  refuse_if(why_impossible(request.problem));
  const DeviceInfo device = open_gpu(request.device);
  std::vector<const Configuration*> configurations;
  std::vector<Result> results;
  for (const std::string& name : request.configs) {
    configurations.push_back(&runnable_configuration(version, request, name, device));
    results.push_back(result_of(version, *configurations.back(), request, device));
  }

  const Inputs inputs =
      inputs_of({.name = "the requested problem", .problem = request.problem, .distribution = request.data}, version,
                request, events);
  events.progress("copy inputs", 0, 1);
  const DeviceProblem problem(version, configurations, inputs);
  const Nvml nvml(pci_bus_id(request.device));
  const auto timings = time_launches(to_be_timed(problem, configurations), device, nvml, request.repeat, events);
  for (std::size_t i = 0; i < results.size(); ++i) add_times(results[i], timings[i], version);
  return results;
}

}  // namespace flash_ladder
