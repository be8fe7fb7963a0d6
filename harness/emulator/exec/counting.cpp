#include "emulator/exec/counting.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace flash_ladder::emulator {
namespace {

void add(DetailCount& to, const DetailCount& from) {
  to.global += from.global;
  to.shared += from.shared;
  to.local += from.local;
  to.divergent += from.divergent;
  to.shared_accesses += from.shared_accesses;
}

Counters counters_of(const Instruction& instruction, const ExecutionCount& execution, const DetailCount& detail) {
  Counters counters;
  const auto count = [&](InstructionClass instruction_class, std::uint64_t warps) {
    counters.instructions[static_cast<std::size_t>(instruction_class)] += warps;
  };
  if (instruction.counted) {
    counters.warp_instructions = execution.warps;
    counters.thread_instructions = execution.lanes;
    // Through a generic address: count the space that it actually accessed.
    if (instruction.space == ptx::Space::generic && detail.shared_accesses > 0) {
      const InstructionClass met =
          instruction.instruction_class == InstructionClass::global_load    ? InstructionClass::shared_load
          : instruction.instruction_class == InstructionClass::global_store ? InstructionClass::shared_store
                                                                            : instruction.instruction_class;
      count(met, detail.shared_accesses);
      count(instruction.instruction_class, execution.warps - detail.shared_accesses);
    } else {
      count(instruction.instruction_class, execution.warps);
    }
  }
  switch (instruction.role) {
    case MemoryRole::none:
      break;
    case MemoryRole::load:
      counters.global_load += detail.global;
      counters.shared_load += detail.shared;
      break;
    case MemoryRole::store:
      counters.global_store += detail.global;
      counters.shared_store += detail.shared;
      break;
    case MemoryRole::copy:
      counters.global_load += detail.global;
      counters.shared_copy += detail.shared;
      break;
    case MemoryRole::wgmma_operands:
      counters.wgmma_operands += detail.shared;
      break;
    case MemoryRole::tma_load:
      counters.tma_load += detail.global;
      break;
    case MemoryRole::tma_store:
      counters.tma_store += detail.global;
      break;
  }
  if (instruction.arrives) counters.barriers = execution.warps;
  if (instruction.action == Action::branch || instruction.action == Action::branch_table) {
    counters.branches = instruction.guard >= 0 || instruction.action == Action::branch_table ? execution.warps : 0;
    counters.divergent_branches = detail.divergent;
  }
  counters.local += detail.local;
  return counters;
}

}  // namespace

InstructionCounters& InstructionCounters::operator+=(const InstructionCounters& other) {
  for (std::size_t i = 0; i < executions.size(); ++i) {
    executions[i].warps += other.executions[i].warps;
    executions[i].lanes += other.executions[i].lanes;
    add(details[i], other.details[i]);
  }
  return *this;
}

void summarise(const CompiledKernel& kernel, const InstructionCounters& counters, bool lines, Report& report) {
  std::map<int, Counters> by_position;
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    if (counters.executions[i].warps == 0) continue;
    const Counters of_instruction = counters_of(kernel.code[i], counters.executions[i], counters.details[i]);
    report.totals += of_instruction;
    if (lines) by_position[kernel.sources[kernel.code[i].source].charged_to] += of_instruction;
  }
  std::map<SourcePosition, Counters> by_lines;
  for (const auto& [position, of_position] : by_position) {
    by_lines[kernel.positions[static_cast<std::size_t>(position)]] += of_position;
  }
  for (auto& [position, of_position] : by_lines) report.lines.push_back({position, of_position});
}

std::string executed_text(const CompiledKernel& kernel, const InstructionCounters& counters) {
  std::set<std::int32_t> targets;
  for (const Instruction& instruction : kernel.code)
    if (instruction.action == Action::branch) targets.insert(instruction.target);
  for (const std::vector<std::int32_t>& table : kernel.branch_tables) targets.insert(table.begin(), table.end());
  std::string text;
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    if (targets.contains(static_cast<std::int32_t>(i))) text += fmt::format("$L{}:\n", i);
    if (kernel.code[i].counted && counters.executions[i].lanes > 0)
      text += one_line(kernel.sources[kernel.code[i].source].text) + ";\n";
  }
  return text;
}

SourcePosition busiest_position(const CompiledKernel& kernel, const InstructionCounters& counters) {
  std::map<SourcePosition, std::uint64_t> executed;
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    const int position = kernel.sources[kernel.code[i].source].position;
    if (position != 0) executed[kernel.positions[static_cast<std::size_t>(position)]] += counters.executions[i].warps;
  }
  const auto busiest = std::max_element(executed.begin(), executed.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  return busiest == executed.end() ? SourcePosition() : busiest->first;
}

}  // namespace flash_ladder::emulator
