// Matrices in shared memory. PTX ISA, "ldmatrix".
#include <bit>
#include <cstring>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/lanes/accesses.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;

// Lanes 8i … 8i+7 supply the addresses of the rows of matrix i; every lane receives two elements of each matrix.
template <bool kTransposed>
void ldmatrix(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  const std::uint32_t row_lanes = instruction.writes == 4 ? kAllLanes : (1u << (8 * instruction.writes)) - 1;
  const UndefinedLanes undefined =
      undefined_sources(cta, warp, instruction, instruction.writes, instruction.writes + 1u, row_lanes);
  report_undefined(cta, warp, instruction, undefined, "used as an address");
  const auto whole_matrix = kTransposed ? lanes::transposed_matrix : lanes::matrix;
  const PlacedPattern placed =
      cta.memory().whole_warp_access(warp, instruction, instruction.r[instruction.writes], row_lanes, 16, true);
  if (placed.pattern != nullptr) {
    cta.memory().count_shared(instruction, *placed.pattern);
    if (cta.shadow() != nullptr)
      cta.shadow()->read({.warp = warp.index,
                          .instruction = cta.index_of(instruction),
                          .strength = instruction.strength,
                          .mask = kAllLanes,
                          .bytes = placed.pattern->bytes,
                          .offsets = nullptr,
                          .placed = placed});
    for (std::size_t matrix = 0; matrix < instruction.writes; ++matrix) {
      whole_matrix(cta.memory().shared() + placed.base, placed.pattern->offsets.data() + 8 * matrix,
                   warp.registers + instruction.r[matrix]);
    }
    return;
  }
  alignas(64) std::uint32_t offsets[kWarpSize];
  LaneAddresses at;
  cta.memory().addresses(warp, instruction, instruction.r[instruction.writes], at);
  const std::uint32_t good = cta.memory().check_shared(warp, instruction, at, row_lanes, 16, offsets);
  cta.memory().count_shared(instruction, row_lanes, good, 16, offsets, true);
  if (cta.shadow() != nullptr) {
    cta.shadow()->read({warp.index, cta.index_of(instruction), false, good, 16, offsets});
  }
  for (int matrix = 0; matrix < instruction.writes; ++matrix) {
    if (((good >> (8 * matrix)) & 0xff) == 0xff) {
      whole_matrix(cta.memory().shared(), offsets + 8 * matrix,
                   warp.registers + instruction.r[static_cast<std::size_t>(matrix)]);
      continue;
    }
    alignas(16) std::uint16_t rows[8][8] = {};
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * matrix + row;
      if ((good >> lane) & 1) std::memcpy(rows[row], cta.memory().shared() + offsets[lane], 16);
    }
    auto* to = reinterpret_cast<std::uint16_t*>(warp.registers + instruction.r[static_cast<std::size_t>(matrix)]);
    if (!kTransposed) {
      std::memcpy(to, rows, sizeof rows);
    } else {
      for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < 8; ++column) to[8 * column + row] = rows[row][column];
      }
    }
  }
}

}  // namespace

void decode_ldmatrix(KernelDecoder& d) {
  d.expect_operands(2);
  int count = 0;
  bool known = d.has("sync") && d.has("aligned") && d.has("m8n8") && (d.has("shared") || d.has("shared::cta")) &&
               d.parts().back() == "b16";
  for (const std::string_view part : d.parts()) {
    if (part == "x1" || part == "x2" || part == "x4") count = part[1] - '0';
  }
  known = known && count != 0 && d.parts().size() == 7u + (d.has("trans") ? 1u : 0u);
  if (!known) d.fail_unknown();
  const std::vector<Operand> results = d.elements(d.operand(0));
  if (static_cast<int>(results.size()) != count) d.fail("a vector of the wrong length");
  std::int64_t offset = 0;
  bool wide = true;
  const int address = d.address_operand(d.operand(1), Space::shared, offset, wide);
  std::vector<int> writes;
  for (const Operand& result : results) writes.push_back(d.write(result, Slot::b32));
  Instruction& out =
      d.emit(d.has("trans") ? ldmatrix<true> : ldmatrix<false>, InstructionClass::ldmatrix, writes, {address});
  out.role = MemoryRole::load;
  out.own_sources = 1;  // some lanes supply no address
  out.bytes = 16;
  out.space = Space::shared;
  out.wide_address = wide;
  out.offset = offset;
}

}  // namespace flash_ladder::emulator
