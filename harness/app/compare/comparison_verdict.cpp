#include "app/compare/comparison_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "app/card/opcode_counts.h"
#include "results/counter_text.h"
#include "results/counters.h"
#include "rules/support.h"

namespace flash_ladder {
namespace {

constexpr double kNotable = 0.01;            // smaller changes do not count
constexpr std::size_t kMostOpcodes = 3;      // at most this many that fell, and as many that rose
constexpr double kNotablePercentPoints = 2;  // in how busy a unit is

// The parts of the two lines.
struct Moved {
  std::vector<std::string> fell, rose;

  void add(const std::string& name, std::uint64_t from, std::uint64_t to) {
    const auto a = static_cast<double>(from), b = static_cast<double>(to);
    if (std::abs(b - a) < kNotable * a || from == to) return;
    (to < from ? fell : rose).push_back(fmt::format("{} {} → {}", name, grouped(from), grouped(to)));
  }
  void add(const std::string& name, int from, int to) {
    add(name, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
  }
};

std::string speed_line(const Comparison& comparison) {
  std::vector<std::string> parts;
  for (const SpeedPair& pair : comparison.speeds)
    if (pair.problem == comparison.problem && pair.ratio())
      parts.push_back(fmt::format("{:.2f}x: {:.1f} → {:.1f} TFLOP/s on {}, {}{}", *pair.ratio(), pair.from->tflops,
                                  pair.to->tflops, pair.device, pair.to->way, pair.stale() ? ", stale" : ""));
  if (parts.empty()) return "no figures of both are recorded for " + describe(comparison.problem);
  return fmt::format("{} ({})", fmt::join(parts, "; "), describe(comparison.problem));
}

void add_counters(Moved& moved, const CountedPair& counted) {
  if (!counted.why_not.empty()) return;
  const Counters &from = *counted.from.counters, &to = *counted.to.counters;
  moved.add("warp instructions", from.warp_instructions, to.warp_instructions);
  moved.add("wavefronts of shared memory", shared_wavefronts(from).actual, shared_wavefronts(to).actual);
  moved.add("sectors of global memory", global_sectors(from).actual, global_sectors(to).actual);
  moved.add("barrier arrivals", from.barriers, to.barriers);
}

void add_resources(Moved& moved, const StaticPair& compiled) {
  if (!compiled.from || !compiled.to) return;
  const StaticStudy &from = *compiled.from, &to = *compiled.to;
  moved.add("registers", from.registers, to.registers);
  moved.add("spilled bytes", from.spill_bytes, to.spill_bytes);
  moved.add("bytes of shared memory", from.smem_bytes, to.smem_bytes);
  moved.add("CTAs per SM", from.ctas_per_sm, to.ctas_per_sm);
}

void add_busy(Moved& moved, const std::vector<BusyPair>& busy) {
  if (busy.empty() || !busy.front().from || !busy.front().to) return;
  for (const BusyMetric& metric : busy_metrics()) {
    const double from = busy.front().from->busy.*metric.member, to = busy.front().to->busy.*metric.member;
    if (metric.unit != 1 || std::abs(to - from) < kNotablePercentPoints) continue;
    const std::string name = std::string(metric.name).substr(0, std::string_view(metric.name).find(','));
    (to < from ? moved.fell : moved.rose).push_back(fmt::format("{} busy {:.0f} % → {:.0f} %", name, from, to));
  }
}

void add_opcodes(Moved& moved, const StaticPair& compiled) {
  if (!compiled.code_from || !compiled.code_to) return;
  const OpcodeCounts &from = compiled.code_from->hot_loop_sass, &to = compiled.code_to->hot_loop_sass;
  if (from.empty() || to.empty()) return;
  moved.add("instructions in the hot loop", total(from), total(to));
  std::vector<std::string> fell, rose;
  for (const OpcodeChange& change : changes(from, to)) {
    auto& parts = change.change() < 0 ? fell : rose;
    if (std::abs(change.change()) > kNotable * total(from) && parts.size() < kMostOpcodes)
      parts.push_back(fmt::format("{} {} → {}", change.opcode, change.before, change.after));
  }
  for (const auto& [parts, line] : {std::pair(&fell, &moved.fell), {&rose, &moved.rose}})
    if (!parts->empty()) line->push_back(fmt::format("hot loop: {}", fmt::join(*parts, ", ")));
}

std::string joined(const std::vector<std::string>& parts) {
  return parts.empty() ? "nothing that is counted" : fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

Verdict verdict_of(const Comparison& comparison) {
  Moved moved;
  add_counters(moved, comparison.counted);
  add_resources(moved, comparison.compiled);
  add_busy(moved, comparison.busy);
  add_opcodes(moved, comparison.compiled);
  return {.speed = speed_line(comparison), .fell = joined(moved.fell), .rose = joined(moved.rose)};
}

std::vector<CounterChange> counter_changes(const Result& from, const Result& to) {
  std::vector<CounterChange> changes;
  for_each_counter(*from.counters, [&](const std::string& name, std::uint64_t count) {
    changes.push_back({in_words(name), count, 0});
  });
  auto change = changes.begin();
  for_each_counter(*to.counters, [&](const std::string&, std::uint64_t count) { (change++)->to = count; });
  std::erase_if(changes, [](const CounterChange& one) { return one.from == one.to; });
  return changes;
}

}  // namespace flash_ladder
