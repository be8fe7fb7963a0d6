#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "emulator/function_name.h"
#include "emulator/runtime/virtual_runtime.h"
#include "errors.h"
#include "source/compiled_text.h"
#include "worker/observation.h"

namespace flash_ladder {
namespace {

namespace runtime = emulator::runtime;

std::string file_name(const std::string& file) {
  const auto path = std::filesystem::path(file).lexically_normal();
  const auto relative = path.lexically_relative(FLASH_LADDER_SOURCE_DIR);
  const bool inside = !relative.empty() && *relative.begin() != "..";
  return inside ? relative.generic_string() : path.filename().string();
}

emulator::SourcePosition with_file_names(emulator::SourcePosition position) {
  for (emulator::SourceLine& line : position) line.file = file_name(line.file);
  return position;
}

SourcePosition to_strings(const emulator::SourcePosition& position) {
  SourcePosition lines;
  for (const emulator::SourceLine& line : position) lines.push_back(fmt::format("{}:{}", line.file, line.line));
  return lines;
}

SourcePosition source_position(const emulator::SourcePosition& position) {
  return to_strings(with_file_names(position));
}

// The hash of a text of the program, which stays in place. It is needed after every launch, and the text is long.
const std::string& hash_of(std::string_view ptx) {
  static std::map<const char*, std::string> known;
  std::string& hash = known[ptx.data()];
  if (hash.empty()) hash = ptx_hash(ptx);
  return hash;
}

Finding finding_for_results(const emulator::Finding& found) {
  Finding finding;
  finding.kind = to_string(found.kind);
  finding.message = found.message;
  finding.kernel = emulator::function_name(found.kernel);
  finding.position = source_position(found.position);
  const bool ran = !found.kernel.empty() && found.kind != emulator::FindingKind::launch_limits;
  if (ran) finding.cta = {found.cta.x, found.cta.y, found.cta.z};
  if (found.warp >= 0) finding.warp = found.warp;
  if (found.lane >= 0) finding.lane = found.lane;
  finding.address = found.address;
  if (found.other) finding.other_position = source_position(found.other->position);
  for (const emulator::LastWait& wait : found.waits) finding.waits.push_back(source_position(wait.position));
  finding.count = static_cast<std::int64_t>(found.count);
  finding.text = format(found);
  return finding;
}

}  // namespace

void prepare_device(const Request& request) {
  try {
    runtime::Settings& settings = runtime::settings();
    settings.sm = request.sm;
    if (!request.trace.empty()) settings.trace_cta = emulator::Dim3{0, 0, 0};
    if (request.max_instructions > 0) settings.max_warp_instructions_per_cta = request.max_instructions;
  } catch (const std::invalid_argument& error) {  // an environment variable requests the impossible
    throw UsageError(error.what());
  }
}

void end_launches_when(const std::atomic<bool>* asked) { runtime::settings().interrupt = asked; }

void let_device_explain_errors(bool allowed) { runtime::settings().explains_errors = allowed; }

bool device_counts() { return true; }

std::int64_t guard_band_bytes() { return 0; }

void mark_poisoned(const void* device_pointer, std::int64_t bytes) {
  runtime::mark_unwritten(device_pointer, static_cast<std::size_t>(bytes));
}

bool has_persistent_ctas(const std::function<void()>& launch) {
  // Even numbers, because CTAs may come in pairs. Small numbers, so that the smallest problem has more query tiles.
  const auto ctas_on = [&](int sms) {
    const FewSms few(sms);
    return runtime::count_ctas(launch);
  };
  return ctas_on(2) < ctas_on(4);
}

FewSms::FewSms(int count) : before_(runtime::settings().sm_count) {
  if (count > 0) runtime::settings().sm_count = count;
}

FewSms::~FewSms() { runtime::settings().sm_count = before_; }

Observation take_observation() {
  Observation observation;
  for (const runtime::KernelCounters& kernel : runtime::take_counters()) {
    observation.counters = observation.counters.value_or(Counters{});
    *observation.counters += kernel.totals;
    if (observation.roles.empty()) observation.roles = kernel.roles;
    if (observation.ptx_hash.empty()) observation.ptx_hash = hash_of(kernel.ptx);  // a version is one file
    // Sort by the names that are shown: the order of whole paths depends on where the project and the toolkit are
    // installed.
    std::vector<emulator::LineCounters> lines = kernel.lines;
    for (emulator::LineCounters& line : lines) line.position = with_file_names(std::move(line.position));
    std::ranges::stable_sort(lines, {}, &emulator::LineCounters::position);
    for (const emulator::LineCounters& line : lines)
      observation.lines.push_back({.kernel = emulator::function_name(kernel.kernel),
                                   .position = to_strings(line.position),
                                   .counters = line.counters});
  }
  for (const auto& traced : runtime::take_traces()) {
    auto trace = std::make_shared<emulator::CtaTrace>(*traced);
    for (emulator::SourcePosition& position : trace->positions) position = with_file_names(std::move(position));
    observation.traces.push_back(std::move(trace));
  }
  return observation;
}

bool add_findings(Result& result) {
  const runtime::Findings findings = runtime::take_findings();
  if (findings.total == 0) return false;
  for (const emulator::Finding& found : findings.kept) result.findings.push_back(finding_for_results(found));
  result.findings_kinds = static_cast<std::int64_t>(findings.kinds);
  result.findings_total = static_cast<std::int64_t>(findings.total);
  result.status = Status::wrong;
  result.correct = false;
  if (result.reason.empty()) result.reason = "the virtual GPU found: " + result.findings.front().message;
  return true;
}

}  // namespace flash_ladder
