// Counters of one instruction, while a launch runs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/lanes/lane_table.h"
#include "emulator/report.h"

namespace flash_ladder::emulator {

/// Adds one request of the lanes in the mask, with this many bytes each.
inline void count(Traffic& traffic, std::uint32_t mask, unsigned bytes, std::uint64_t transactions,
                  std::uint64_t ideal) {
  ++traffic.requests;
  traffic.transactions += transactions;
  traffic.ideal += ideal;
  traffic.bytes += static_cast<std::uint64_t>(std::popcount(mask)) * bytes;
}

/// Adds one request for global memory: the bytes that it names, those among them that it accesses, and the sectors that
/// contain these. The ideal is the smallest number of sectors that they can occupy, or fewer if lanes read the same bytes.
inline void count_global(Traffic& traffic, std::uint64_t bytes, std::uint64_t accessed, std::uint64_t sectors) {
  ++traffic.requests;
  traffic.bytes += bytes;
  traffic.transactions += sectors;
  traffic.ideal += std::min(sectors, (accessed + kSectorBytes - 1) / kSectorBytes);
}

/// How often an instruction was executed, and by how many lanes in total.
struct ExecutionCount {
  std::uint64_t warps = 0;
  std::uint64_t lanes = 0;
};

/// The additional counters of memory instructions, branches and generic accesses.
struct DetailCount {
  Traffic global, shared, local;
  std::uint64_t divergent = 0;
  std::uint64_t shared_accesses = 0;  // for a generic instruction: executions that accessed only shared memory
};

/// The counters of a launch, or of part of it, for each instruction of the kernel.
class InstructionCounters {
 public:
  explicit InstructionCounters(std::size_t num_instructions)
      : executions(num_instructions), details(num_instructions) {}

  std::vector<ExecutionCount> executions;
  std::vector<DetailCount> details;

  InstructionCounters& operator+=(const InstructionCounters& other);
};

/// Adds up all instructions (totals) and those of each source position (lines).
void summarise(const CompiledKernel& kernel, const InstructionCounters& counters, bool lines, Report& report);

/// Report::executed.
std::string executed_text(const CompiledKernel& kernel, const InstructionCounters& counters);

/// Report::busiest.
SourcePosition busiest_position(const CompiledKernel& kernel, const InstructionCounters& counters);

}  // namespace flash_ladder::emulator
