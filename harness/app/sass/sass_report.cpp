#include "app/sass/sass_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "app/card/opcode_counts.h"
#include "app/card/study_card.h"
#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/kernel_code.h"
#include "app/run/runner.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "results/atomic_file.h"
#include "rules/support.h"
#include "sass/machine_code.h"
#include "sass/opcode_class.h"

namespace flash_ladder {
namespace {

std::string format_row(std::string_view name, int whole, int loop, int cold, int work) {
  const auto figure = [](int count) { return count > 0 ? std::to_string(count) : std::string("-"); };
  const std::string per_work = work > 0 && loop > 0 ? fmt::format("{:.3f}", static_cast<double>(loop) / work) : "-";
  return fmt::format("{} {:>8} {:>10} {:>10} {:>8}\n", pad(name, 20), figure(whole), figure(loop), per_work,
                     figure(cold));
}

std::string format_report(const Version& version, const Result& result, int sm, const Paint& paint) {
  const StaticStudy* study = code_for(result.static_study, sm);
  std::string text = paint.bold(title(version)) +
                     fmt::format("   {}   {}   {}\n\n", result.config, to_string(result.problem.dtype), code_name(sm));
  if (!study) return text + fmt::format("The build has no {} code of this configuration.\n", code_name(sm));

  const std::string unit = work_opcode(study->hot_loop_sass);  // the length of an iteration differs between versions
  const int work = count_of(study->hot_loop_sass, unit);
  std::set<std::string> opcodes;
  for (const auto* counts : {&study->sass, &study->hot_loop_sass, &study->hot_loop_cold_sass})
    for (const auto& [opcode, count] : *counts) opcodes.insert(opcode);

  text += paint.dim(fmt::format("{} {:>8} {:>10} {:>10} {:>8}\n", pad("", 20), "whole", "hot loop,",
                                unit.empty() ? "" : "per", "cold"));
  text += paint.dim(fmt::format("{} {:>8} {:>10} {:>10} {:>8}\n", pad("", 20), "kernel", "iteration", unit, "blocks"));
  const auto row = [&](std::string_view name, const std::vector<std::string>& of) {
    int whole = 0, loop = 0, cold = 0;
    for (const auto& opcode : of) {
      whole += count_of(study->sass, opcode);
      loop += count_of(study->hot_loop_sass, opcode);
      cold += count_of(study->hot_loop_cold_sass, opcode);
    }
    return format_row(name, whole, loop, cold, work);
  };
  for (const auto& name : opcode_classes()) {
    std::vector<std::string> members;
    for (const auto& opcode : opcodes)
      if (opcode_class(opcode) == name) members.push_back(opcode);
    if (members.empty()) continue;
    std::sort(members.begin(), members.end(), [&](const std::string& a, const std::string& b) {
      return std::pair(count_of(study->hot_loop_sass, b), count_of(study->sass, b)) <
             std::pair(count_of(study->hot_loop_sass, a), count_of(study->sass, a));
    });
    text += paint.bold(row(name, members));
    for (const auto& opcode : members) text += row(fmt::format("  {}", opcode), {opcode});
  }
  text += paint.bold(row("total", {opcodes.begin(), opcodes.end()}));
  if (study->hot_loop_sass.empty()) text += "\nNo loop with HMMA or FFMA was found.\n";
  text += "\nThese are counts of instructions in the code, not of instructions executed.\n";
  return text;
}

}  // namespace

int report_sass(const Options& options) {
  const auto selected = select_all_with_code(options.kernels);
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  const Runner runner(options);
  const Paint paint;
  std::vector<Result> results;
  bool has_all_code = true;
  for (const Version* version : selected) {
    results.push_back(
        runner.run(*version, {.problem = for_version(options, *version).problem, .config = options.config}));
    const Result& result = results.back();
    has_all_code = has_all_code && (result.status == Status::skipped || code_for(result.static_study, runner.sm()));
    if (result.status == Status::skipped)
      complain(result.reason);
    else
      say(options, fmt::format("{}{}", results.size() > 1 ? "\n" : "",
                               format_report(*version, result, runner.sm(*version), paint)));
  }
  write_json(options, results);
  const int code = exit_code(options, results);
  return code == kExitOk && !has_all_code ? kExitUnavailable : code;
}

}  // namespace flash_ladder
