#include "emulator/lanes/lane_table.h"

#include <algorithm>
#include <stdexcept>

#include "emulator/lanes/lane_operations.h"
#include "emulator/lanes/processor.h"

namespace flash_ladder::emulator {
namespace {

UndefinedRule undefined_rule(std::string_view opcode) {
  if (opcode.starts_with("mov.")) return UndefinedRule::move;
  if (opcode.starts_with("selp.")) return UndefinedRule::selp;
  if (opcode.starts_with("and.")) return UndefinedRule::and_;
  if (opcode.starts_with("or.")) return UndefinedRule::or_;
  return UndefinedRule::any;
}

}  // namespace

void LaneTable::add(const char* opcode, const LaneOperation& operation) {
  const std::string name = opcode;
  const std::size_t open = name.find('[');
  if (open == std::string::npos) {
    const auto [entry, is_new] = operations_.emplace(name, operation);
    if (!is_new) throw std::logic_error("two operations named " + name);
    entry->second.undefined_rule = undefined_rule(name);
    return;
  }
  const std::size_t close = name.find(']', open);
  const std::string before = name.substr(0, open), after = name.substr(close + 1);
  add((before + after).c_str(), operation);
  add((before + name.substr(open + 1, close - open - 1) + after).c_str(), operation);
}

const LaneOperation* LaneTable::find(std::string_view opcode) const {
  const auto found = operations_.find(std::string(opcode));
  return found == operations_.end() ? nullptr : &found->second;
}

std::vector<std::string> LaneTable::opcodes() const {
  std::vector<std::string> names;
  for (const auto& [name, operation] : operations_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const LaneTable& lane_table() {
  static const LaneTable table = [] {
    require_processor();  // otherwise it would not be linked
    LaneTable lanes;
    add_integer_operations(lanes);
    add_compare_operations(lanes);
    add_float_operations(lanes);
    add_half_operations(lanes);
    add_convert_operations(lanes);
    add_rounding_operations(lanes);
    add_math_operations(lanes);
    return lanes;
  }();
  return table;
}

}  // namespace flash_ladder::emulator
