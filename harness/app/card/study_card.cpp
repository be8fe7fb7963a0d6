#include "app/card/study_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/card/counters.h"
#include "app/card/hints.h"
#include "app/card/opcode_counts.h"
#include "host/sm_limits.h"
#include "problem/kind.h"
#include "rules/support.h"
#include "sass/machine_code.h"

namespace flash_ladder {

const char* const kStale = "stale: the code has changed since";

namespace {

std::string format_correctness(const StudyCard& card, const Paint& paint) {
  const Result& result = card.result;
  switch (result.status) {
    case Status::failed:
      return paint.bad("failed: ") + result.reason;
    case Status::skipped:
      return paint.notable("skipped: ") + result.reason;
    case Status::wrong:
    case Status::ok:
      break;
  }
  if (!result.correct) return "not checked";
  std::string text = *result.correct ? paint.good("yes") : paint.bad("NO");
  if (result.max_abs_error) text += fmt::format(", max |error| {:.2e}", *result.max_abs_error);
  if (result.relative_error) text += fmt::format(", {:.2f} of the allowed error", *result.relative_error);
  if (!result.reason.empty()) text += fmt::format(": {}", result.reason);
  return text;
}

std::string format_checked(const StudyCard& card) {
  const std::vector<std::string>& checked = card.result.checked;
  if (checked.empty()) return "";
  const auto on_few_sms = [](const std::string& name) { return name.ends_with(" SMs"); };
  const bool any = std::ranges::any_of(checked, on_few_sms);
  return fmt::format("{}{}{}", fmt::join(checked, "; "), any ? ". " : "", any ? kind_of(card.version).few_sms : "");
}

std::string format_speed(const StudyCard& card, const Paint& paint) {
  const Result& result = card.result;
  if (!result.tflops) return "not measured";
  std::string text = paint.bold(fmt::format("{:.1f} TFLOP/s", *result.tflops));
  if (is_decoding(result.problem))
    text = paint.bold(fmt::format("{:.0f} GB/s of K and V", kv_gb_per_s(result.problem, *result.tflops))) +
           fmt::format(", {:.2f} TFLOP/s", *result.tflops);
  if (result.ms)
    text +=
        fmt::format(", median {:.4g} ms (p10 {:.4g}, p90 {:.4g})", result.ms->median, result.ms->p10, result.ms->p90);
  if (result.load && result.load->sm_clock_mhz) text += fmt::format(", at {} MHz", *result.load->sm_clock_mhz);
  if (result.load && result.load->power_watts) text += fmt::format(", {:.0f} W", *result.load->power_watts);
  return text;
}

std::string format_change(const StudyCard& card, const Paint& paint) {
  if (!card.own_speed)
    return fmt::format("this version has no figure to compare with that of version {}", kernel_id(*card.before));
  if (!card.speed_before) return fmt::format("version {} has no figure to compare with", kernel_id(*card.before));
  const double ratio = card.own_speed->tflops / card.speed_before->tflops;
  const std::string change = fmt::format("{:.2f}x", ratio);
  return fmt::format("{} of version {} ({:.1f} TFLOP/s {})", ratio < 1 ? paint.notable(change) : paint.bold(change),
                     label(*card.before), card.speed_before->tflops, card.speed_before->origin);
}

// A share compares figures of one run and one regime, so it uses the version's own figure in that run and not the
// present one.
std::string format_peers(const BesidePeers& beside) {
  if (beside.peers.empty()) return "";
  std::vector<std::string> parts;
  for (const Peer& peer : beside.peers)
    parts.push_back(
        beside.own ? fmt::format("{:.0f} % of {} ({:.0f})", 100 * *beside.own / peer.tflops, peer.name, peer.tflops)
                   : fmt::format("{} {:.0f}", peer.name, peer.tflops));
  const std::string own = beside.own ? fmt::format(", this version {:.0f}", *beside.own) : "";
  return fmt::format("{}{}: {}", beside.regime, own, fmt::join(parts, ", "));
}

std::string format_recorded(const RecordedSpeed& recorded, const Paint& paint) {
  std::string text = fmt::format("{:.1f} TFLOP/s on {} ({}, {}, {}{})", recorded.tflops, recorded.device,
                                 recorded.config, recorded.way, recorded.date.substr(0, 10),
                                 recorded.toolkit.empty() ? "" : ", CUDA " + recorded.toolkit);
  if (recorded.stale) text += fmt::format(" {}", paint.notable(kStale));
  return text;
}

// The opcodes of the hot loop whose counts changed most.
std::string format_sass(const StudyCard& card, const Paint& paint) {
  const StaticStudy* study = code_for(card.result.static_study, card.sm);
  if (!study) return fmt::format("the build has no {} code of this configuration", code_name(card.sm));
  const StaticStudy* before = code_for(card.static_before, card.sm);
  constexpr std::size_t kMost = 12;

  const bool have_loop = !study->hot_loop_sass.empty();
  const OpcodeCounts& counts = have_loop ? study->hot_loop_sass : study->sass;
  const OpcodeCounts none;
  const OpcodeCounts& counts_before = !before ? none : have_loop ? before->hot_loop_sass : before->sass;
  std::vector<std::string> parts;
  for (const OpcodeChange& change : changes(counts_before, counts)) {
    if (parts.size() == kMost) break;
    std::string part = fmt::format("{} {}", change.opcode, change.after);
    // 01 has no version before it, and a version whose loop was not found has nothing to compare with.
    if (!counts_before.empty() && change.change() != 0) part += paint.bold(fmt::format(" ({:+})", change.change()));
    parts.push_back(part);
  }
  return fmt::format("{} {} instructions{}: {}", code_name(card.sm), total(counts), have_loop ? " in the hot loop" : "",
                     fmt::join(parts, ", "));
}

}  // namespace

std::string describe_device(const std::string& why, bool ran, const Paint& paint) {
  if (ran) return why;
  return fmt::format("{} What follows is from the compiler and from profiles/. {}", paint.notable("No kernel was run."),
                     why);
}

std::string describe_with_data(const AttentionProblem& problem, Distribution data) {
  const std::string text = fmt::format("{}; {} data", describe(problem), to_string(data));
  return data == Distribution::normal ? text : fmt::format("{}: {}", text, definition(data));
}

std::string describe_resources(const StaticStudy& study) {
  const std::string spills = study.spill_bytes == 0 ? "no spills" : fmt::format("{} bytes spilled", study.spill_bytes);
  return fmt::format("{} registers, {}, {:.4g} KiB of shared memory", study.registers, spills,
                     study.smem_bytes / 1024.0);
}

std::string describe_occupancy(const StaticStudy& study) {
  const char* plural = study.ctas_per_sm == 1 ? "" : "s";
  return fmt::format("{} CTA{} per SM, limited by {}", study.ctas_per_sm, plural, study.limited_by);
}

std::string describe_other_occupancies(const Version& version, const Result& result, int sm) {
  std::vector<std::string> parts;
  for (const SmLimits& limits : kSmLimits) {
    const int other = limits.compute_capability;
    const StaticStudy* study = other == sm ? nullptr : study_for(result.static_study, other);
    if (!study) continue;
    const Configuration* fitting = preferred_configuration(version, result.problem.dtype, result.problem.head_dim,
                                                           value_head_dim(result.problem), limits.smem_per_cta_bytes);
    if (study->ctas_per_sm > 0)
      parts.push_back(fmt::format("sm_{}: {}, {}", other, study->ctas_per_sm, study->limited_by));
    else
      parts.push_back(fmt::format("sm_{}: does not fit{}", other,
                                  fitting ? fmt::format(", {} runs there", fitting->name) : std::string()));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string format_study_card(const StudyCard& card, const Paint& paint) {
  const Result& result = card.result;
  std::string text = paint.bold(title(card.version));
  text += fmt::format("   {}   {}\n\n", result.config, to_string(result.problem.dtype));

  const auto line = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) text += labelled(paint.dim(label), value);
  };
  line("Idea", card.header.idea);
  line("Changed", card.header.changed);
  line("Prediction", card.header.prediction);
  text += '\n';
  line("Device", describe_device(card.device, card.ran, paint));
  line("Problem", describe_with_data(result.problem, result.data));
  line("Tuned", card.tuned);
  if (card.ran || result.status == Status::skipped) line("Correct", format_correctness(card, paint));
  line("Checked", format_checked(card));
  if (!card.version.deterministic)
    line("Repeated",
         "launches may differ in their last bits: CTAs add to the same elements in any order. Each is checked.");
  if (card.ran && !result.counters) line("Speed", format_speed(card, paint));
  text += format_findings(result, card.all_findings, paint);
  if (!result.findings.empty())
    text += format_hints(hints_from(result.findings.front(), card.source_tree), card.source_tree, paint);
  text += format_diagnosis(result, paint);
  for (const RecordedSpeed& recorded : card.recorded)
    line(&recorded == &card.recorded.front() ? "Recorded" : "", format_recorded(recorded, paint));
  if (!card.recorded.empty() && !card.recorded_problem.empty()) line("", "at " + card.recorded_problem);
  if (card.recorded.empty())
    line("Recorded", result.data == Distribution::normal
                         ? "nothing for this problem; --record measures the standard shapes"
                         : "nothing to compare with, because recordings use normal data");
  if (card.before) line("Step", format_change(card, paint));
  line("Peers", format_peers(card.beside_peers));
  for (const BusyVersion& busy : card.busy)
    line("Busy", describe_busy(busy) + (busy.stale ? fmt::format(" {}", paint.notable(kStale)) : ""));
  text += format_mismatches(result, paint);
  if (const StaticStudy* study = study_for(result.static_study, card.sm)) {
    line("Resources", describe_resources(*study));
    const std::string others = describe_other_occupancies(card.version, result, card.sm);
    line("Occupancy",
         fmt::format("{} (sm_{}){}{}", describe_occupancy(*study), card.sm, others.empty() ? "" : "; ", others));
  } else {
    line("Resources", fmt::format("the build has no study for sm_{}", card.sm));
  }
  line("SASS", format_sass(card, paint));
  for (const auto& [label, counted] : describe_counters(result)) line(label, counted);
  if (!result.lines.empty()) text += '\n' + format_lines(result, card.lines, card.source_tree, paint);
  text += '\n';
  line("Read on", fmt::format("{}", fmt::join(card.read_on, "  ·  ")));
  return text;
}

std::string format_diagnosis(const Result& result, const Paint& paint) {
  std::string text;
  if (!result.diagnosis) return text;
  // Values left by a race suggest nothing, unless a known mistake explains them all.
  if (!result.findings.empty() && result.diagnosis->suggests.empty()) return text;
  for (const std::string& sentence : result.diagnosis->sentences)
    text += labelled(text.empty() ? paint.dim("Diagnosis") : "", sentence);
  return text;
}

std::string format_mismatches(const Result& result, const Paint& paint) {
  if (result.mismatches.empty() && result.tile_map.empty()) return "";
  std::string text;
  if (!result.mismatches.empty()) {
    text += paint.bold(
        fmt::format("  {:>6} {:>6} {:>8} {:>6} {:>14} {:>14}\n", "batch", "head", "row", "column", "got", "expected"));
    for (const Mismatch& wrong : result.mismatches)
      text += fmt::format("  {:>6} {:>6} {:>8} {:>6} {:>14.6g} {:>14.6g}\n", wrong.batch, wrong.head, wrong.row,
                          wrong.column, wrong.got, wrong.expected);
  }
  if (!result.tile_map.empty()) {
    text += result.tile_map;
    if (text.back() != '\n') text += '\n';
  }
  return text;
}

}  // namespace flash_ladder
