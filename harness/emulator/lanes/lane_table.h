// Instructions that act on each lane separately: add, fma, cvt, setp … Each is a function over the 32 lanes of a warp,
// looked up by the PTX opcode with all its modifiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator {

inline constexpr int kWarpSize = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffu;
/// The size of a sector, which is the minimum that is read from global memory.
inline constexpr unsigned kSectorBytes = 32;

/// The layout of a register's 32 lanes in a warp's register file: a predicate is 32 bits, the others are arrays of 32.
enum class Slot : std::uint8_t { predicate, b16, b32, b64 };

constexpr int slot_bytes(Slot slot) {
  constexpr int kBytes[] = {4, 64, 128, 256};
  return kBytes[static_cast<int>(slot)];
}

/// `registers` is the register file of a warp, `r` the offsets of the operands in it, results first. Writes only the
/// lanes in `mask`.
using LaneFunction = void (*)(std::byte* registers, const std::int32_t* r, std::uint32_t mask);

/// When the result is undefined in a lane in which a source is undefined because its register was never written.
enum class UndefinedRule : std::uint8_t {
  any,   // always
  move,  // always; the result is that source
  selp,  // not if the undefined source is the one that is not chosen
  and_,  // not if the other source is 0
  or_,   // not if the other source has all bits set
};

struct LaneOperation {
  LaneFunction function = nullptr;
  InstructionClass instruction_class = InstructionClass::other;
  std::uint8_t writes = 1;   // how many of `slots` are results
  bool sign_extend = false;  // how the result fills a wider register
  std::uint8_t operands = 0;
  Slot slots[6] = {};  // of the operands: results, then sources
  UndefinedRule undefined_rule = UndefinedRule::any;
};

class LaneTable {
 public:
  /// Parts of the opcode in brackets are optional: "add[.rn][.sat].f32" adds four.
  void add(const char* opcode, const LaneOperation& operation);
  const LaneOperation* find(std::string_view opcode) const;
  std::size_t size() const { return operations_.size(); }
  std::vector<std::string> opcodes() const;

 private:
  std::unordered_map<std::string, LaneOperation> operations_;
};

const LaneTable& lane_table();

}  // namespace flash_ladder::emulator
