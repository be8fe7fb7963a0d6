#include "results/counter_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "problem/format_bytes.h"

namespace flash_ladder {
namespace {

std::string describe_traffic(const Traffic& traffic, std::string_view what, std::string_view unit) {
  MemoryCost cost;
  cost += traffic;
  if (cost.actual == 0 && cost.ideal == 0) return "";
  return fmt::format("{} {} in {} {}, {} the ideal", what, format_bytes(static_cast<double>(traffic.bytes)),
                     grouped(cost.actual), unit, cost.ratio());
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  return text;
}

}  // namespace

std::string grouped(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (auto i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > 0; i -= 3)
    text.insert(static_cast<std::size_t>(i), ",");
  return text;
}

std::string in_words(std::string_view counter) {
  std::string text(counter);
  if (!counter.ends_with("_instructions"))
    for (const TrafficKind& kind : kTrafficKinds) {
      if (!counter.starts_with(std::string(kind.name) + '_')) continue;
      std::string_view what = counter.substr(kind.name.size() + 1);
      const bool is_ideal = what.starts_with("ideal_");
      if (is_ideal) what.remove_prefix(std::string_view("ideal_").size());
      text = fmt::format("{}: {}{}", kind.words, what, is_ideal ? " of the best pattern" : "");
    }
  if (counter.starts_with("cp_async_")) text = "cp.async" + text.substr(std::string_view("cp_async").size());
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string count_or_dash(std::uint64_t count) { return count == 0 ? "-" : grouped(count); }

std::string MemoryCost::ratio() const {
  return ideal == 0 ? "-" : fmt::format("{:.2f}x", static_cast<double>(actual) / static_cast<double>(ideal));
}

MemoryCost shared_wavefronts(const Counters& counters) {
  MemoryCost cost;
  for (const Traffic& traffic :
       {counters.shared_load, counters.shared_store, counters.shared_copy, counters.wgmma_operands})
    cost += traffic;
  return cost;
}

MemoryCost global_sectors(const Counters& counters) {
  MemoryCost cost;
  for (const Traffic& traffic : {counters.global_load, counters.global_store, counters.tma_load, counters.tma_store})
    cost += traffic;
  return cost;
}

std::uint64_t total_cost(const Counters& counters) {
  return counters.warp_instructions + shared_wavefronts(counters).actual + global_sectors(counters).actual;
}

std::vector<std::pair<std::string, std::string>> describe_counters(const Counters& counters) {
  std::vector<std::pair<std::uint64_t, std::string_view>> classes;
  for (std::size_t i = 0; i < kNumInstructionClasses; ++i)
    if (counters.instructions[i] > 0)
      classes.emplace_back(counters.instructions[i], to_string(static_cast<InstructionClass>(i)));
  std::sort(classes.begin(), classes.end(),
            [](const auto& a, const auto& b) { return std::pair(b.first, a.second) < std::pair(a.first, b.second); });
  std::vector<std::string> parts;
  for (const auto& [count, name] : classes) parts.push_back(fmt::format("{} {}", name, grouped(count)));

  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back(
      "Counted", fmt::format("{} warp instructions: {}", grouped(counters.warp_instructions), fmt::join(parts, ", ")));
  lines.emplace_back("Global", join({describe_traffic(counters.global_load, "read", "sectors"),
                                     describe_traffic(counters.global_store, "written", "sectors"),
                                     describe_traffic(counters.local, "local memory", "sectors")}));
  lines.emplace_back("Shared", join({describe_traffic(counters.shared_load, "read", "wavefronts"),
                                     describe_traffic(counters.shared_store, "written", "wavefronts"),
                                     describe_traffic(counters.shared_copy, "copied in", "wavefronts")}));
  lines.emplace_back("Hopper", join({describe_traffic(counters.wgmma_operands, "read by wgmma", "wavefronts"),
                                     describe_traffic(counters.tma_load, "loaded by TMA", "sectors"),
                                     describe_traffic(counters.tma_store, "stored by TMA", "sectors")}));
  lines.emplace_back("Control", fmt::format("{} barrier arrivals of warps; {} of {} conditional branches diverged",
                                            grouped(counters.barriers), grouped(counters.divergent_branches),
                                            grouped(counters.branches)));
  return lines;
}

std::string line_heading(const std::string& title, bool global) {
  return fmt::format("{:>6} {:>11} {:>11} {:>7}{}  {}", "cost", "warp instr.", "wavefronts", "ideal",
                     global ? fmt::format(" {:>11} {:>7}", "sectors", "ideal") : "", title);
}

std::string line_figures(const Counters& counters, std::uint64_t cost_of_all, bool global) {
  const MemoryCost shared = shared_wavefronts(counters), sectors = global_sectors(counters);
  const auto share =
      static_cast<double>(total_cost(counters)) / static_cast<double>(std::max<std::uint64_t>(cost_of_all, 1));
  return fmt::format("{:4.1f} % {:>11} {:>11} {:>7}{}  ", 100 * share, count_or_dash(counters.warp_instructions),
                     count_or_dash(shared.actual), shared.ratio(),
                     global ? fmt::format(" {:>11} {:>7}", count_or_dash(sectors.actual), sectors.ratio()) : "");
}

}  // namespace flash_ladder
