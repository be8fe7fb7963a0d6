#include "app/card/opcode_counts.h"

#include <algorithm>
#include <cstdlib>

#include "sass/machine_code.h"

namespace flash_ladder {
namespace {

const StaticStudy* find(const std::map<std::string, StaticStudy>& studies, const std::string& name) {
  const auto found = studies.find(name);
  return found == studies.end() ? nullptr : &found->second;
}

}  // namespace

const StaticStudy* study_for(const std::map<std::string, StaticStudy>& studies, int sm) {
  return find(studies, "sm_" + std::to_string(sm));
}

const StaticStudy* code_for(const std::map<std::string, StaticStudy>& studies, int sm) {
  return find(studies, code_name(sm));
}

std::vector<OpcodeChange> changes(const OpcodeCounts& before, const OpcodeCounts& after) {
  OpcodeCounts opcodes = before;
  opcodes.insert(after.begin(), after.end());
  std::vector<OpcodeChange> all;
  for (const auto& [opcode, count] : opcodes)
    all.push_back({opcode, count_of(before, opcode), count_of(after, opcode)});
  std::stable_sort(all.begin(), all.end(), [](const OpcodeChange& a, const OpcodeChange& b) {
    return std::abs(a.change()) > std::abs(b.change());
  });
  return all;
}

int total(const OpcodeCounts& counts) {
  int sum = 0;
  for (const auto& [opcode, count] : counts) sum += count;
  return sum;
}

int count_of(const OpcodeCounts& counts, const std::string& opcode) {
  const auto found = counts.find(opcode);
  return found == counts.end() ? 0 : found->second;
}

}  // namespace flash_ladder
