#include "emulator/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "emulator/function_name.h"
#include "emulator/trace.h"

namespace flash_ladder::emulator {
namespace {

std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::string to_string(const SourcePosition& position) {
  if (position.empty()) return "unknown line";
  std::string text;
  for (const SourceLine& line : position) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ", called from ", file_name(line.file), line.line);
  }
  return text;
}

std::string_view to_string(InstructionClass instruction_class) {
  constexpr std::string_view kNames[] = {
      "mma",         "wgmma",        "tma",      "ldmatrix",     "shared_load", "shared_store",
      "global_load", "global_store", "cp_async", "local_memory", "atomic",      "parameter_load",
      "float32",     "float64",      "float16",  "special",      "integer",     "compare",
      "convert",     "move",         "shuffle",  "branch",       "barrier",     "other",
  };
  static_assert(std::size(kNames) == kNumInstructionClasses);
  return kNames[static_cast<std::size_t>(instruction_class)];
}

std::string_view to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::out_of_bounds:
      return "out_of_bounds";
    case FindingKind::use_after_free:
      return "use_after_free";
    case FindingKind::misaligned:
      return "misaligned";
    case FindingKind::uninitialised_read:
      return "uninitialised_read";
    case FindingKind::missing_fence:
      return "missing_fence";
    case FindingKind::in_flight:
      return "in_flight";
    case FindingKind::transaction_count:
      return "transaction_count";
    case FindingKind::layout_mismatch:
      return "layout_mismatch";
    case FindingKind::race:
      return "race";
    case FindingKind::overlapping_copies:
      return "overlapping_copies";
    case FindingKind::divergent_barrier:
      return "divergent_barrier";
    case FindingKind::missing_lanes:
      return "missing_lanes";
    case FindingKind::assertion:
      return "assertion";
    case FindingKind::invalid_operation:
      return "invalid_operation";
    case FindingKind::launch_limits:
      return "launch_limits";
    case FindingKind::endless_loop:
      return "endless_loop";
    case FindingKind::deadlock:
      return "deadlock";
    case FindingKind::overwritten:
      return "overwritten";
  }
  return "unknown";
}

std::string_view to_string(Phase phase) {
  constexpr std::string_view kNames[] = {"wait: barrier", "wait: mbarrier", "wait: copies", "wait: wgmma",
                                         "copy",          "load",           "mma",          "arithmetic",
                                         "store",         "other"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Phase::other) + 1);
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view to_string(TraceEvent::Kind kind) {
  constexpr std::string_view kNames[] = {"arrive", "TMA load", "TMA store"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(TraceEvent::Kind::tma_store) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

Traffic& Traffic::operator+=(const Traffic& other) {
  requests += other.requests;
  transactions += other.transactions;
  ideal += other.ideal;
  bytes += other.bytes;
  return *this;
}

Counters& Counters::operator+=(const Counters& other) {
  for (std::size_t i = 0; i < kNumInstructionClasses; ++i) instructions[i] += other.instructions[i];
  warp_instructions += other.warp_instructions;
  thread_instructions += other.thread_instructions;
  global_load += other.global_load;
  global_store += other.global_store;
  shared_load += other.shared_load;
  shared_store += other.shared_store;
  shared_copy += other.shared_copy;
  wgmma_operands += other.wgmma_operands;
  tma_load += other.tma_load;
  tma_store += other.tma_store;
  local += other.local;
  barriers += other.barriers;
  branches += other.branches;
  divergent_branches += other.divergent_branches;
  return *this;
}

std::string list_of_warps(const std::vector<int>& warps) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < warps.size();) {
    std::size_t last = i;
    while (last + 1 < warps.size() && warps[last + 1] == warps[last] + 1) ++last;
    runs.push_back(last == i ? fmt::format("{}", warps[i])
                             : fmt::format("{}{}{}", warps[i], last == i + 1 ? " and " : "–", warps[last]));
    i = last + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ") + runs[i];
  }
  return (warps.size() == 1 ? "warp " : "warps ") + text;
}

std::string describe_work(const Role& role) {
  std::vector<std::string> work;
  if (role.multiplies) work.emplace_back("wgmma");
  if (role.loads) work.emplace_back("TMA loads");
  if (role.stores) work.emplace_back("TMA stores");
  return work.empty() ? "neither wgmma nor TMA" : fmt::format("{}", fmt::join(work, ", "));
}

std::string describe(const std::vector<Role>& roles) {
  if (roles.size() < 2) return {};
  std::string text;
  for (const Role& role : roles)
    text += fmt::format("{}{}: {}, {} registers a thread", text.empty() ? "" : "; ", list_of_warps(role.warps),
                        describe_work(role), role.registers);
  const auto changed = [](const Role& role) { return role.registers != role.registers_at_launch; };
  if (std::ranges::any_of(roles, changed))
    text += fmt::format(" ({} at the launch)", roles.front().registers_at_launch);
  return text;
}

std::string format(const Finding& finding) {
  std::string text = fmt::format("{}: {}", to_string(finding.kind), finding.message);
  if (!finding.position.empty()) text += fmt::format("\n  at {}", to_string(finding.position));
  if (finding.ptx_line > 0) {
    constexpr std::size_t kMost = 120;  // a wgmma can have up to 128 registers
    const bool fits = finding.instruction.size() <= kMost;
    text +=
        fmt::format("\n  PTX line {}: {}{}", finding.ptx_line, finding.instruction.substr(0, kMost), fits ? "" : " …");
  }
  // An invalid call by the host has neither kernel nor block, and a launch that was refused has no block.
  if (!finding.kernel.empty()) text += fmt::format("\n  kernel {}", function_name(finding.kernel));
  if (!finding.kernel.empty() && finding.kind != FindingKind::launch_limits) {
    text += fmt::format(", block ({}, {}, {})", finding.cta.x, finding.cta.y, finding.cta.z);
    if (finding.warp >= 0) text += fmt::format(", warp {}", finding.warp);
    if (finding.lane >= 0) text += fmt::format(", lane {}", finding.lane);
  }
  if (finding.other) {
    text += fmt::format("\n  {} by ", finding.other->what);
    if (const auto& cta = finding.other->cta) text += fmt::format("block ({}, {}, {}), ", cta->x, cta->y, cta->z);
    if (finding.other->warp >= 0) text += fmt::format("warp {}, lane {}, ", finding.other->warp, finding.other->lane);
    text += "at " + to_string(finding.other->position);
  }
  for (const LastWait& wait : finding.waits)
    text += fmt::format("\n  last wait of warp {}, lane {}: {}, at {}", wait.warp, wait.lane, wait.what,
                        to_string(wait.position));
  if (finding.count > 1) text += fmt::format("\n  {} times", finding.count);
  return text;
}

}  // namespace flash_ladder::emulator
