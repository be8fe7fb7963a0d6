// Linear scan (Poletto and Sarkar, 1999): each register is live from its first to its last instruction in the order of
// the code, and over the whole of every block at whose start or end it is live.
//
// Diverged lanes do not disturb each other although they share the places: every write changes only the active lanes,
// and for each lane separately the lifetimes are right.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>

#include "emulator/decode/bits.h"
#include "emulator/decode/control_flow.h"
#include "emulator/decode/virtual_register.h"

namespace flash_ladder::emulator {
namespace {

struct Interval {
  int first = -1, last = -1;
  void include(int at) {
    if (first < 0 || at < first) first = at;
    if (at > last) last = at;
  }
};

// A guarded write leaves some lanes unchanged, so the register is live before it.
bool kills(const Instruction& instruction) { return instruction.guard < 0; }

std::vector<Interval> live_intervals(const CompiledKernel& kernel, std::size_t num_registers,
                                     const std::vector<InFlight>& in_flight) {
  const std::vector<Block> blocks = basic_blocks(kernel);
  std::vector<Bits> reads(blocks.size(), Bits(num_registers));   // before any write in the block
  std::vector<Bits> writes(blocks.size(), Bits(num_registers));  // by all lanes
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (int i = blocks[b].begin; i < blocks[b].end; ++i) {
      const Instruction& instruction = kernel.code[static_cast<std::size_t>(i)];
      const auto read = [&](int reg) {
        if (!writes[b].get(reg)) reads[b].set(reg);
      };
      if (instruction.guard >= 0) read(instruction.guard);
      for (int k = instruction.writes; k < instruction.operands; ++k) read(instruction.r[static_cast<std::size_t>(k)]);
      if (instruction.wgmma >= 0) {
        const Wgmma& wgmma = kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
        for (const std::int32_t reg : wgmma.a) read(reg);
        for (const std::int32_t reg : wgmma.d) read(reg);
      }
      for (int k = 0; k < instruction.writes; ++k) {
        const int reg = instruction.r[static_cast<std::size_t>(k)];
        if (kills(instruction)) {
          writes[b].set(reg);
        } else {
          read(reg);
        }
      }
    }
  }
  std::vector<Bits> in = reads, out(blocks.size(), Bits(num_registers));
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks.size(); b-- > 0;) {
      for (const int next : blocks[b].successors) out[b].merge(in[static_cast<std::size_t>(next)], nullptr);
      changed |= in[b].merge(out[b], &writes[b]);
    }
  }
  std::vector<Interval> intervals(num_registers);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    in[b].for_each([&](int reg) { intervals[static_cast<std::size_t>(reg)].include(blocks[b].begin); });
    out[b].for_each([&](int reg) { intervals[static_cast<std::size_t>(reg)].include(blocks[b].end); });
    for (int i = blocks[b].begin; i < blocks[b].end; ++i) {
      const Instruction& instruction = kernel.code[static_cast<std::size_t>(i)];
      if (instruction.guard >= 0) intervals[static_cast<std::size_t>(instruction.guard)].include(i);
      for (int k = 0; k < instruction.operands; ++k) {
        intervals[static_cast<std::size_t>(instruction.r[static_cast<std::size_t>(k)])].include(i);
      }
    }
  }
  for (std::size_t i = 0; i < in_flight.size(); ++i) {
    if (in_flight[i].last < 0) continue;
    intervals[i].include(in_flight[i].first);
    intervals[i].include(in_flight[i].last);
  }
  return intervals;
}

// Allocates places of one size.
class Pool {
 public:
  std::int32_t take(std::int32_t& end, int bytes) {
    if (!free_.empty()) {
      // The most recently freed one, because it is in the cache.
      const std::int32_t place = free_.back();
      free_.pop_back();
      return place;
    }
    const std::int32_t place = end;
    end += bytes;
    return place;
  }
  void give_back(std::int32_t place) { free_.push_back(place); }

 private:
  std::vector<std::int32_t> free_;
};

}  // namespace

void allocate_registers(CompiledKernel& kernel, const std::vector<VirtualRegister>& registers) {
  const std::vector<InFlight> in_flight = find_wgmma_registers(kernel, registers.size());
  const std::vector<Interval> intervals = live_intervals(kernel, registers.size(), in_flight);
  std::vector<int> by_start;
  for (std::size_t i = 0; i < registers.size(); ++i) {
    if (!registers[i].uniform && intervals[i].first >= 0) by_start.push_back(static_cast<int>(i));
  }
  std::stable_sort(by_start.begin(), by_start.end(), [&](int a, int b) {
    return intervals[static_cast<std::size_t>(a)].first < intervals[static_cast<std::size_t>(b)].first;
  });

  // Predicates and uniform registers have their own places, before the others, which are aligned to 64 bytes.
  std::vector<std::int32_t> place(registers.size(), 0);
  std::int32_t end = 0;
  const auto fixed = [&](Slot slot, bool uniform) {
    for (std::size_t i = 0; i < registers.size(); ++i) {
      if (registers[i].slot != slot || registers[i].uniform != uniform) continue;
      if (intervals[i].first < 0) continue;
      place[i] = end;
      end += slot_bytes(slot);
    }
  };
  fixed(Slot::predicate, true);
  fixed(Slot::predicate, false);
  end = (end + 63) / 64 * 64;
  for (const Slot slot : {Slot::b16, Slot::b32, Slot::b64}) fixed(slot, true);

  Pool pools[4];
  using Ending = std::pair<int, int>;  // last instruction, register
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> active;
  for (const int reg : by_start) {
    const auto i = static_cast<std::size_t>(reg);
    if (registers[i].slot == Slot::predicate) continue;
    // Strictly before: a result never shares a place with a source of the same instruction.
    while (!active.empty() && active.top().first < intervals[i].first) {
      const auto ended = static_cast<std::size_t>(active.top().second);
      pools[static_cast<int>(registers[ended].slot)].give_back(place[ended]);
      active.pop();
    }
    place[i] = pools[static_cast<int>(registers[i].slot)].take(end, slot_bytes(registers[i].slot));
    active.emplace(intervals[i].last, reg);
  }
  kernel.register_bytes = static_cast<std::size_t>(end);
  for (std::size_t i = 0; i < registers.size(); ++i) {
    if (intervals[i].first >= 0) kernel.places[place[i]] = slot_bytes(registers[i].slot);
  }

  for (Instruction& instruction : kernel.code) {
    if (instruction.guard >= 0) instruction.guard = place[static_cast<std::size_t>(instruction.guard)];
    for (int k = 0; k < instruction.operands; ++k) {
      std::int32_t& reg = instruction.r[static_cast<std::size_t>(k)];
      reg = place[static_cast<std::size_t>(reg)];
    }
  }
  for (Wgmma& wgmma : kernel.wgmmas) {
    for (std::int32_t& reg : wgmma.d) reg = place[static_cast<std::size_t>(reg)];
    for (std::int32_t& reg : wgmma.a) reg = place[static_cast<std::size_t>(reg)];
  }
  for (std::size_t i = 0; i < registers.size(); ++i) {
    const VirtualRegister& reg = registers[i];
    if (!reg.uniform || intervals[i].first < 0) continue;
    kernel.uniforms.push_back({.slot = reg.slot,
                               .offset = place[i],
                               .special = reg.special,
                               .special_register = reg.special_register,
                               .value = reg.value});
  }
}

}  // namespace flash_ladder::emulator
