#include "emulator/exec/loops.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

// The places of the registers that determine the path of the executed instructions, their memory accesses, and the
// later values of these registers themselves. If these registers return to earlier values, a loop repeats for ever.
template <typename Executed>
std::vector<std::int32_t> deciding_registers(const std::vector<Instruction>& code, std::int32_t begin, std::int32_t end,
                                             Executed executed) {
  std::set<std::int32_t> decide;
  const auto add_sources = [&](const Instruction& instruction) {
    const std::size_t before = decide.size();
    if (instruction.guard >= 0) decide.insert(instruction.guard);
    for (std::size_t k = instruction.writes; k < instruction.operands; ++k) decide.insert(instruction.r[k]);
    return decide.size() != before;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::int32_t i = begin; i < end; ++i) {
      if (!executed(i)) continue;
      const Instruction& instruction = code[static_cast<std::size_t>(i)];
      bool matters = instruction.action == Action::branch || instruction.action == Action::branch_table ||
                     instruction.action == Action::exit;
      if (instruction.action == Action::operation) {
        matters =
            instruction.writes == 0 || (instruction.role != MemoryRole::none && instruction.role != MemoryRole::load);
      }
      for (std::size_t k = 0; !matters && k < instruction.writes; ++k) matters = decide.contains(instruction.r[k]);
      if (matters) changed |= add_sources(instruction);
      for (std::size_t k = 0; matters && k < instruction.writes; ++k) changed |= decide.insert(instruction.r[k]).second;
    }
  }
  return {decide.begin(), decide.end()};
}

// The loop that a yielding warp is in, from its first instruction to just after its last.
std::pair<std::int32_t, std::int32_t> loop_of(CtaExecutor& cta, const Warp& warp) {
  for (auto i = static_cast<std::size_t>(warp.pc); i < cta.code().size(); ++i) {
    const Instruction& instruction = cta.code()[i];
    if (instruction.action == Action::branch && instruction.target <= warp.pc) {
      return {instruction.target, static_cast<std::int32_t>(i) + 1};
    }
  }
  return {warp.pc, warp.pc};
}

bool loop_has(CtaExecutor& cta, const Warp& warp, bool (*is)(const Instruction&)) {
  const auto [begin, end] = loop_of(cta, warp);
  return std::any_of(cta.code().begin() + begin, cta.code().begin() + end, is);
}

}  // namespace

bool spins_on_a_lock(CtaExecutor& cta, const Warp& warp) {
  return loop_has(cta, warp, [](const Instruction& i) { return i.instruction_class == InstructionClass::atomic; });
}

bool may_wait(CtaExecutor& cta, const Warp& warp) {
  return spins_on_a_lock(cta, warp) || loop_has(cta, warp, [](const Instruction& i) {
           return i.action == Action::clock || (i.role == MemoryRole::load && is_strong(i.strength));
         });
}

const Instruction* looked_at(CtaExecutor& cta, const Warp& warp) {
  const auto [begin, end] = loop_of(cta, warp);
  const std::vector<std::int32_t> deciding =
      deciding_registers(cta.code(), begin, end, [](std::int32_t) { return true; });
  const auto decides = [&](const Instruction& instruction) {
    if (instruction.instruction_class == InstructionClass::atomic) return true;
    if (instruction.role != MemoryRole::load || !instruction.counted) return false;
    return std::any_of(instruction.r.begin(), instruction.r.begin() + instruction.writes,
                       [&](std::int32_t place) { return std::binary_search(deciding.begin(), deciding.end(), place); });
  };
  const auto found = std::find_if(cta.code().begin() + begin, cta.code().begin() + end, decides);
  return found == cta.code().begin() + end ? nullptr : &*found;
}

bool has_come_back(CtaExecutor& cta, Warp& warp) {
  Snapshot& last = warp.snapshot;
  const std::size_t bytes = cta.context().kernel.register_bytes;
  const auto same = [&](std::int32_t place, std::size_t size) {
    return std::memcmp(last.registers.data() + place, warp.registers + place, size) == 0;
  };
  if (last.taken && last.changes == cta.changes() && last.pc == warp.pc && last.reconverge == warp.reconverge &&
      last.active == warp.active && last.depth == warp.stack.size()) {
    if (same(0, bytes)) return true;
    if (last.records) {
      const std::vector<std::int32_t> deciding =
          deciding_registers(cta.code(), 0, static_cast<std::int32_t>(cta.code().size()),
                             [&](std::int32_t i) { return last.executed[static_cast<std::size_t>(i)]; });
      if (std::all_of(deciding.begin(), deciding.end(), [&](std::int32_t place) {
            return same(place, static_cast<std::size_t>(cta.context().kernel.places.at(place)));
          })) {
        return true;
      }
    }
  }
  if (last.taken && ++last.since < last.next) return false;
  // The state of wgmma and TMA is not in the registers.
  last.records = last.taken && last.changes == cta.changes() && cta.async() == nullptr;
  last.executed.assign(last.records ? cta.code().size() : 0, false);
  last.next = last.taken ? std::min(2 * last.next, Snapshot::kMostSlots) : 1;
  last.taken = true;
  last.since = 0;
  last.changes = cta.changes();
  last.registers.assign(warp.registers, warp.registers + bytes);
  last.pc = warp.pc;
  last.reconverge = warp.reconverge;
  last.active = warp.active;
  last.depth = warp.stack.size();
  cta.watch();
  return false;
}

}  // namespace flash_ladder::emulator
