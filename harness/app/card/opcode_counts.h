// Counts of SASS instructions by opcode: which study of an architecture contains them, and how two sets of counts differ.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "results/result.h"

namespace flash_ladder {

using OpcodeCounts = std::map<std::string, int>;

/// The study for sm_<sm>, for registers and occupancy; nullptr when the build has none.
const StaticStudy* study_for(const std::map<std::string, StaticStudy>& studies, int sm);

/// The study whose machine code an SM of this compute capability runs: sm_86 and sm_89 run that of sm_80.
const StaticStudy* code_for(const std::map<std::string, StaticStudy>& studies, int sm);

struct OpcodeChange {
  std::string opcode;
  int before, after;
  int change() const { return after - before; }
};

/// Every opcode that occurs in either, with the largest differences first.
std::vector<OpcodeChange> changes(const OpcodeCounts& before, const OpcodeCounts& after);

int total(const OpcodeCounts& counts);
int count_of(const OpcodeCounts& counts, const std::string& opcode);

}  // namespace flash_ladder
